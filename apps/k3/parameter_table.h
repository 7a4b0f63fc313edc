#pragma once
// ParameterTable: what a model's parameters are spent on, counted from a checkpoint's tensors or
// from a configuration alone. A value; nothing fails. Counts are of numbers, not of stored
// elements: two MXFP4 codes lie in one byte, and their scales are no parameters.
// Source: technical report, model sizes, for what counts as active.

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"

namespace k3::cli {

enum class Component {
  kEmbedding,
  kHead,
  kKda,
  kMla,
  kDense,
  kRouter,
  kLatentProjections,
  kSharedExperts,
  kRoutedExperts,
  kNorms,   // between blocks, with the queries of the attention residuals
  kVision,  // listed, but no part of the text model
  kOther,   // tensors that the configuration does not account for
};
inline constexpr int kComponentsCount = 12;

std::string_view ComponentName(Component component);

struct ComponentRow {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;              // as stored
  int64_t active_parameters = 0;  // used for one token
  int64_t active_bytes = 0;       // read for one token
  std::set<std::string, std::less<>> types;
};

struct ParameterTable {
  std::array<ComponentRow, kComponentsCount> rows;
  ComponentRow total;

  const ComponentRow& operator[](Component component) const {
    return rows[static_cast<size_t>(component)];
  }
};

/// From what the shards hold.
ParameterTable CountParameters(const Checkpoint& checkpoint);
/// From what the configuration asks for, in the types of the official checkpoint; vision left out.
ParameterTable CountParameters(const ModelConfig& config);

}  // namespace k3::cli
