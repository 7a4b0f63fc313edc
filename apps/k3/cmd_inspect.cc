// k3 inspect: what a checkpoint or a configuration holds, and what running it needs.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/limits.h"
#include "cache/sequence_state.h"
#include "commands.h"
#include "engine_options.h"
#include "inspect_report.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr size_t kOutputPieceBytes = 256 << 10;

struct InspectOptions {
  std::string path;
  bool tensors = false;
  bool json = false;
};

/// A short, a usual, a long and the longest sequence, as far as the model goes.
std::vector<std::pair<int64_t, int64_t>> StateSizes(const ModelConfig& config) {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (int64_t tokens : {1024, 8192, 131'072, 1'048'576}) {
    const bool last = tokens >= config.context_max;
    tokens = std::min<int64_t>(tokens, config.context_max);
    sizes.emplace_back(tokens, cache::SequenceStateBytes(config, tokens));
    if (last) break;
  }
  return sizes;
}

Result<InspectReport> InspectConfig(const std::string& path) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const std::string json, ReadWholeFile(*files, path, limits::kConfigFileBytesMax));
  InspectReport report;
  report.path = path;
  K3_TRY(report.config, ParseModelConfig(json, path));
  report.parameters = CountParameters(report.config);
  return report;
}

Result<InspectReport> InspectCheckpoint(const Checkpoint& checkpoint) {
  InspectReport report;
  report.path = checkpoint.dir();
  report.config = checkpoint.config();
  report.parameters = CountParameters(checkpoint);
  CheckpointFacts facts;
  facts.shards.assign(checkpoint.shards().begin(), checkpoint.shards().end());
  facts.partial_layers = checkpoint.partial_layers();
  K3_TRY(facts.difference, CompareWithInventory(checkpoint, kDifferenceListedMax));
  report.checkpoint = std::move(facts);
  return report;
}

/// Opens the checkpoint, or says that its configuration could be inspected alone.
Result<Checkpoint> OpenCheckpoint(const std::string& dir) {
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir);
  if (checkpoint.ok() || checkpoint.status().code() != StatusCode::kNotFound) return checkpoint;
  std::error_code error;
  const std::string config = JoinPath(dir, kConfigFileName);
  if (!std::filesystem::exists(config, error)) return checkpoint;
  return NotFound(fmt::format("{}; `k3 inspect {}` tells what the configuration alone does",
                              checkpoint.status().message(), config));
}

Status PrintTensors(const Checkpoint& checkpoint) {
  std::string piece;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    piece += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", tensor.name, DTypeName(tensor.dtype),
                         tensor.shape.ToString(), tensor.bytes,
                         checkpoint.shards()[static_cast<size_t>(tensor.shard)].file_name,
                         tensor.file_offset);
    if (piece.size() < kOutputPieceBytes) continue;
    K3_RETURN_IF_ERROR(WriteOutput(piece));
    piece.clear();
  }
  return WriteOutput(piece);
}

Result<int> Inspect(const InspectOptions& options) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(options.path, error);
  if (options.tensors && is_file) {
    return InvalidArgument(fmt::format(
        "{}: --tensors: expected a checkpoint's directory, found a file", options.path));
  }
  std::optional<Checkpoint> checkpoint;
  if (!is_file) {
    K3_TRY(Checkpoint opened, OpenCheckpoint(options.path));
    checkpoint.emplace(std::move(opened));
  }
  if (options.tensors) {
    K3_RETURN_IF_ERROR(PrintTensors(*checkpoint));
    return kExitOk;
  }
  K3_TRY(InspectReport report,
         is_file ? InspectConfig(options.path) : InspectCheckpoint(*checkpoint));
  report.state_bytes = StateSizes(report.config);
  report.memory = ReadMemoryFacts();
  K3_RETURN_IF_ERROR(
      WriteOutput(options.json ? FormatReportJson(report) : FormatReportText(report)));
  return kExitOk;
}

}  // namespace

void AddInspectCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's configuration, parameters, files and memory needs.");
  AddModelArgument(*command, &options->path,
                   "The model's directory, or a config.json alone: then everything is counted "
                   "from the configuration.");
  CLI::Option* json = command->add_flag("--json", options->json, "Prints JSON, with every shard.");
  command
      ->add_flag("--tensors", options->tensors,
                 "Lists every tensor instead, with tabs between: name, type, shape, bytes, shard "
                 "and offset in the shard.")
      ->excludes(json);
  command->footer(
      "No weights are read: headers and configuration suffice. Layers are counted from 0.\n\n"
      "Examples:\n"
      "  k3 inspect models/kjv\n"
      "  k3 inspect models/kjv --tensors | grep self_attn\n"
      "  k3 inspect models/kjv/config.json --json");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Inspect(*options); }; });
}

}  // namespace k3::cli
