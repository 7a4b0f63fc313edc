#pragma once
// Checkpoint: a directory with config.json and safetensors shards, opened for reading.
//
//   K3_TRY(const Checkpoint checkpoint, Checkpoint::Open("models/kjv"));
//   K3_TRY(TensorView embed, checkpoint.Find("language_model.model.embed_tokens.weight"));
//
// Opening reads the configuration, the index and every shard's header, and checks that they agree;
// tensor bytes are mapped and read only when touched. The checkpoint owns the mappings: views
// from it are valid while it lives (moving it is fine). All const members may be called from any
// thread. A table entry takes about 100 bytes beside its name, so half a million tensors take some
// 90 MB.
//
// Failures: NotFound for a missing directory, shard or tensor, Corruption for a damaged, half-
// written or contradictory one, InvalidArgument for a configuration this engine cannot run.
// Messages name file, tensor or field, expected, found and what to do.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/name_arena.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "config/model_config.h"
#include "sys/file.h"
#include "sys/thread_pool.h"
#include "tensor/tensor_view.h"

namespace k3 {

inline constexpr std::string_view kConfigFileName = "config.json";
inline constexpr std::string_view kGenerationConfigFileName = "generation_config.json";
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleShardFileName = "model.safetensors";
/// Present while a checkpoint is being written; a directory that holds it does not open.
inline constexpr std::string_view kIncompleteMarkerName = ".incomplete";

/// "dir/name", whether or not `dir` ends in a slash.
std::string JoinPath(std::string_view dir, std::string_view name);

struct ShardInfo {
  std::string file_name;
  std::string path;
  int64_t file_bytes = 0;
  int64_t data_offset = 0;
  int64_t tensors_count = 0;
};

class Checkpoint {
 public:
  static Result<Checkpoint> Open(const std::string& dir);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  /// The text of config.json, for copying it verbatim.
  const std::string& config_json() const { return config_json_; }
  /// All fields empty when there is no generation_config.json.
  const GenerationConfig& generation_config() const { return generation_config_; }
  /// The layers present, when the checkpoint says that it holds only a part.
  const std::optional<LayerRange>& partial_layers() const { return partial_layers_; }

  /// Every tensor, vision included, by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  /// By file name.
  std::span<const ShardInfo> shards() const { return shards_; }
  /// Sum over all tensors.
  int64_t tensor_bytes() const { return tensor_bytes_; }

  /// Null when there is no such tensor. Points into tensors().
  const TensorInfo* Lookup(std::string_view name) const;
  /// The tensors whose names start with `prefix`.
  std::span<const TensorInfo> WithPrefix(std::string_view prefix) const;
  Result<TensorView> Find(std::string_view name) const;
  /// The bytes of one of tensors().
  TensorView View(const TensorInfo& tensor) const;

  /// Maps what the system holds of the first `bytes_max` bytes of the shards, on all threads:
  /// MappedFile::MapResident.
  void MapResident(ThreadPool& pool, int64_t bytes_max) const;

 private:
  Checkpoint() = default;

  Status ReadConfigs(FileSystem& files);
  Status OpenShards(FileSystem& files, std::vector<std::string> file_names,
                    int64_t tensors_count_hint);
  Status OpenIndexed(FileSystem& files);
  Status CheckIndex(std::string_view index, const std::string& path) const;
  Status BuildTable();

  std::string dir_;
  ModelConfig config_;
  std::string config_json_;
  GenerationConfig generation_config_;
  std::optional<LayerRange> partial_layers_;
  std::vector<ShardInfo> shards_;
  std::vector<MappedFile> mapped_;  // [shards]
  std::vector<NameArena> names_;    // [shards]
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> slots_;  // open addressing: 1 + index into tensors_, 0 for free
  int64_t tensor_bytes_ = 0;
};

}  // namespace k3
