#pragma once
// Feed-forward blocks: the dense SiTU MLP of the first layers, and the Stable LatentMoE.

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// out [T, D] = W_down SiTU(W_gate x, W_up x).
void DenseMlp(const ops::ExecContext& exec, const ModelConfig& config,
              const MlpParameters& parameters, const ops::RowSet& x, float* out);

/// out [T, D] = W_up_latent RMS(sum of the chosen experts in latent space) + shared(x). A token's
/// routed sum is taken in ascending expert order, ties of the choice go to the lower expert.
/// Fails only when the context's expert source does.
Status LatentMoe(const ForwardContext& ctx, const ModelConfig& config,
                 const MoeParameters& parameters, int64_t layer, const ops::RowSet& x, float* out);

}  // namespace k3::model
