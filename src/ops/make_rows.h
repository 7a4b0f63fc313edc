#pragma once
// MakeRows: how every operator that prepares activation rows for linear layers does it. Private to
// this room. The rows live in the context's arena.

#include <cstdint>

#include "ops/linear.h"

namespace k3::ops {

// Rows per piece: a single decoded token stays on the calling thread.
inline constexpr int64_t kRowsGrain = 4;

/// A RowSet over freshly allocated split rows, filled by fill(t, split row).
template <typename Fill>
RowSet MakeRows(const ExecContext& ctx, int64_t count, int64_t k, const Fill& fill) {
  RowSet set;
  set.count = count;
  set.k = k;
  const int64_t width = set.k_padded();
  float* split = ctx.arena->Allocate<float>(count * width);
  const float** rows = ctx.arena->Allocate<const float*>(count);
  ctx.pool->ParallelFor(count, kRowsGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      rows[t] = split + t * width;
      fill(t, split + t * width);
    }
  });
  set.rows = rows;
  PackPanels(ctx, {&set, 1});
  return set;
}

}  // namespace k3::ops
