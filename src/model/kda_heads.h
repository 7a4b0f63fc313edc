#pragma once
// What KDA's forward and backward passes share: the input projections, and one head's rows from
// them. Private to this room. Plain functions on memory of the caller; a head's rows may be made by
// any thread. Formulas: kda.cc.

#include "model/kda.h"

namespace k3::model {

/// All input projections of the rows x into `out`.
void ProjectKda(const ops::ExecContext& exec, const KdaConfig& kda, const KdaParameters& p,
                const ops::RowSet& x, const KdaTape& out);

/// One head of one segment, and where its rows come from.
struct KdaHeadInputs {
  const kernels::KernelTable& kernels;
  const KdaConfig& kda;
  const KdaParameters& p;
  const KdaTape& in;
  int64_t head = 0;
  int64_t begin = 0;               // of the segment in the batch
  const float* history = nullptr;  // [taps - 1, 3, C] inputs before the segment, oldest first
  const float* zeros = nullptr;    // [K], the inputs without a history

  int64_t channels() const { return kda.heads * kda.head_dim; }
  /// First float of token t of the segment in an array [T, C].
  int64_t At(int64_t t) const { return (begin + t) * channels() + head * kda.head_dim; }

  /// This head's row of `array` [T, C] for token t, which may lie before the segment. `which` is
  /// 0, 1, 2 for q, k, v in the history.
  const float* Source(const float* array, int64_t which, int64_t t) const;
};

/// Rows of one head: q (normed and scaled), k, v, alpha [rows, K] at stride ld; beta [rows].
struct KdaHeadRows {
  float *q, *k, *v, *alpha;
  int64_t ld;
  float* beta;
};

/// Tokens [t, t + rows) of the segment: convolutions, norms and gates.
void MakeKdaRows(const KdaHeadInputs& head, int64_t t, int64_t rows, const KdaHeadRows& out);

/// Asks for a head's row of another token. Rows of one head lie so far apart that the processor
/// does not see them coming. The address need not be valid.
inline void PrefetchRow(const float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(row + i);
}

/// The scale of q, K^-1/2.
float KdaQueryScale(const KdaConfig& kda);

/// First tokens of the segments in the batch, in memory of the arena.
std::span<int64_t> SegmentBegins(Arena& arena, const Batch& batch);

}  // namespace k3::model
