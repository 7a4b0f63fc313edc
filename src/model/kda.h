#pragma once
// Kimi Delta Attention: a gated delta rule with a decay for every key channel and no positions.

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// out [T, D] = KDA of the normed rows x [T, D]; reads and updates each segment's state.
void Kda(const ops::ExecContext& exec, const ModelConfig& config, const KdaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out);

}  // namespace k3::model
