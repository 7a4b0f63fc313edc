#pragma once
// Threaded row-wise operators on [T, n] float32 arrays. Each row is computed whole by one thread,
// so results depend neither on threads nor on the other rows. Outputs may be their own inputs
// where the kernel allows it (kernels.h).

#include <cstdint>
#include <span>

#include "ops/exec_context.h"
#include "ops/linear.h"
#include "tensor/weight_matrix.h"

namespace k3::ops {

/// RMSNorm of x [count, w.size()], prepared for linear layers. `normed` [count, w.size()] receives
/// the rows as they are, unless it is null.
RowSet NormRows(const ExecContext& ctx, const float* x, int64_t count, std::span<const float> w,
                float eps, float* normed = nullptr);

/// SiTU of gate and up [count, n], written to y (which may be gate), prepared for linear layers.
/// linear_beta 0: the up branch is unchanged. `mxfp8`: y is rounded to MXFP8 (number_formats.h).
struct SituOptions {
  float beta = 4.0f;
  float linear_beta = 25.0f;
  bool mxfp8 = false;
};
RowSet SituRows(const ExecContext& ctx, const float* gate, const float* up, int64_t count,
                int64_t n, SituOptions options, float* y);

/// y = rows of `table` [V, D], widened. `ids` in range.
void Embed(const ExecContext& ctx, const WeightMatrix& table, std::span<const int32_t> ids,
           float* y);

/// y += x over [count, n].
void AddRows(const ExecContext& ctx, const float* x, int64_t count, int64_t n, float* y);

/// Attention-residual mix (report, Attention Residuals): per row, scores w . RMS-normalised source,
/// softmax over the sources, weighted sum of the raw sources. sources: pointers to [count, n].
void MixSources(const ExecContext& ctx, std::span<const float* const> sources,
                std::span<const float> w, float eps, int64_t count, float* y);

/// Gradient of x = RMSNorm(MixSources(sources, mix), norm) by everything, from dx [count, D]:
/// adds to each dsources [count, D], to dnorm [D] and to dmix [D]. With an empty `mix` the only
/// source is normed as it is.
struct MixNorm {
  std::span<const float* const> sources;
  std::span<const float> mix;
  std::span<const float> norm;
  float eps = 1e-5f;
};
struct MixNormGradients {
  std::span<float* const> sources;
  std::span<float> mix;
  std::span<float> norm;
};
void MixNormBackward(const ExecContext& ctx, const MixNorm& forward, int64_t count, const float* dx,
                     const MixNormGradients& gradients);

}  // namespace k3::ops
