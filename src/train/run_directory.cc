#include "train/run_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "config/json.h"
#include "train/export.h"
#include "train/training_state.h"

namespace k3::train {
namespace {

constexpr std::string_view kLockName = "training.lock";
constexpr std::string_view kModelName = "tiktoken.model";
constexpr std::string_view kTokenizerConfigName = "tokenizer_config.json";

std::string ShardName(int64_t step) { return fmt::format("model-{:06}", step); }

/// Whether `name` is a shard that a run writes: model-STEP.safetensors or model-STEP-N.safetensors.
bool IsShardName(std::string_view name) {
  constexpr std::string_view kBefore = "model-", kAfter = ".safetensors";
  if (name.size() <= kBefore.size() + kAfter.size() || !name.starts_with(kBefore) ||
      !name.ends_with(kAfter)) {
    return false;
  }
  name = name.substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size());
  return name.find_first_not_of("0123456789-") == std::string_view::npos;
}

/// Whether `name` is a file of a run under the name that it has while it is written.
bool IsPartialName(std::string_view name) {
  constexpr std::string_view kPartial = ".partial";
  if (!name.ends_with(kPartial)) return false;
  name.remove_suffix(kPartial.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  name = name.substr(0, dot);
  return IsShardName(name) || name == kIndexFileName || name == kConfigFileName ||
         name == kModelName || name == kTokenizerConfigName || name == kTrainingStateName ||
         name == kMetricsName || name == kValidationTextName;
}

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
        "{}: the run was begun with other settings: {}: expected {}, found {}; give the command "
        "that it was begun with, or begin a new run in another directory",
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
  if (!resume && has_state) {
    return InvalidArgument(fmt::format(
        "{}: expected a directory without a training run, found one; add --resume to go on with "
        "it, or give another directory to --out",
        dir));
  }
  if (has_state || !files.Exists(dir)) return OkStatus();
  K3_TRY(const std::vector<std::string> names, files.List(dir));
  // The lock is the mark of a run that was ended before its first save.
  const bool is_ours = std::ranges::count(names, kLockName) > 0;
  for (const std::string& name : names) {
    const bool is_model =
        name == kConfigFileName || name == kIndexFileName || name == kSingleShardFileName;
    const bool is_output = name == kMetricsName || name == kValidationTextName;
    if (!is_model && (is_ours || !is_output)) continue;
    return InvalidArgument(fmt::format(
        "{}: expected a directory without files of a model or a run, found {}, which is not "
        "overwritten; give another directory to --out",
        dir, name));
  }
  return OkStatus();
}

Result<FileLock> LockRunDirectory(const std::string& dir) {
  Result<FileLock> lock = FileLock::Acquire(JoinPath(dir, kLockName));
  if (lock.ok() || lock.status().code() != StatusCode::kUnavailable) return lock;
  return Unavailable(fmt::format(
      "{}: another k3 train is at work in this directory; wait for it, or give another directory "
      "to --out",
      dir));
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
      return InvalidArgument(fmt::format(
          "{}: expected the tokenizer of {} or none, found another one, which is not overwritten; "
          "give another directory to --out",
          to, config.data.tokenizer_dir));
    }
    K3_RETURN_IF_ERROR(WriteFileAtomically(files, to, content));
  }
  if (validation_text.empty()) return OkStatus();
  return WriteFileAtomically(files, JoinPath(dir, kValidationTextName), validation_text);
}

namespace {

/// Whether the directory holds the whole checkpoint of a step.
bool HasCheckpoint(FileSystem& files, const std::string& dir, int64_t step) {
  const Result<std::set<std::string>> shards = IndexedShards(files, dir);
  if (!shards.ok() || shards->size() != 1) return false;
  const std::string& shard = *shards->begin();
  const std::string name = ShardName(step);
  if (!shard.starts_with(name + ".") && !shard.starts_with(name + "-")) return false;
  return Checkpoint::Open(dir).ok();
}

}  // namespace

Status RepairRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                 int64_t steps_done, const ParameterSet& set) {
  if (steps_done >= 0 && !HasCheckpoint(files, dir, steps_done)) {
    const Result<std::set<std::string>> shards = IndexedShards(files, dir);
    const bool all_ours = !shards.ok() || std::ranges::all_of(*shards, IsShardName);
    const std::string index = JoinPath(dir, kIndexFileName);
    // Without its index a damaged checkpoint of ours is in nobody's way.
    if (all_ours && files.Exists(index)) K3_RETURN_IF_ERROR(files.Remove(index));
    K3_RETURN_IF_ERROR(ExportRun(files, dir, config, steps_done, set));
  }
  const Result<std::set<std::string>> shards = IndexedShards(files, dir);
  K3_TRY(const std::vector<std::string> names, files.List(dir));
  const bool has_index = std::ranges::count(names, kIndexFileName) > 0;
  for (const std::string& file : names) {
    const std::string path = JoinPath(dir, file);
    bool left = IsPartialName(file);
    if (has_index && shards.ok() && !shards->contains(file) && IsShardName(file)) {
      const Result<bool> exported = IsExportedShard(files, path);
      left = exported.ok() && *exported;
    }
    if (left) K3_RETURN_IF_ERROR(files.Remove(path));
  }
  return OkStatus();
}

Status SaveRunState(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                    const RunPosition& position, ParameterSet& set, Optimizer& optimizer) {
  const TrainingProgress progress{.step = position.steps_done,
                                  .tokens = position.steps_done * config.tokens_per_step(),
                                  .data_state = FormatDataState(config, position.packing),
                                  .fingerprint = Fingerprint(config.Identity())};
  return SaveTrainingState(files, JoinPath(dir, kTrainingStateName), progress, set, optimizer);
}

Status ExportRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                 int64_t steps_done, const ParameterSet& set) {
  return ExportCheckpoint(
      files, {.dir = dir, .shard_name = ShardName(steps_done), .config_json = config.model_json},
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
