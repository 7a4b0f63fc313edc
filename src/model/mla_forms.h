#pragma once
// The two forms of MLA over one segment's cached latents. Private to this room.
// Both cut the context into absolute blocks of 256 tokens; a block gives (max, sum, value) and
// blocks are merged in ascending order, so a query's result depends on neither the threads nor on
// how its prompt was cut.

#include <cmath>
#include <cstdint>
#include <span>

#include "cache/sequence_state.h"
#include "model/batch.h"
#include "model/mla.h"
#include "model/parameters.h"
#include "ops/exec_context.h"

namespace k3::model {

/// Scores are divided by the square root of the full key width.
inline float MlaScale(const MlaConfig& mla) {
  return 1.0f / std::sqrt(static_cast<float>(mla.qk_nope_dim + mla.qk_rope_dim));
}

/// The latents of one segment's context, rows as in cache::MlaLatents: a sequence's own pages, or,
/// in training, rows of the arena that end with the pass. Does not own.
struct LatentRows {
  cache::MlaLatents* cached = nullptr;
  float* rows = nullptr;  // [count, row_width], without a cache
  int64_t latent_width = 0;
  int64_t row_width = 0;

  /// Page `index` holds tokens [256 index, 256 index + 256).
  const float* Page(int64_t index) const {
    return cached != nullptr ? cached->Page(index) : rows + index * cache::kPageTokens * row_width;
  }
  float* Row(int64_t token) const {
    return cached != nullptr ? cached->Row(token) : rows + token * row_width;
  }
};

struct MlaQueries {
  const float* q = nullptr;  // [count, H (N + R)]
  int64_t count = 0;
  int64_t start = 0;           // position of the first query; its own latent is there already
  float* out = nullptr;        // [count, H V]
  float* log_sum = nullptr;    // [count, H], may be null: log of the sum of exp(scaled score)
  float* score_max = nullptr;  // [count, H], with log_sum: the largest scaled score
};

/// One segment in prefill form.
struct MlaPrefillTask {
  LatentRows latents;
  MlaQueries queries;
};

/// One segment in absorbed form.
struct MlaAbsorbedTask {
  const cache::MlaLatents* latents = nullptr;
  MlaQueries queries;
};

/// A running softmax over blocks: value / sum is the result so far.
struct Partial {
  float max;
  float sum;
};

/// Merges a block's partial (value [n]) into the running one.
void MergePartial(const kernels::KernelTable& kernel, const Partial& block,
                  const float* block_value, int64_t n, Partial& total, float* value);

/// Prefill form: every head expands the keys and values of a block from its latents.
void MlaPrefill(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                std::span<const MlaPrefillTask> tasks);

/// Absorbed form: queries go into latent space, and a query's latents are read once for all heads.
/// The threads share the queries of all tasks, and W_kv is read once for them.
void MlaAbsorbed(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                 std::span<const MlaAbsorbedTask> tasks);

/// Everything before the output gate, into `tape`: projections, and every segment in its form.
/// `tape.log_sum` may be null, then neither it nor score_max is written; the absorbed form writes
/// neither.
void MlaAttend(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
               int64_t layer, const Batch& batch, const ops::RowSet& x, const MlaTape& tape);

}  // namespace k3::model
