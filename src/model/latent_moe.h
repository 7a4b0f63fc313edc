#pragma once
// Feed-forward blocks: the dense SiTU MLP of the first layers, and the Stable LatentMoE.

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// What the backward pass needs of an MLP, before SiTU. Null arrays: computed again.
struct MlpTape {
  float* gate = nullptr;  // [T, F]
  float* up = nullptr;    // [T, F]
};

/// Which experts each token goes to, and which tokens each expert gets. A pair is a token and one
/// of its experts; places are pairs in expert-major order.
struct Routing {
  int32_t* experts = nullptr;  // [T, k] ascending
  float* weights = nullptr;    // [T, k]
  int32_t* slot = nullptr;     // [T, k] place of the pair
  int32_t* token = nullptr;    // [T k] token of each place
  int32_t* first = nullptr;    // [E + 1] an expert's first place

  static Routing Allocate(Arena& arena, const MoeConfig& moe, int64_t tokens);
};

/// What the backward pass needs of a LatentMoE. The routed experts' arrays and the shared MLP's may
/// be null: computed again.
struct MoeTape {
  Routing routing;
  float* scores = nullptr;  // sigmoids [T, E]
  float* latent = nullptr;  // W_down x [T, L], as the experts saw it; null without a latent
  float* routed = nullptr;  // sum over experts [T, L], before the norm
  float* gate = nullptr;    // w1 z by place [T k, F]
  float* up = nullptr;      // w3 z by place [T k, F]
  MlpTape shared;           // [T, F x shared experts]

  static MoeTape Allocate(Arena& arena, const ModelConfig& config, int64_t tokens,
                          bool keep_experts, bool keep_shared);
};

/// out [T, D] = W_down SiTU(W_gate x, W_up x). `tape` may be null.
void DenseMlp(const ops::ExecContext& exec, const ModelConfig& config,
              const MlpParameters& parameters, const ops::RowSet& x, float* out, MlpTape* tape);

/// dx [T, D] from dout [T, D], x [T, D] being the input rows as they are; adds to the weights'
/// gradients. `tape` is used up. Matrices are float32.
void DenseMlpBackward(const ops::ExecContext& exec, const ModelConfig& config,
                      const MlpParameters& parameters, int64_t tokens, const float* x,
                      const MlpTape& tape, const float* dout, float* dx, MlpGradients& gradients);

/// out [T, D] = W_up_latent RMS(sum of the chosen experts in latent space) + shared(x). A token's
/// routed sum is taken in ascending expert order, ties of the choice go to the lower expert. `tape`
/// may be null. Fails only when the context's expert source does.
Status LatentMoe(const ForwardContext& ctx, const ModelConfig& config,
                 const MoeParameters& parameters, int64_t layer, const ops::RowSet& x, float* out,
                 MoeTape* tape);

/// As DenseMlpBackward. The choice of experts has no gradient, and the selection bias none.
void LatentMoeBackward(const ForwardContext& ctx, const ModelConfig& config,
                       const MoeParameters& parameters, int64_t tokens, const float* x,
                       const MoeTape& tape, const float* dout, float* dx, MoeGradients& gradients);

}  // namespace k3::model
