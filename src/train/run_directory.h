#pragma once
// The directory of a training run: what is in it, how it is begun, saved and read back.
//
//   config.json, model-STEP.safetensors, model.safetensors.index.json, tiktoken.model,
//   tokenizer_config.json    the checkpoint of the last save, which `k3 run DIR` loads
//   training_state.safetensors   masters, moments and where the data stands, to resume from
//   metrics.jsonl            the curve
//   validation.txt           the held-out text, when it was cut from the training text
//   training.lock            held by the process that trains here
//
// Every file but the metrics is replaced whole. The training state is written first: a run that is
// killed between the two goes on from the newer state and writes the checkpoint again. One thread.
// Failures name the file and, for a run that is resumed with other settings, the field.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "data/packed_batches.h"
#include "sys/file.h"
#include "sys/file_lock.h"
#include "text/tokenizer.h"
#include "train/optimizer.h"
#include "train/parameter_set.h"
#include "train/training_config.h"

namespace k3::train {

inline constexpr std::string_view kMetricsName = "metrics.jsonl";
inline constexpr std::string_view kTrainingStateName = "training_state.safetensors";
inline constexpr std::string_view kValidationTextName = "validation.txt";

/// Where a run stands.
struct RunPosition {
  int64_t steps_done = 0;
  PackingState packing;
};

/// InvalidArgument when a run would write over something else: a new run needs a directory without
/// checkpoint and state, a resumed one with neither or with both.
Status CheckRunDirectory(FileSystem& files, const std::string& dir, bool resume);
bool HasTrainingState(FileSystem& files, const std::string& dir);
/// Unavailable when another process trains in this directory.
Result<FileLock> LockRunDirectory(const std::string& dir);

Result<Tokenizer> OpenTrainingTokenizer(FileSystem& files, const std::string& dir,
                                        int64_t vocab_size);

/// Makes the directory and puts the files there that do not change: tokenizer and held-out text.
Status StartRunDirectory(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                         std::string_view validation_text);

/// Writes the checkpoint of the position again when it is not there whole, be it that a kill came
/// between state and checkpoint or that it was damaged, and removes what a killed run left half
/// done. A negative step: there is no checkpoint yet.
Status RepairRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                 int64_t steps_done, const ParameterSet& set);

/// A save is both, the state first.
Status SaveRunState(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                    const RunPosition& position, ParameterSet& set, Optimizer& optimizer);
Status ExportRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                 int64_t steps_done, const ParameterSet& set);

/// Reads the training state into set and optimizer, after a check that `config` is what the run was
/// begun with.
Result<RunPosition> LoadRun(FileSystem& files, const std::string& dir, const TrainingConfig& config,
                            ParameterSet* set, Optimizer* optimizer);

}  // namespace k3::train
