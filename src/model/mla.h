#pragma once
// Gated multi-head latent attention without positions (NoPE).

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// out [T, D] = gated MLA of the normed rows x [T, D]; appends each segment's latents to its state.
void Mla(const ops::ExecContext& exec, const ModelConfig& config, const MlaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out);

}  // namespace k3::model
