#pragma once
// The two forms of MLA over one segment's cached latents. Private to this room.
// Both cut the context into absolute blocks of 256 tokens; a block gives (max, sum, value) and
// blocks are merged in ascending order, so a query's result depends on neither the threads nor on
// how its prompt was cut.

#include <cmath>
#include <cstdint>

#include "cache/sequence_state.h"
#include "model/parameters.h"
#include "ops/exec_context.h"

namespace k3::model {

/// Scores are divided by the square root of the full key width.
inline float MlaScale(const MlaConfig& mla) {
  return 1.0f / std::sqrt(static_cast<float>(mla.qk_nope_dim + mla.qk_rope_dim));
}

struct MlaQueries {
  const float* q = nullptr;  // [count, H (N + R)]
  int64_t count = 0;
  int64_t start = 0;     // position of the first query; its own latent is in the cache
  float* out = nullptr;  // [count, H V]
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
                const cache::MlaLatents& latents, const MlaQueries& queries);

/// Absorbed form, for one query at a time: queries go into latent space, the latents are read once
/// for all heads.
void MlaAbsorbed(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                 const cache::MlaLatents& latents, const MlaQueries& queries);

}  // namespace k3::model
