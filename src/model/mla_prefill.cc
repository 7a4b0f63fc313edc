// MLA's prefill form: per head and block of 256 tokens, expand keys and values from the latents,
// then attend with tiles of queries. No T x T matrix: the scores of one tile are all that exists.
#include <algorithm>
#include <cmath>

#include "base/arithmetic.h"
#include "model/mla_forms.h"

namespace k3::model {
namespace {

using cache::kPageTokens;
using kernels::kTileCols;
using kernels::kTileRows;

constexpr int64_t kQueryTile = 48;

/// One head over all blocks of a segment's context.
class PrefillHead {
 public:
  PrefillHead(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
              const LatentRows& latents, const MlaQueries& queries, int64_t head, float* scratch)
      : kernel_(*exec.kernels), mla_(mla), latents_(latents), queries_(queries), head_(head) {
    const Layout layout(mla, latents, queries.count);
    key_ = mla.qk_nope_dim + mla.qk_rope_dim;
    steps_ = latents.latent_width / 16;
    weight_panels_ = scratch;
    row_panels_ = weight_panels_ + layout.weight_panels;
    keys_ = row_panels_ + layout.row_panels;
    values_ = keys_ + layout.keys;
    scores_ = values_ + layout.values;
    block_out_ = scores_ + layout.scores;
    totals_ = reinterpret_cast<Partial*>(block_out_ + layout.block_out);
    const int64_t rows = mla.qk_nope_dim + mla.v_dim;
    weights_ = p.kv_b.Rows(head * rows, (head + 1) * rows);
    std::fill_n(totals_, queries.count, Partial{0, 0});
  }

  static int64_t ScratchFloats(const MlaConfig& mla, const LatentRows& latents, int64_t queries) {
    const Layout l(mla, latents, queries);
    return l.weight_panels + l.row_panels + l.keys + l.values + l.scores + l.block_out +
           2 * queries;
  }

  void Run() {
    PackWeights();
    const int64_t context = queries_.start + queries_.count;
    for (int64_t first = 0; first < context; first += kPageTokens) {
      const int64_t tokens = std::min(kPageTokens, context - first);
      ExpandBlock(first, tokens);
      for (int64_t q = 0; q < queries_.count; q += kQueryTile) {
        AttendTile(first, tokens, q, std::min(kQueryTile, queries_.count - q));
      }
    }
    for (int64_t q = 0; q < queries_.count; ++q) {
      const Partial& total = totals_[q];
      kernel_.elementwise.scale(1.0f / total.sum, Out(q), mla_.v_dim, Out(q));
      if (queries_.log_sum == nullptr) continue;
      const double log_sum = total.max + std::log(static_cast<double>(total.sum));
      queries_.log_sum[q * mla_.heads + head_] = static_cast<float>(log_sum);
      queries_.score_max[q * mla_.heads + head_] = total.max;
    }
  }

 private:
  struct Layout {
    Layout(const MlaConfig& mla, const LatentRows& latents, int64_t)
        : weight_panels(RoundUp(mla.qk_nope_dim + mla.v_dim, kTileCols) * latents.latent_width),
          row_panels(kTileRows * latents.latent_width),
          keys((mla.qk_nope_dim + mla.qk_rope_dim) * kPageTokens),
          values(kPageTokens * mla.v_dim),
          scores(kQueryTile * kPageTokens),
          block_out(kQueryTile * mla.v_dim) {}
    int64_t weight_panels, row_panels, keys, values, scores, block_out;
  };

  float* Out(int64_t query) { return queries_.out + (query * mla_.heads + head_) * mla_.v_dim; }

  /// Key rows and value rows are packed apart, so that a tile holds one kind only.
  void PackWeights() {
    float* panel = weight_panels_;
    for (const auto& [begin, end] :
         {std::pair{int64_t{0}, mla_.qk_nope_dim}, std::pair{mla_.qk_nope_dim, weights_.rows}}) {
      const WeightMatrix part = weights_.Rows(begin, end);
      for (int64_t r = 0; r < part.rows; r += kTileCols) {
        kernel_.linear.pack_weights(part, r, panel);
        panel += kTileCols * latents_.latent_width;
      }
    }
  }

  /// keys_ [N + R, 256] transposed, values_ [256, V], for `tokens` tokens from `first` on.
  void ExpandBlock(int64_t first, int64_t tokens) {
    const int64_t width = latents_.row_width, latent = latents_.latent_width;
    const float* page = latents_.Page(first / kPageTokens);
    const int64_t columns = RoundUp(tokens, 16);
    for (int64_t d = 0; d < mla_.qk_rope_dim; ++d) {
      float* key = keys_ + (mla_.qk_nope_dim + d) * kPageTokens;
      for (int64_t s = 0; s < tokens; ++s) key[s] = page[s * width + latent + d];
    }
    for (int64_t d = 0; d < key_; ++d) {
      std::fill(keys_ + d * kPageTokens + tokens, keys_ + d * kPageTokens + columns, 0.0f);
    }
    for (int64_t s = 0; s < tokens; s += kTileRows) {
      const int64_t rows = std::min(kTileRows, tokens - s);
      const float* row[kTileRows];
      for (int64_t i = 0; i < rows; ++i) row[i] = page + (s + i) * width;
      kernel_.linear.pack_rows(row, rows, latent, row_panels_);
      const float* panel = weight_panels_;
      for (int64_t r = 0; r < mla_.qk_nope_dim; r += kTileCols) {
        kernel_.linear.tile(row_panels_, panel, steps_, rows,
                            std::min(kTileCols, mla_.qk_nope_dim - r), keys_ + r * kPageTokens + s,
                            1, kPageTokens);
        panel += kTileCols * latent;
      }
      for (int64_t r = 0; r < mla_.v_dim; r += kTileCols) {
        kernel_.linear.tile(row_panels_, panel, steps_, rows, std::min(kTileCols, mla_.v_dim - r),
                            values_ + s * mla_.v_dim + r, mla_.v_dim, 1);
        panel += kTileCols * latent;
      }
    }
  }

  /// Queries [begin, begin + count) against the block; those before it see nothing.
  void AttendTile(int64_t first, int64_t tokens, int64_t begin, int64_t count) {
    const int64_t skip = std::max<int64_t>(first - (queries_.start + begin), 0);
    if (skip >= count) return;
    begin += skip;
    count -= skip;
    // Keys behind the tile's last query are not looked at.
    tokens = std::min(tokens, queries_.start + begin + count - first);
    const int64_t query_stride = mla_.heads * key_;
    const float* q = queries_.q + begin * query_stride + head_ * key_;
    const int64_t columns = RoundUp(tokens, 16);
    kernel_.matmul.f32(q, query_stride, keys_, kPageTokens, count, key_, columns, false, scores_,
                       kPageTokens);
    Partial partial[kQueryTile];
    const float scale = MlaScale(mla_);
    for (int64_t i = 0; i < count; ++i) {
      float* row = scores_ + i * kPageTokens;
      const int64_t visible = std::min(queries_.start + begin + i - first + 1, tokens);
      kernel_.elementwise.exp_block(row, visible, scale, &partial[i].max, &partial[i].sum);
      std::fill(row + visible, row + tokens, 0.0f);
    }
    kernel_.matmul.f32(scores_, kPageTokens, values_, mla_.v_dim, count, tokens, mla_.v_dim, false,
                       block_out_, mla_.v_dim);
    for (int64_t i = 0; i < count; ++i) {
      MergePartial(kernel_, partial[i], block_out_ + i * mla_.v_dim, mla_.v_dim, totals_[begin + i],
                   Out(begin + i));
    }
  }

  const kernels::KernelTable& kernel_;
  const MlaConfig& mla_;
  const LatentRows latents_;
  const MlaQueries& queries_;
  const int64_t head_;
  WeightMatrix weights_;
  int64_t key_ = 0;
  int64_t steps_ = 0;
  float* weight_panels_ = nullptr;
  float* row_panels_ = nullptr;
  float* keys_ = nullptr;
  float* values_ = nullptr;
  float* scores_ = nullptr;
  float* block_out_ = nullptr;
  Partial* totals_ = nullptr;
};

}  // namespace

void MlaPrefill(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                std::span<const MlaPrefillTask> tasks) {
  if (tasks.empty()) return;
  ArenaScope scope(*exec.arena);
  int64_t floats = 0;
  for (const MlaPrefillTask& task : tasks) {
    floats = std::max(floats, PrefillHead::ScratchFloats(mla, task.latents, task.queries.count));
  }
  floats = RoundUp(floats, 16);
  float* scratch = exec.arena->Allocate<float>(floats * exec.pool->threads_count());
  const int64_t count = std::ssize(tasks) * mla.heads;
  exec.pool->ParallelFor(count, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const MlaPrefillTask& task = tasks[static_cast<size_t>(i / mla.heads)];
      PrefillHead(exec, mla, p, task.latents, task.queries, i % mla.heads,
                  scratch + worker * floats)
          .Run();
    }
  });
}

}  // namespace k3::model
