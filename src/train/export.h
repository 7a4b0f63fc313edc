#pragma once
// Writes a ParameterSet as an official checkpoint: one safetensors shard, config.json and the
// index.
//
//   K3_RETURN_IF_ERROR(ExportCheckpoint(files, {dir, "model-000500", config_json}, set));
//
// What is written is what the last Round made: bf16 and float32 as they are stored, routed experts
// as the very MXFP4 codes and scales that the model was trained with, or bf16 without quantisation.
// Names are the released model's. The index is written last and names the shard, so that a process
// that dies at any moment leaves the earlier export or the new one; the earlier one's shard is
// removed after that. Tokenizer files are the caller's. One thread; nothing is kept.
//
// Failures: InvalidArgument for a directory that holds a checkpoint of other origin, whose shards
// an export must not remove, or for a configuration that is none; ResourceExhausted for a full
// disk; else what the file system reports.

#include <set>
#include <string>

#include "base/status.h"
#include "sys/file.h"
#include "train/parameter_set.h"

namespace k3::train {

struct ExportTarget {
  std::string dir;
  /// The shard's file name without ".safetensors"; gets a suffix when an earlier export has it.
  std::string shard_name;
  /// Gets or loses its quantization_config by what the experts are (exported_config.h).
  std::string config_json;
};

/// The shards that the directory's index names; none without an index.
Result<std::set<std::string>> IndexedShards(FileSystem& files, const std::string& dir);
/// Whether the shard is one that ExportCheckpoint wrote.
Result<bool> IsExportedShard(FileSystem& files, const std::string& path);

Status ExportCheckpoint(FileSystem& files, const ExportTarget& target, const ParameterSet& set);

}  // namespace k3::train
