#pragma once
// A plain float64 K3 for tests: token by token, no chunks, no blocks, no threads, every variant of
// the architecture that the configuration allows. Written from the formulas of the technical report
// and sharing no code with the engine but the readers of stored numbers.

#include <cstdint>
#include <vector>

#include "config/model_config.h"
#include "model/parameters.h"

namespace k3::model {

struct ReferenceResult {
  std::vector<double> logits;               // [T, V]
  std::vector<std::vector<double>> hidden;  // [layers][T, D]
  /// Per token the smallest distance between the last chosen and the first refused expert.
  std::vector<double> route_margin;  // [T]
};

ReferenceResult RunReference(const ModelConfig& config, const Parameters& parameters,
                             const std::vector<int32_t>& tokens);

}  // namespace k3::model
