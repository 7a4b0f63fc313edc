// MLA's absorbed form for generated tokens: with k_h = W_k,h lat and v_h = W_v,h lat,
//   q_h . k_h = (W_k,h^T q_h) . lat       and       sum_s p_s v_h,s = W_v,h (sum_s p_s lat_s),
// so the cache is read as it lies, once for all heads.
#include <algorithm>

#include "base/arithmetic.h"
#include "model/mla_forms.h"

namespace k3::model {
namespace {

using cache::kPageTokens;

// Of block values that wait to be merged, 4 MB.
constexpr int64_t kWaveFloats = 1 << 20;

// Of the next block, asked for while this one's values are summed.
constexpr int64_t kAheadFloats = 8192;

/// One query token over the whole context.
class AbsorbedQuery {
 public:
  AbsorbedQuery(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                const cache::MlaLatents& latents, const float* q, int64_t context, float* out)
      : exec_(exec),
        kernel_(*exec.kernels),
        mla_(mla),
        p_(p),
        latents_(latents),
        q_(q),
        context_(context),
        out_(out),
        latent_(latents.latent_width()),
        width_(latents.row_width()) {}

  void Run() {
    Arena& arena = *exec_.arena;
    absorbed_ = arena.Allocate<float>(mla_.heads * width_);
    total_ = arena.Allocate<Partial>(mla_.heads);
    value_ = arena.Allocate<float>(mla_.heads * latent_);
    AbsorbQueries();
    std::fill_n(total_, mla_.heads, Partial{0, 0});
    // Blocks are computed in waves, so that memory does not grow with the context; in large ones,
    // since the threads meet at the end of each.
    const int64_t blocks = CeilDivide(context_, kPageTokens);
    const int64_t wave = std::min(blocks, std::max<int64_t>(4 * exec_.pool->threads_count(),
                                                            kWaveFloats / (mla_.heads * latent_)));
    partial_ = arena.Allocate<Partial>(wave * mla_.heads);
    factors_ = arena.Allocate<float>(2 * wave * mla_.heads);
    block_value_ = arena.Allocate<float>(wave * mla_.heads * latent_);
    scores_ = arena.Allocate<float>(exec_.pool->threads_count() * mla_.heads * kPageTokens);
    for (int64_t first = 0; first < blocks; first += wave) {
      const int64_t count = std::min(wave, blocks - first);
      // Some neighbours to one thread: memory is read fastest in long streams.
      const int64_t grain = std::clamp<int64_t>(count / (8 * exec_.pool->threads_count()), 1, 8);
      exec_.pool->ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) AttendBlock(first + i, i, i + 1 < end, worker);
      });
      const bool last = first + count == blocks;
      exec_.pool->ParallelFor(mla_.heads, 2, [&](int64_t begin, int64_t end, int) {
        for (int64_t h = begin; h < end; ++h) {
          MergeWave(h, count, factors_ + 2 * wave * h);
          if (last) ExpandValue(h);
        }
      });
    }
  }

 private:
  WeightMatrix HeadRows(int64_t head, int64_t begin, int64_t end) const {
    const int64_t rows = mla_.qk_nope_dim + mla_.v_dim;
    return p_.kv_b.Rows(head * rows + begin, head * rows + end);
  }

  /// absorbed_ [H, row width]: W_k^T q in split layout, then the query's shared dims.
  void AbsorbQueries() {
    const int64_t n = mla_.qk_nope_dim, r = mla_.qk_rope_dim;
    exec_.pool->ParallelFor(mla_.heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t h = begin; h < end; ++h) {
        const float* q = q_ + h * (n + r);
        float* row = absorbed_ + h * width_;
        kernel_.linear.weighted_rows(q, HeadRows(h, 0, n), row);
        std::copy_n(q + n, r, row + latent_);
        std::fill(row + latent_ + r, row + width_, 0.0f);  // the cache pads its rows, too
      }
    });
  }

  /// All heads over one block, into slot `slot` of the wave. `next_follows`: this thread goes on
  /// with the next block.
  void AttendBlock(int64_t block, int64_t slot, bool next_follows, int worker) {
    const int64_t tokens = std::min(kPageTokens, context_ - block * kPageTokens);
    const float* page = latents_.Page(block);
    float* scores = scores_ + worker * mla_.heads * kPageTokens;
    kernel_.linear.dot_rows(absorbed_, width_, mla_.heads, page, width_, tokens, width_, scores,
                            kPageTokens);
    const float scale = MlaScale(mla_);
    for (int64_t h = 0; h < mla_.heads; ++h) {
      Partial& partial = partial_[slot * mla_.heads + h];
      kernel_.elementwise.exp_block(scores + h * kPageTokens, tokens, scale, &partial.max,
                                    &partial.sum);
    }
    const int64_t ahead = std::min(kAheadFloats, kPageTokens * width_);
    kernel_.matmul.f32_ahead(scores, kPageTokens, page, width_, mla_.heads, tokens, latent_,
                             block_value_ + slot * mla_.heads * latent_, latent_,
                             next_follows ? latents_.Page(block + 1) : page,
                             next_follows ? ahead : 0);
  }

  /// MergePartial for one block of the wave after the other, with the exponentials and the sums of
  /// values taken together: same operations, same order. factors [2, count].
  void MergeWave(int64_t head, int64_t count, float* factors) {
    Partial& total = total_[head];
    float* value = value_ + head * latent_;
    const auto block = [&](int64_t slot) -> const Partial& {
      return partial_[slot * mla_.heads + head];
    };
    const auto block_value = [&](int64_t slot) {
      return block_value_ + (slot * mla_.heads + head) * latent_;
    };
    int64_t slot = 0;
    for (; slot < count && total.sum == 0.0f; ++slot) {
      MergePartial(kernel_, block(slot), block_value(slot), latent_, total, value);
    }
    float* keep = factors;
    float* add = factors + count;
    for (int64_t i = slot; i < count; ++i) {
      const float max = block(i).max > total.max ? block(i).max : total.max;
      keep[i] = total.max - max;
      add[i] = block(i).max - max;
      total.max = max;
    }
    kernel_.elementwise.exp(keep + slot, count - slot, keep + slot);
    kernel_.elementwise.exp(add + slot, count - slot, add + slot);
    const auto sum_values = [&](int64_t begin, int64_t end) {
      kernel_.matmul.f32(add + begin, count, block_value(begin), mla_.heads * latent_, 1,
                         end - begin, latent_, true, value, latent_);
    };
    int64_t begin = slot;
    for (int64_t i = slot; i < count; ++i) {
      total.sum = keep[i] * total.sum + add[i] * block(i).sum;
      if (keep[i] == 1.0f) continue;
      if (begin < i) sum_values(begin, i);
      kernel_.elementwise.scale(keep[i], value, latent_, value);
      begin = i;
    }
    if (begin < count) sum_values(begin, count);
  }

  void ExpandValue(int64_t head) {
    float* value = value_ + head * latent_;
    kernel_.elementwise.scale(1.0f / total_[head].sum, value, latent_, value);
    kernel_.linear.direct(&value, 1,
                          HeadRows(head, mla_.qk_nope_dim, mla_.qk_nope_dim + mla_.v_dim),
                          out_ + head * mla_.v_dim, mla_.v_dim);
  }

  const ops::ExecContext& exec_;
  const kernels::KernelTable& kernel_;
  const MlaConfig& mla_;
  const MlaParameters& p_;
  const cache::MlaLatents& latents_;
  const float* q_;
  const int64_t context_;
  float* out_;
  const int64_t latent_;
  const int64_t width_;
  float* absorbed_ = nullptr;
  Partial* total_ = nullptr;
  float* value_ = nullptr;        // [H, latent]
  Partial* partial_ = nullptr;    // [wave, H]
  float* block_value_ = nullptr;  // [wave, H, latent]
  float* factors_ = nullptr;      // [H, 2, wave]
  float* scores_ = nullptr;       // [threads, H, 256]
};

}  // namespace

void MlaAbsorbed(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                 const cache::MlaLatents& latents, const MlaQueries& queries) {
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  for (int64_t t = 0; t < queries.count; ++t) {
    ArenaScope scope(*exec.arena);
    AbsorbedQuery(exec, mla, p, latents, queries.q + t * query, queries.start + t + 1,
                  queries.out + t * mla.heads * mla.v_dim)
        .Run();
  }
}

}  // namespace k3::model
