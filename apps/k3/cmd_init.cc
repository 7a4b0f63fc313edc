// k3 init: a checkpoint of random numbers.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "base/limits.h"
#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "random_tokenizer.h"
#include "sys/machine.h"
#include "terminal/terminal.h"
#include "weights/random_init.h"

namespace k3::cli {
namespace {

struct InitOptions {
  std::string config_file;
  std::string out_dir;
  std::string layers;
  uint64_t seed = 0;
  int64_t shard_bytes_max = RandomCheckpointOptions{}.shard_bytes_max;
  int threads = 0;
};

/// "A-B", or "A" for one layer.
Result<LayerRange> ParseLayers(std::string_view text) {
  const size_t dash = text.find('-');
  const std::string_view first = text.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : text.substr(dash + 1);
  LayerRange range;
  for (const auto& [word, value] : {std::pair(first, &range.first), std::pair(last, &range.last)}) {
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), *value);
    if (error != std::errc() || stop != word.data() + word.size() || *value < 0) {
      return InvalidArgument(
          fmt::format("--layers: expected a range such as 0-3, found {}", QuoteForMessage(text)));
    }
  }
  return range;
}

Result<int> Init(const InitOptions& options) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  RandomCheckpointOptions random;
  K3_TRY(random.config_json,
         ReadWholeFile(*files, options.config_file, limits::kConfigFileBytesMax));
  // Parsed here so that messages name the user's file.
  K3_TRY(const ModelConfig config, ParseModelConfig(random.config_json, options.config_file));
  random.out_dir = options.out_dir;
  random.seed = options.seed;
  random.shard_bytes_max = options.shard_bytes_max;
  random.threads_count = options.threads > 0 ? options.threads : UsableCores();
  if (!options.layers.empty()) {
    K3_TRY(random.layers, ParseLayers(options.layers));
  }
  ProgressBar bar("writing");
  random.progress = [&](const RandomCheckpointProgress& progress) {
    bar.Update(progress.bytes_done, progress.bytes_total);
  };
  K3_TRY(const RandomCheckpointSummary summary, WriteRandomCheckpoint(*files, random));
  bar.Clear();
  if (config.vocab_size >= 256) {
    K3_RETURN_IF_ERROR(WriteRandomTokenizer(*files, options.out_dir, config)
                           .WithContext("the checkpoint is whole, but its tokenizer is not"));
  } else {
    PrintNotice("no tokenizer was written: the vocabulary is too small for every byte");
  }
  K3_RETURN_IF_ERROR(WriteOutput(
      fmt::format("{}: {} tensors, {} in {} shards\n", options.out_dir, summary.tensors_count,
                  FormatBytes(summary.tensor_bytes), summary.shards_count)));
  return kExitOk;
}

}  // namespace

void AddInitCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<InitOptions>();
  CLI::App* command =
      app.add_subcommand("init", "Write a checkpoint of random numbers in the official layout.");
  command->add_option("--config", options->config_file, "The model's config.json.")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--out", options->out_dir,
                   "The directory to write, made if need be; it must hold no checkpoint.")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--seed", options->seed,
                   "The same seed and configuration give the same bytes, on every machine.")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--layers", options->layers,
                   "Writes only the layers A to B, counted from 0: a slice of a model that is too "
                   "large, to inspect or to read from. It cannot be run alone.")
      ->type_name("A-B");
  command
      ->add_option("--shard-size", options->shard_bytes_max,
                   "A layer with more bytes than this is cut into several files.")
      ->type_name("BYTES")
      ->capture_default_str();
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Routed experts are MXFP4 if the configuration has a quantization_config, everything else\n"
      "bf16. A tokenizer of single bytes and made-up words is written beside the weights.\n\n"
      "Example:\n"
      "  k3 init --config models/kjv/config.json --seed 1 --out random");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Init(*options); }; });
}

}  // namespace k3::cli
