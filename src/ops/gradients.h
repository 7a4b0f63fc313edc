#pragma once
// Gradients of linear layers, y = x W^T, for training. W is float32 here (training's weights are
// float32 that hold bf16 or MXFP4 values).
//
//   dx  (+)=  sum over terms  dy W           LinearInputGradient
//   dW   +=   dy^T x                         LinearWeightGradient
//
// Every output element is one chain of fused multiply-adds, in ascending order of what is summed
// over (outputs of the layer for dx, terms in order; rows of the batch for dW): the same bits for
// any number of threads and any cut of the work. Arrays are float32 row-major; scratch comes from
// the context's arena and is given back. Outputs of the tasks of one call must not overlap. Source:
// the chain rule; a wrong width is a broken invariant.

#include <cstdint>
#include <span>

#include "ops/exec_context.h"
#include "tensor/weight_matrix.h"

namespace k3::ops {

/// One dy [count, w.rows] at stride ld, and the layer's w [n, k] in float32.
struct InputGradientTerm {
  const float* dy = nullptr;
  int64_t ld = 0;
  WeightMatrix w;
};

/// dx [count, k] at stride ld; overwritten unless `accumulate`.
struct InputGradientTask {
  std::span<const InputGradientTerm> terms;
  int64_t count = 0;
  float* dx = nullptr;
  int64_t ld = 0;
  bool accumulate = false;
};
void LinearInputGradient(const ExecContext& ctx, std::span<const InputGradientTask> tasks);

/// dw [n, k] += dy^T x with dy [count, n] at stride dy_ld and x [count, k] at stride x_ld.
struct WeightGradientTask {
  const float* dy = nullptr;
  int64_t dy_ld = 0;
  const float* x = nullptr;
  int64_t x_ld = 0;
  int64_t count = 0;
  GradientMatrix dw;
};
void LinearWeightGradient(const ExecContext& ctx, std::span<const WeightGradientTask> tasks);

/// Rows that one partial sum covers, whatever the threads.
inline constexpr int64_t kPartialRows = 64;

/// out [width] += sum over rows of what `add` adds to its partial sum: rows are cut into runs of
/// kPartialRows, add(begin, end, partial, worker) adds the rows [begin, end) to a zeroed partial
/// [width], and the partials are added to `out` in order.
template <typename Add>
void SumOverRows(const ExecContext& ctx, int64_t count, int64_t width, const Add& add, float* out) {
  ArenaScope scope(*ctx.arena);
  const int64_t runs = (count + kPartialRows - 1) / kPartialRows;
  float* partials = ctx.arena->Allocate<float>(runs * width);
  ctx.pool->ParallelFor(runs, 1, [&](int64_t first, int64_t last, int worker) {
    for (int64_t run = first; run < last; ++run) {
      float* partial = partials + run * width;
      for (int64_t i = 0; i < width; ++i) partial[i] = 0.0f;
      const int64_t begin = run * kPartialRows;
      const int64_t end = begin + kPartialRows < count ? begin + kPartialRows : count;
      add(begin, end, partial, worker);
    }
  });
  for (int64_t run = 0; run < runs; ++run) {
    ctx.kernels->elementwise.add(partials + run * width, width, out);
  }
}

}  // namespace k3::ops
