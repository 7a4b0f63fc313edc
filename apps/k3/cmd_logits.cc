// k3 logits: the logits of given token ids, and what the layers did, as raw arrays.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/limits.h"
#include "commands.h"
#include "engine_options.h"
#include "output_file.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

// The default chunk keeps the logits of one chunk below this.
constexpr int64_t kChunkLogitsBytesMax = 256 << 20;
constexpr const char* kLogitsFileName = "logits.f32";

struct LogitsOptions {
  std::string dir;
  std::string tokens;
  std::string out;
  std::string hidden_dir;
  std::string prefill_chunk;
  bool decode = false;
  int threads = 0;
};

/// One array of the output: rows are appended as they come.
struct ArrayFile {
  OutputFile file;
  std::string name;
  std::string file_name;
  int64_t width;
};

/// Writes hidden.N.f32 and route.N.i32. A failure waits in status() for the end of the pass.
class LayerWriter : public model::ForwardObserver {
 public:
  LayerWriter(FileSystem& files, std::string dir) : files_(files), dir_(std::move(dir)) {}

  Status Open(const ModelConfig& config) {
    K3_RETURN_IF_ERROR(files_.MakeDirectories(dir_));
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      K3_RETURN_IF_ERROR(Add("hidden", "f32", layer, config.hidden_size, hidden_));
      if (config.IsDense(layer)) {
        route_.emplace_back();
      } else {
        K3_RETURN_IF_ERROR(Add("route", "i32", layer, config.moe.experts_per_token, route_));
      }
    }
    return OkStatus();
  }

  void OnHidden(int64_t layer, std::span<const float> hidden) override {
    Append(hidden_[static_cast<size_t>(layer)], std::as_bytes(hidden));
  }
  void OnRoute(int64_t layer, std::span<const int32_t> experts) override {
    Append(route_[static_cast<size_t>(layer)], std::as_bytes(experts));
  }

  const Status& status() const { return status_; }

  /// Closes the arrays and lists them in `arrays`, layer by layer.
  Status Finish(int64_t tokens, nlohmann::ordered_json& arrays) {
    for (size_t layer = 0; layer < hidden_.size(); ++layer) {
      for (std::optional<ArrayFile>* array : {&route_[layer], &hidden_[layer]}) {
        if (!array->has_value()) continue;
        K3_RETURN_IF_ERROR((*array)->file.Finish());
        arrays[(*array)->name] = {{"file", (*array)->file_name},
                                  {"shape", {tokens, (*array)->width}}};
      }
    }
    return OkStatus();
  }

 private:
  Status Add(std::string_view kind, std::string_view suffix, int64_t layer, int64_t width,
             std::vector<std::optional<ArrayFile>>& to) {
    std::string name = fmt::format("{}.{}", kind, layer);
    std::string file_name = fmt::format("{}.{}", name, suffix);
    K3_TRY(OutputFile file, OutputFile::Create(files_, JoinPath(dir_, file_name)));
    to.emplace_back(ArrayFile{std::move(file), std::move(name), std::move(file_name), width});
    return OkStatus();
  }

  void Append(std::optional<ArrayFile>& array, std::span<const std::byte> bytes) {
    if (status_.ok()) status_ = array->file.Append(bytes);
  }

  FileSystem& files_;
  std::string dir_;
  std::vector<std::optional<ArrayFile>> hidden_;  // [layers]
  std::vector<std::optional<ArrayFile>> route_;   // [layers], nothing for dense ones
  Status status_;
};

Result<std::vector<int32_t>> ReadTokens(FileSystem& files, const LogitsOptions& options,
                                        const ModelConfig& config) {
  std::string text = options.tokens;
  std::string where = "--tokens";
  if (text.starts_with('@')) {
    where = text.substr(1);
    K3_TRY(text, ReadWholeFile(files, where, limits::kPromptBytesMax));
  }
  K3_TRY(std::vector<int32_t> tokens, ParseTokenIds(text, where));
  if (tokens.empty()) {
    return InvalidArgument(fmt::format("{}: expected at least one token id, found none", where));
  }
  // Looked at before the first pass: a late failure would come after hours.
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= config.vocab_size) {
      return InvalidArgument(fmt::format("{}: entry {}: expected a token id in [0, {}), found {}",
                                         where, i + 1, config.vocab_size, tokens[i]));
    }
  }
  if (std::ssize(tokens) > config.context_max) {
    return InvalidArgument(fmt::format("{}: expected at most {} ids, the model's context, found {}",
                                       where, config.context_max, tokens.size()));
  }
  return tokens;
}

Result<int64_t> ChooseChunk(const LogitsOptions& options, int64_t tokens, int64_t vocab_size) {
  if (options.decode) return int64_t{1};
  int64_t chunk = kDefaultPrefillChunk;
  if (options.prefill_chunk.empty()) {
    chunk = std::min(chunk, kChunkLogitsBytesMax / (vocab_size * 4));
  } else {
    K3_TRY(chunk, ParsePrefillChunk(options.prefill_chunk));
  }
  return std::clamp<int64_t>(chunk, 1, tokens);
}

/// Runs the tokens and appends their logits to `out`. The best id after each token.
Result<std::vector<int64_t>> RunTokens(Engine& engine, std::span<const int32_t> tokens,
                                       int64_t chunk, bool decode, OutputFile& out,
                                       LayerWriter* layers) {
  const int64_t vocab = engine.config().vocab_size;
  std::vector<int32_t> rows(static_cast<size_t>(chunk));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(static_cast<size_t>(chunk * vocab));
  std::vector<int64_t> best;
  cache::SequenceState state(engine.config());
  ProgressBar bar("computing");
  const auto form = decode ? model::AttentionForm::kDecode : model::AttentionForm::kPrefill;
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk)) {
    const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - at);
    const model::Batch batch{{{&state, tokens.subspan(at, count), form}}};
    K3_RETURN_IF_ERROR(engine.Run(batch, std::span(rows).first(count), logits.data(), layers));
    if (layers != nullptr) K3_RETURN_IF_ERROR(layers->status());
    const std::span<const float> filled =
        std::span(logits).first(count * static_cast<size_t>(vocab));
    for (size_t i = 0; i < filled.size(); ++i) {
      if (std::isfinite(filled[i])) continue;
      return Corruption(fmt::format(
          "token {}: expected finite logits, found {} for id {}; a weight "
          "or config.json is damaged",
          at + i / static_cast<size_t>(vocab), filled[i], i % static_cast<size_t>(vocab)));
    }
    K3_RETURN_IF_ERROR(out.Append(std::as_bytes(filled)));
    for (size_t i = 0; i < count; ++i) {
      const float* row = logits.data() + i * static_cast<size_t>(vocab);
      best.push_back(std::max_element(row, row + vocab) - row);
    }
    bar.Update(static_cast<int64_t>(at + count), std::ssize(tokens));
  }
  return best;
}

/// Refuses to write over a file of the model that is being read.
Status CheckNotOfTheModel(const Checkpoint& checkpoint, const std::string& path) {
  std::vector<std::string> own;
  for (std::string_view name : {kConfigFileName, kIndexFileName, kGenerationConfigFileName}) {
    own.push_back(JoinPath(checkpoint.dir(), name));
  }
  for (const ShardInfo& shard : checkpoint.shards()) own.push_back(shard.path);
  for (const std::string& file : own) {
    std::error_code error;
    if (std::filesystem::equivalent(file, path, error) && !error) {
      return InvalidArgument(fmt::format(
          "--out: {} is a file of the model that is being read; choose another name", path));
    }
  }
  return OkStatus();
}

Result<int> Logits(const LogitsOptions& options) {
  if (options.out.empty() && options.hidden_dir.empty()) {
    return InvalidArgument("expected --out, --hidden or both, found neither");
  }
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, false));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  const ModelConfig& config = engine->config();
  K3_TRY(const std::vector<int32_t> tokens, ReadTokens(*files, options, config));
  const int64_t tokens_count = std::ssize(tokens);
  K3_TRY(const int64_t chunk, ChooseChunk(options, tokens_count, config.vocab_size));

  std::optional<LayerWriter> layers;
  if (!options.hidden_dir.empty()) {
    layers.emplace(*files, options.hidden_dir);
    K3_RETURN_IF_ERROR(layers->Open(config));
  }
  const bool logits_beside = options.out.empty();
  K3_RETURN_IF_ERROR(CheckNotOfTheModel(engine->checkpoint(), options.out));
  K3_TRY(OutputFile out,
         OutputFile::Create(
             *files, logits_beside ? JoinPath(options.hidden_dir, kLogitsFileName) : options.out));
  K3_TRY(const std::vector<int64_t> best,
         RunTokens(*engine, tokens, chunk, options.decode, out, layers ? &*layers : nullptr));
  K3_RETURN_IF_ERROR(out.Finish());
  if (!layers.has_value()) return kExitOk;

  nlohmann::ordered_json manifest;
  manifest["tokens"] = tokens;
  manifest["argmax"] = best;
  nlohmann::ordered_json& arrays = manifest["arrays"];
  arrays = nlohmann::ordered_json::object();
  if (logits_beside) {
    arrays["logits"] = {{"file", kLogitsFileName}, {"shape", {tokens_count, config.vocab_size}}};
  }
  K3_RETURN_IF_ERROR(layers->Finish(tokens_count, arrays));
  K3_RETURN_IF_ERROR(WriteFileAtomically(*files, JoinPath(options.hidden_dir, "manifest.json"),
                                         manifest.dump(1) + "\n"));
  return kExitOk;
}

}  // namespace

void AddLogitsCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand(
      "logits", "Write the logits of given token ids, for comparison with other programs.");
  AddModelArgument(*command, &options->dir, "The model's directory; it needs no tokenizer.");
  command
      ->add_option("--tokens", options->tokens,
                   "Token ids, separated by commas, or @FILE with them.")
      ->required()
      ->type_name("IDS");
  command
      ->add_option("--out", options->out,
                   "Receives the logits, little-endian float32 [T, V], row by row; - is standard "
                   "output. Without it they go to logits.f32 in the directory of --hidden.")
      ->type_name("FILE");
  command
      ->add_option("--hidden", options->hidden_dir,
                   "Receives hidden.N.f32, the running sum after layer N [T, D], route.N.i32, the "
                   "chosen experts in ascending order [T, k], and manifest.json with the shapes.")
      ->type_name("DIR");
  CLI::Option* chunk =
      command
          ->add_option("--prefill-chunk", options->prefill_chunk,
                       "Tokens to compute at once, or all. Results do not depend on it. Default: "
                       "512, fewer when their logits would be large.")
          ->type_name("N");
  command
      ->add_flag("--decode", options->decode,
                 "Computes token by token, as generated ones are: attention in its absorbed form, "
                 "which differs by rounding.")
      ->excludes(chunk);
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Example:\n"
      "  k3 logits models/kjv --tokens 1147,258,1805,1243 --out logits.f32 --hidden layers");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Logits(*options); }; });
}

}  // namespace k3::cli
