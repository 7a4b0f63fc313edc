#pragma once
// The state of a training run in one file, from which it goes on to the same bits: masters with
// correction biases, the optimizer's moments, and where the run stands.
//
//   K3_RETURN_IF_ERROR(SaveTrainingState(files, path, progress, set, optimizer));
//   K3_TRY(const TrainingProgress progress,
//          LoadTrainingState(files, path, fingerprint, &set, &optimizer));
//   set.Round(&pool, rounding);
//
// A safetensors file of float32 tensors "master.NAME", "momentum.NAME" (Muon) or "moment1.NAME" and
// "moment2.NAME" (AdamW), under relative names. Its __metadata__ has "format" "k3-training",
// "version", "step", "tokens", "optimizer_steps", "data_state", "fingerprint" and "xxh3_64", the
// XXH3 hash of the other fields and the data section in 16 hexadecimal digits. Written under
// another name, synced and renamed: the old file stays whole until the new one is. Loading checks
// everything, the hash too, before it changes set and optimizer; a read that fails after that
// leaves them undefined.
//
// One thread. Failures: NotFound; Corruption for a damaged file; InvalidArgument for a file of
// another version, configuration or optimizer; ResourceExhausted for a full disk; IoError.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sys/file.h"
#include "train/optimizer.h"
#include "train/parameter_set.h"

namespace k3::train {

struct TrainingProgress {
  int64_t step = 0;
  int64_t tokens = 0;
  /// Where the data stands, as the caller's text.
  std::string data_state;
  /// What has to be the same to go on: see Fingerprint.
  std::string fingerprint;
};

/// 16 hexadecimal digits that stand for `text`, such as everything that a run is configured by.
std::string Fingerprint(std::string_view text);

Status SaveTrainingState(FileSystem& files, const std::string& path,
                         const TrainingProgress& progress, ParameterSet& set, Optimizer& optimizer);

/// An empty `fingerprint` fits every file.
Result<TrainingProgress> LoadTrainingState(FileSystem& files, const std::string& path,
                                           std::string_view fingerprint, ParameterSet* set,
                                           Optimizer* optimizer);

}  // namespace k3::train
