#pragma once
// Gated multi-head latent attention without positions (NoPE).

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// What the backward pass needs of one call. Arrays in whatever arena Allocate was given.
struct MlaTape {
  float* q_low;      // W_qa x [T, q_lora_rank], null without a low-rank query path
  float* q;          // [T, H (N + R)]
  float* kv;         // [T, L + R], before the norm of the latent
  float* gate;       // [T, H V], null without an output gate
  float* attended;   // softmax times values, before the gate [T, H V]
  float* log_sum;    // [T, H] log of the sum of exp(scaled score)
  float* score_max;  // [T, H] largest scaled score, for QK-Clip

  static MlaTape Allocate(Arena& arena, const MlaConfig& mla, int64_t tokens);
};

/// out [T, D] = gated MLA of the normed rows x [T, D]; appends each segment's latents to its state.
/// In training every segment's state is null: each is a document of its own, attended in prefill
/// form. `tape` may be null.
void Mla(const ops::ExecContext& exec, const ModelConfig& config, const MlaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out, MlaTape* tape);

/// dx [T, D] = gradient by x, the normed rows [T, D] as they are (not split), from dout [T, D];
/// adds to the weights' gradients. Segments as in a training forward. `tape` null: the forward is
/// run again. Matrices are float32. No T x T matrix; the same bits for any number of threads.
void MlaBackward(const ops::ExecContext& exec, const ModelConfig& config,
                 const MlaParameters& parameters, const Batch& batch, const float* x,
                 const MlaTape* tape, const float* dout, float* dx, MlaGradients& gradients);

}  // namespace k3::model
