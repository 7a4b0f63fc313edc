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

/// RMSNorm of x [count, w.size()], prepared for linear layers.
RowSet NormRows(const ExecContext& ctx, const float* x, int64_t count, std::span<const float> w,
                float eps);

/// SiTU of gate and up [count, n], written over gate, prepared for linear layers.
/// linear_beta 0: the up branch is unchanged.
struct SituOptions {
  float beta = 4.0f;
  float linear_beta = 25.0f;
};
RowSet SituRows(const ExecContext& ctx, float* gate, const float* up, int64_t count, int64_t n,
                SituOptions options);

/// y = rows of `table` [V, D], widened. `ids` in range.
void Embed(const ExecContext& ctx, const WeightMatrix& table, std::span<const int32_t> ids,
           float* y);

/// y += x over [count, n].
void AddRows(const ExecContext& ctx, const float* x, int64_t count, int64_t n, float* y);

/// Attention-residual mix (report, Attention Residuals): per row, scores w . RMS-normalised source,
/// softmax over the sources, weighted sum of the raw sources. sources: pointers to [count, n].
void MixSources(const ExecContext& ctx, std::span<const float* const> sources,
                std::span<const float> w, float eps, int64_t count, float* y);

}  // namespace k3::ops
