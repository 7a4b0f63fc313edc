#include "train/run_directory.h"

#include <fmt/format.h>

#include <charconv>

#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "config/json.h"
#include "train/export.h"
#include "train/training_state.h"

namespace k3::train {
namespace {

constexpr std::string_view kModelName = "tiktoken.model";
constexpr std::string_view kTokenizerConfigName = "tokenizer_config.json";

/// 64-bit numbers of the state go as text: JSON's integers are signed here.
std::string Digits(uint64_t value) { return fmt::format("{}", value); }

bool ParseDigits(const JsonValue* value, uint64_t* number) {
  if (value == nullptr || value->string() == nullptr) return false;
  const std::string& text = *value->string();
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && stop == text.data() + text.size();
}

std::string FormatDataState(const TrainingConfig& config, const PackingState& packing) {
  JsonValue::Members members;
  members.emplace_back("identity", JsonValue(config.Identity()));
  members.emplace_back("packing", JsonValue(JsonValue::Members{
                                      {"seed", JsonValue(Digits(packing.seed))},
                                      {"fingerprint", JsonValue(Digits(packing.fingerprint))},
                                      {"sequence_length", JsonValue(packing.sequence_length)},
                                      {"epoch", JsonValue(packing.epoch)},
                                      {"sequence", JsonValue(packing.sequence)}}));
  return DumpJson(JsonValue(std::move(members)));
}

/// The first setting that is not what the run was begun with.
Status CompareIdentity(const std::string& begun, const std::string& now, const std::string& where) {
  if (begun == now) return OkStatus();
  K3_TRY(const JsonValue before, ParseJson(begun, where));
  K3_TRY(const JsonValue after, ParseJson(now, where));
  for (const auto& [name, value] : *after.members()) {
    const JsonValue* old = before.Find(name);
    const std::string expected = old != nullptr ? DumpJson(*old) : "nothing";
    if (expected == DumpJson(value)) continue;
    const bool is_model = name == "model";
    return InvalidArgument(fmt::format(
        "{}: the run was begun with another {}: expected {}, found {}; resume it with the settings "
        "it has, or begin a new one in another directory",
        where, name, is_model ? "its config.json" : expected,
        is_model ? "a changed one" : DumpJson(value)));
  }
  return InvalidArgument(fmt::format("{}: the run was begun by another version of k3", where));
}

Status BadState(const std::string& path) {
  return Corruption(
      fmt::format("{}: data_state: expected where the data stands, found something "
                  "else; begin the run again in another directory",
                  path));
}

}  // namespace

bool HasTrainingState(FileSystem& files, const std::string& dir) {
  return files.Exists(JoinPath(dir, kTrainingStateName));
}

Status CheckRunDirectory(FileSystem& files, const std::string& dir, bool resume) {
  const bool has_state = HasTrainingState(files, dir);
  const std::string config = JoinPath(dir, kConfigFileName);
  if (!resume && has_state) {
    return InvalidArgument(fmt::format(
        "{}: expected a directory without a training run, found one; add --resume to go on with "
        "it, or give another directory to --out",
        dir));
  }
  if (!has_state && files.Exists(config)) {
    return InvalidArgument(fmt::format(
        "{}: expected a directory without a model, found {}, which is not overwritten; give "
        "another directory to --out",
        dir, config));
  }
  return OkStatus();
}

Result<Tokenizer> OpenTrainingTokenizer(FileSystem& files, const std::string& dir,
                                        int64_t vocab_size) {
  const std::string model_path = JoinPath(dir, kModelName);
  const std::string config_path = JoinPath(dir, kTokenizerConfigName);
  K3_TRY(const std::string model, ReadWholeFile(files, model_path, limits::kTokenizerFileBytesMax));
  K3_TRY(const std::string config,
         ReadWholeFile(files, config_path, limits::kTokenizerFileBytesMax));
  return Tokenizer::Create({.model = model,
                            .model_where = model_path,
                            .config = config,
                            .config_where = config_path,
                            .vocab_size = vocab_size});
}

Status StartRunDirectory(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                         std::string_view validation_text) {
  K3_RETURN_IF_ERROR(files.MakeDirectories(dir));
  for (const std::string_view name : {kModelName, kTokenizerConfigName}) {
    const std::string from = JoinPath(config.data.tokenizer_dir, name), to = JoinPath(dir, name);
    K3_TRY(const std::string content, ReadWholeFile(files, from, limits::kTokenizerFileBytesMax));
    if (files.Exists(to)) {
      K3_TRY(const std::string there, ReadWholeFile(files, to, limits::kTokenizerFileBytesMax));
      if (there == content) continue;
    }
    K3_RETURN_IF_ERROR(WriteFileAtomically(files, to, content));
  }
  if (validation_text.empty()) return OkStatus();
  return WriteFileAtomically(files, JoinPath(dir, kValidationTextName), validation_text);
}

Status SaveRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
               const RunPosition& position, ParameterSet& set, Optimizer& optimizer) {
  const TrainingProgress progress{.step = position.steps_done,
                                  .tokens = position.steps_done * config.tokens_per_step(),
                                  .data_state = FormatDataState(config, position.packing),
                                  .fingerprint = Fingerprint(config.Identity())};
  K3_RETURN_IF_ERROR(
      SaveTrainingState(files, JoinPath(dir, kTrainingStateName), progress, set, optimizer));
  return ExportCheckpoint(files,
                          {.dir = dir,
                           .shard_name = fmt::format("model-{:06}", position.steps_done),
                           .config_json = config.model_json},
                          set);
}

Result<RunPosition> LoadRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                            ParameterSet* set, Optimizer* optimizer) {
  const std::string path = JoinPath(dir, kTrainingStateName);
  K3_TRY(const TrainingProgress progress, LoadTrainingState(files, path, "", set, optimizer));
  K3_TRY(const JsonValue state, ParseJson(progress.data_state, path));
  const JsonValue* identity = state.Find("identity");
  const JsonValue* packing = state.Find("packing");
  if (identity == nullptr || identity->string() == nullptr || packing == nullptr) {
    return BadState(path);
  }
  K3_RETURN_IF_ERROR(CompareIdentity(*identity->string(), config.Identity(), path));
  RunPosition position{.steps_done = progress.step};
  const auto integer = [&](std::string_view name, int64_t* value) {
    const JsonValue* found = packing->Find(name);
    if (found == nullptr || found->integer() == nullptr) return false;
    *value = *found->integer();
    return true;
  };
  if (!ParseDigits(packing->Find("seed"), &position.packing.seed) ||
      !ParseDigits(packing->Find("fingerprint"), &position.packing.fingerprint) ||
      !integer("sequence_length", &position.packing.sequence_length) ||
      !integer("epoch", &position.packing.epoch) ||
      !integer("sequence", &position.packing.sequence)) {
    return BadState(path);
  }
  return position;
}

}  // namespace k3::train
