#pragma once
// model.safetensors.index.json: {"metadata": {...}, "weight_map": {tensor name: shard file name}}.
// Read as a stream, because the official one holds 497,220 names in 50 MB. Failures are Corruption
// and name file, entry, expected and found. Any thread.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace k3 {

/// Decoder layers, both ends included, counted from 0.
struct LayerRange {
  int64_t first = 0;
  int64_t last = 0;
};

/// What the index says about the whole checkpoint, beside its map.
struct ShardIndexMetadata {
  std::optional<int64_t> total_size;
  /// Present in an index that this program wrote for a part of the layers only.
  std::optional<LayerRange> layers;
};

inline constexpr std::string_view kFirstLayerKey = "k3_first_layer";
inline constexpr std::string_view kLastLayerKey = "k3_last_layer";

/// Called for each entry in the order of the file; a failure stops the reading.
using ShardIndexVisitor = std::function<Status(std::string_view tensor, std::string_view shard)>;

/// Reads the text of an index. Shard names have been checked to be plain file names. A tensor named
/// twice is not noticed here: the visitor sees it twice.
Result<ShardIndexMetadata> ReadShardIndex(std::string_view json, std::string_view where,
                                          const ShardIndexVisitor& visit);

}  // namespace k3
