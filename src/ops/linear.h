#pragma once
// Linear layers: y = x W^T, weights used as they lie in the file (kernels.h says in which order an
// output is summed; it does not depend on the number of rows, so a token's result is the same alone
// and in a batch). Scratch comes from the context's arena and stays valid until it is reset.
//
//   const ops::RowSet x = ops::SplitRows(ctx, normed, tokens, hidden, hidden);
//   const ops::LinearTask tasks[] = {{&x, wq, q, q_width}, {&x, wk, k, k_width}};
//   ops::Linear(ctx, tasks);                      // one pass over the threads for all of them

#include <cstdint>
#include <span>

#include "ops/exec_context.h"
#include "tensor/weight_matrix.h"

namespace k3::ops {

/// Activation rows prepared for linear layers (split layout). Views into the arena.
struct RowSet {
  const float* const* rows = nullptr;  // [count] split rows of RoundUp(k, 32) floats
  int64_t count = 0;
  int64_t k = 0;
  const float* panels = nullptr;  // for more than six rows: packed tiles of six rows

  int64_t k_padded() const;
};

/// Prepares x [count, k] at stride ldx.
RowSet SplitRows(const ExecContext& ctx, const float* x, int64_t count, int64_t k, int64_t ldx);

/// Chooses rows of another set: `index` [count] into `from`. Panels are made by PackPanels.
RowSet GatherRows(const ExecContext& ctx, const RowSet& from, std::span<const int32_t> index);

/// Packs the tiles of all sets that have more than six rows, in one pass over the threads.
void PackPanels(const ExecContext& ctx, std::span<RowSet> sets);

struct LinearTask {
  const RowSet* x = nullptr;
  WeightMatrix w;      // [n, k]; k equals x->k
  float* y = nullptr;  // [x->count, n] at stride ldy
  int64_t ldy = 0;
};

/// Runs all tasks. Tasks may share inputs, outputs must not overlap.
void Linear(const ExecContext& ctx, std::span<const LinearTask> tasks);

}  // namespace k3::ops
