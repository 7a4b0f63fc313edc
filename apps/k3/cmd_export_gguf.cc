// k3 export-gguf: a checkpoint as a GGUF file for llama.cpp.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "commands.h"
#include "engine/engine.h"
#include "engine/gguf_export.h"
#include "engine_options.h"
#include "output_file.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct ExportGgufOptions {
  std::string model_dir;
  std::string out_path;
  std::string trunk = "bf16";
  std::string experts = "mxfp4";
};

// The values that the options take, checked when the command line is parsed.
GgufTrunk TrunkOf(const std::string& name) {
  if (name == "f32") return GgufTrunk::kF32;
  return name == "q8_0" ? GgufTrunk::kQ8 : GgufTrunk::kBf16;
}

GgufExperts ExpertsOf(const std::string& name) {
  if (name == "f32") return GgufExperts::kF32;
  return name == "bf16" ? GgufExperts::kBf16 : GgufExperts::kMxfp4;
}

/// The model's tokenizer; nothing when it has no file of one.
Result<std::optional<Tokenizer>> OpenTokenizerIfAny(const Checkpoint& checkpoint) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string& dir = checkpoint.dir();
  if (!files->Exists(JoinPath(dir, "tiktoken.model")) &&
      !files->Exists(JoinPath(dir, "tokenizer_config.json"))) {
    return std::optional<Tokenizer>();
  }
  K3_TRY(Tokenizer tokenizer, LoadTokenizer(dir, checkpoint.config().vocab_size));
  return std::optional(std::move(tokenizer));
}

/// What the reader of the file should know and the file does not say.
void PrintNotices(const GgufExportSummary& summary, bool has_tokenizer) {
  if (!has_tokenizer) {
    PrintNotice(
        "the model has no tokenizer: its tokens are placeholders, so that ids work and text does "
        "not");
  }
  if (summary.vocabulary.unmerged_count > 0) {
    PrintNotice(fmt::format(
        "{} tokens are no pair of earlier ones, so that text is never encoded with them there",
        summary.vocabulary.unmerged_count));
  }
  if (summary.unblocked_count > 0) {
    PrintNotice(fmt::format("{} matrices stay bf16: their rows are not whole blocks of 32",
                            summary.unblocked_count));
  }
  if (summary.plain_banks_count > 0) {
    PrintNotice(fmt::format("{} banks of experts are bf16: the checkpoint has them not as MXFP4",
                            summary.plain_banks_count));
  }
  if (summary.vision_count > 0) {
    PrintNotice(fmt::format("{} tensors of the vision part are left out", summary.vision_count));
  }
}

Result<int> ExportGgufFile(const ExportGgufOptions& options) {
  if (options.out_path == "-") {
    return InvalidArgument("-: expected a file's name, as GGUF is not written to standard output");
  }
  if (IsNoRegularFile(options.out_path)) {
    return InvalidArgument(options.out_path +
                           ": expected a file or a free name, found something else");
  }
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const Checkpoint checkpoint, Checkpoint::Open(options.model_dir));
  K3_TRY(const std::optional<Tokenizer> tokenizer, OpenTokenizerIfAny(checkpoint));
  ProgressBar bar("writing");
  GgufExport exported;
  exported.checkpoint = &checkpoint;
  exported.tokenizer = tokenizer.has_value() ? &*tokenizer : nullptr;
  exported.out_path = options.out_path;
  // "models/kjv/" and "models/kjv" are both named kjv.
  exported.name =
      std::filesystem::weakly_canonical(std::filesystem::path(options.model_dir)).filename();
  exported.types = {.trunk = TrunkOf(options.trunk), .experts = ExpertsOf(options.experts)};
  exported.progress = [&](int64_t done, int64_t total) { bar.Update(done, total); };
  CatchTermination();
  exported.should_stop = [] { return WasInterrupted(); };
  Result<GgufExportSummary> exported_or = ExportGguf(*files, exported);
  if (!exported_or.ok() && WasInterrupted()) {
    bar.Clear();
    PrintNotice(exported_or.status().message());
    return kExitInterrupted;
  }
  K3_TRY(const GgufExportSummary summary, std::move(exported_or));
  bar.Clear();
  PrintNotices(summary, tokenizer.has_value());
  K3_RETURN_IF_ERROR(
      WriteOutput(fmt::format("{}: {} tensors, {}\n", options.out_path, summary.tensors_count,
                              FormatBytes(summary.file_bytes))));
  return kExitOk;
}

}  // namespace

void AddExportGgufCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<ExportGgufOptions>();
  CLI::App* command =
      app.add_subcommand("export-gguf", "Write a model as a GGUF file, which llama.cpp runs.");
  AddModelArgument(*command, &options->model_dir, "The model's directory.");
  command
      ->add_option("OUT", options->out_path, "The file to write; an older GGUF file is replaced.")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--trunk", options->trunk,
                   "How matrices other than the experts' are stored: bf16, f32 or q8_0. Norms, "
                   "convolutions, the router and other small tensors are always float32.")
      ->check(CLI::IsMember({"bf16", "f32", "q8_0"}))
      ->type_name("TYPE")
      ->capture_default_str();
  command
      ->add_option("--experts", options->experts,
                   "How routed experts are stored: mxfp4 keeps the checkpoint's codes, bf16 and "
                   "f32 hold the same values.")
      ->check(CLI::IsMember({"mxfp4", "bf16", "f32"}))
      ->type_name("TYPE")
      ->capture_default_str();
  command->footer(
      "The architecture is kimi-k3. Models without its fixed parts (a full-rank KDA gate, as many\n"
      "KDA heads as MLA heads, experts in every layer behind the dense ones) are refused.\n\n"
      "Example:\n"
      "  k3 export-gguf models/kjv kjv.gguf");
  command->callback([options, &invocation] {
    invocation.command = [options] { return ExportGgufFile(*options); };
  });
}

}  // namespace k3::cli
