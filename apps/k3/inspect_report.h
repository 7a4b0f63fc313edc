#pragma once
// InspectReport: what `k3 inspect` found out about a checkpoint or a configuration, and its two
// printed forms. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "parameter_table.h"
#include "sys/machine.h"
#include "weights/inventory.h"

namespace k3::cli {

/// Missing and unexpected tensors are listed up to this many of each.
inline constexpr int64_t kDifferenceListedMax = 1000;

/// What only a checkpoint knows.
struct CheckpointFacts {
  std::vector<ShardInfo> shards;
  std::optional<LayerRange> partial_layers;
  InventoryDifference difference;
};

struct InspectReport {
  std::string path;
  ModelConfig config;
  ParameterTable parameters;
  std::optional<CheckpointFacts> checkpoint;  // absent for a configuration alone
  /// Tokens in a sequence, and the bytes of its state.
  std::vector<std::pair<int64_t, int64_t>> state_bytes;
  MemoryFacts memory;

  /// Bytes of the weights that a run reads: everything but vision and other.
  int64_t text_bytes() const;
  bool fits_in_memory() const { return text_bytes() <= memory.available_bytes; }
};

std::string FormatReportText(const InspectReport& report);
std::string FormatReportJson(const InspectReport& report);

/// "2.78 T", "104.19 B", "8.02 M".
std::string FormatCount(int64_t count);

}  // namespace k3::cli
