#pragma once
// Kimi Delta Attention: a gated delta rule with a decay for every key channel and no positions.

#include <cstdint>

#include "model/batch.h"
#include "model/parameters.h"
#include "ops/linear.h"

namespace k3::model {

/// What the backward pass needs of one call: the outputs of the input projections, before the
/// convolutions and gates. Arrays in whatever arena Allocate was given. C = H K channels.
struct KdaTape {
  float *q, *k, *v, *gate;      // [T, C]
  float* decay;                 // f(x) [T, C]
  float *decay_low, *gate_low;  // [T, K], the second only with a low-rank gate
  float* beta;                  // b(x) [T, H], before the sigmoid

  static KdaTape Allocate(Arena& arena, const KdaConfig& kda, int64_t tokens);
};

/// out [T, D] = KDA of the normed rows x [T, D]; reads and updates each segment's state. In
/// training every segment's state is null: each is a document of its own, from an empty state on
/// and with a chunk grid of its own. `tape` may be null.
void Kda(const ops::ExecContext& exec, const ModelConfig& config, const KdaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out, KdaTape* tape);

/// dx [T, D] = gradient by x, the normed rows [T, D] as they are (not split), from dout [T, D];
/// adds to the weights' gradients. Segments as in a training forward. `tape` null: the projections
/// are computed again. Matrices are float32. Same bits for any number of threads.
void KdaBackward(const ops::ExecContext& exec, const ModelConfig& config,
                 const KdaParameters& parameters, const Batch& batch, const float* x,
                 const KdaTape* tape, const float* dout, float* dx, KdaGradients& gradients);

}  // namespace k3::model
