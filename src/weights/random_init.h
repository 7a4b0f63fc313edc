#pragma once
// WriteRandomCheckpoint: a checkpoint of random numbers in the official layout, for tests,
// benchmarks of any size and the start of training.
//
// Layer l lies in shards of its own, embedding, final norms and head in the last; files are named
// model-00001-of-00096.safetensors. A tensor's bytes depend on (seed, name, shape, type) alone. The
// numbers keep activations at order one through all layers: matrices N(0, gain^2 / in) in bf16 (or
// MXFP4 for experts of a quantised configuration), norms 1 + 0.2 N, KDA's own within its gates'
// useful range.
//
// A marker file stands in the directory until everything is synced; a directory that holds it does
// not open. After a failure the files written so far are removed. One thread calls; `threads_count`
// fill buffers. Memory: about 10 MB and one layer's names.
//
// Failures: InvalidArgument for a bad configuration or layer range or a directory that is in use,
// ResourceExhausted (path and bytes needed) for a full disk, else the file system's.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/shard_index.h"
#include "sys/file.h"

namespace k3 {

struct RandomCheckpointProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;  // tensor bytes, headers left out
  std::string_view file_name;
};

struct RandomCheckpointOptions {
  std::string config_json;
  std::string out_dir;
  uint64_t seed = 0;
  /// Absent: all layers and the outer tensors. A part holds tensors of its layers only, and its
  /// index says so (Checkpoint::partial_layers).
  std::optional<LayerRange> layers;
  /// A layer beyond this is cut between experts or tensors; a single tensor may still be larger.
  int64_t shard_bytes_max = int64_t{20} << 30;
  int threads_count = 1;
  /// Called from the calling thread every few megabytes; may be empty.
  std::function<void(const RandomCheckpointProgress&)> progress;
};

struct RandomCheckpointSummary {
  int64_t shards_count = 0;
  int64_t tensors_count = 0;
  int64_t tensor_bytes = 0;
};

Result<RandomCheckpointSummary> WriteRandomCheckpoint(FileSystem& files,
                                                      const RandomCheckpointOptions& options);

}  // namespace k3
