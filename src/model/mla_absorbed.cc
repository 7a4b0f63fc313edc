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

/// A query token, and how far it has come.
struct Query {
  const cache::MlaLatents* latents;
  const float* q;   // [H (N + R)]
  int64_t context;  // tokens it sees
  float* out;       // [H V]
  Partial* total;   // [H]
  float* value;     // [H, latent]
};

/// A block of one query's context.
struct Block {
  int64_t query;
  int64_t index;
};

/// Query tokens of any number of sequences, each over its whole context.
class AbsorbedQueries {
 public:
  AbsorbedQueries(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                  std::span<const MlaAbsorbedTask> tasks)
      : exec_(exec),
        kernel_(*exec.kernels),
        mla_(mla),
        p_(p),
        latent_(tasks.front().latents->latent_width()),
        width_(tasks.front().latents->row_width()) {
    int64_t queries_count = 0, blocks_count = 0;
    for (const MlaAbsorbedTask& task : tasks) {
      for (int64_t t = 0; t < task.queries.count; ++t) {
        ++queries_count;
        blocks_count += CeilDivide(task.queries.start + t + 1, kPageTokens);
      }
    }
    queries_ = exec.arena->AllocateSpan<Query>(queries_count);
    absorbed_ = exec.arena->Allocate<float>(queries_count * mla_.heads * width_);
    blocks_ = exec.arena->AllocateSpan<Block>(blocks_count);
    size_t query = 0, block = 0;
    for (const MlaAbsorbedTask& task : tasks) {
      for (int64_t t = 0; t < task.queries.count; ++t, ++query) {
        queries_[query] = MakeQuery(task, t);
        const int64_t blocks = CeilDivide(queries_[query].context, kPageTokens);
        for (int64_t i = 0; i < blocks; ++i) {
          blocks_[block++] = {static_cast<int64_t>(query), i};
        }
      }
    }
  }

  void Run() {
    AbsorbAll();
    // Blocks are computed in waves, so that memory does not grow with the context; in large ones,
    // since the threads meet at the end of each.
    Arena& arena = *exec_.arena;
    const int64_t threads = exec_.pool->threads_count(), blocks = std::ssize(blocks_);
    const int64_t wave =
        std::min(blocks, std::max<int64_t>(4 * threads, kWaveFloats / (mla_.heads * latent_)));
    partial_ = arena.Allocate<Partial>(wave * mla_.heads);
    factors_ = arena.Allocate<float>(2 * wave * mla_.heads);
    block_value_ = arena.Allocate<float>(wave * mla_.heads * latent_);
    scores_ = arena.Allocate<float>(threads * mla_.heads * kPageTokens);
    expanded_ = arena.Allocate<float>(threads * kernels::kTileRows * mla_.v_dim);
    for (int64_t first = 0; first < blocks; first += wave) {
      const int64_t count = std::min(wave, blocks - first);
      // Some neighbours to one thread: memory is read fastest in long streams.
      const int64_t grain = std::clamp<int64_t>(count / (8 * threads), 1, 8);
      exec_.pool->ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) AttendBlock(first + i, i, i + 1 < end, worker);
      });
      const bool is_last = first + count == blocks;
      exec_.pool->ParallelFor(mla_.heads, 2, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t h = begin; h < end; ++h) {
          MergeWave(h, first, count);
          if (is_last) ExpandValues(h, worker);
        }
      });
    }
  }

 private:
  Query MakeQuery(const MlaAbsorbedTask& task, int64_t t) const {
    Arena& arena = *exec_.arena;
    const MlaQueries& queries = task.queries;
    Query query = {.latents = task.latents,
                   .q = queries.q + t * mla_.heads * (mla_.qk_nope_dim + mla_.qk_rope_dim),
                   .context = queries.start + t + 1,
                   .out = queries.out + t * mla_.heads * mla_.v_dim,
                   .total = arena.Allocate<Partial>(mla_.heads),
                   .value = arena.Allocate<float>(mla_.heads * latent_)};
    std::fill_n(query.total, mla_.heads, Partial{0, 0});
    return query;
  }

  WeightMatrix HeadRows(int64_t head, int64_t begin, int64_t end) const {
    const int64_t rows = mla_.qk_nope_dim + mla_.v_dim;
    return p_.kv_b.Rows(head * rows + begin, head * rows + end);
  }

  /// Of every query, absorbed [H, row width]: W_k^T q in split layout, then the shared dims.
  void AbsorbAll() {
    const int64_t n = mla_.qk_nope_dim, r = mla_.qk_rope_dim, count = std::ssize(queries_);
    const float** q = exec_.arena->Allocate<const float*>(exec_.pool->threads_count() * count);
    exec_.pool->ParallelFor(mla_.heads, 1, [&](int64_t begin, int64_t end, int worker) {
      const float** own_q = q + worker * count;
      for (int64_t h = begin; h < end; ++h) {
        for (int64_t i = 0; i < count; ++i) own_q[i] = QueryAt(i).q + h * (n + r);
        kernel_.linear.weighted_rows(own_q, count, HeadRows(h, 0, n), Absorbed(0) + h * width_,
                                     mla_.heads * width_);
        for (int64_t i = 0; i < count; ++i) {
          float* row = Absorbed(i) + h * width_;
          std::copy_n(own_q[i] + n, r, row + latent_);
          std::fill(row + latent_ + r, row + width_, 0.0f);  // the cache pads its rows, too
        }
      }
    });
  }

  /// All heads over block `at` of the list, into slot `slot` of the wave. `next_follows`: this
  /// thread goes on with the next block.
  void AttendBlock(int64_t at, int64_t slot, bool next_follows, int worker) {
    const Block& block = BlockAt(at);
    const Query& query = QueryAt(block.query);
    const int64_t tokens = std::min(kPageTokens, query.context - block.index * kPageTokens);
    const float* page = query.latents->Page(block.index);
    float* scores = scores_ + worker * mla_.heads * kPageTokens;
    kernel_.linear.dot_rows(Absorbed(block.query), width_, mla_.heads, page, width_, tokens, width_,
                            scores, kPageTokens);
    const float scale = MlaScale(mla_);
    for (int64_t h = 0; h < mla_.heads; ++h) {
      Partial& partial = partial_[slot * mla_.heads + h];
      kernel_.elementwise.exp_block(scores + h * kPageTokens, tokens, scale, &partial.max,
                                    &partial.sum);
    }
    const float* next = page;
    int64_t ahead = 0;
    if (next_follows) {
      next = QueryAt(BlockAt(at + 1).query).latents->Page(BlockAt(at + 1).index);
      ahead = std::min(kAheadFloats, kPageTokens * width_);
    }
    kernel_.matmul.f32_ahead(scores, kPageTokens, page, width_, mla_.heads, tokens, latent_,
                             block_value_ + slot * mla_.heads * latent_, latent_, next, ahead);
  }

  /// One head of every query that has blocks in this wave, `count` from `first` on.
  void MergeWave(int64_t head, int64_t first, int64_t count) {
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      const int64_t query = BlockAt(first + begin).query;
      while (end < count && BlockAt(first + end).query == query) ++end;
      MergeBlocks(head, QueryAt(query), begin, end);
    }
  }

  /// MergePartial for one of the slots [begin, end) after the other, with the exponentials and the
  /// sums of values taken together: same operations, same order.
  void MergeBlocks(int64_t head, const Query& query, int64_t begin, int64_t end) {
    Partial& total = query.total[head];
    float* value = query.value + head * latent_;
    const auto block = [&](int64_t slot) -> const Partial& {
      return partial_[slot * mla_.heads + head];
    };
    const auto block_value = [&](int64_t slot) {
      return block_value_ + (slot * mla_.heads + head) * latent_;
    };
    int64_t slot = begin;
    for (; slot < end && total.sum == 0.0f; ++slot) {
      MergePartial(kernel_, block(slot), block_value(slot), latent_, total, value);
    }
    const int64_t left = end - slot;
    float* keep = factors_ + 2 * (mla_.heads * begin + head * (end - begin));
    float* add = keep + left;
    for (int64_t i = 0; i < left; ++i) {
      const float max = block(slot + i).max > total.max ? block(slot + i).max : total.max;
      keep[i] = total.max - max;
      add[i] = block(slot + i).max - max;
      total.max = max;
    }
    kernel_.elementwise.exp(keep, left, keep);
    kernel_.elementwise.exp(add, left, add);
    const auto sum_values = [&](int64_t from, int64_t to) {
      kernel_.matmul.f32(add + from, left, block_value(slot + from), mla_.heads * latent_, 1,
                         to - from, latent_, true, value, latent_);
    };
    int64_t summed = 0;
    for (int64_t i = 0; i < left; ++i) {
      total.sum = keep[i] * total.sum + add[i] * block(slot + i).sum;
      if (keep[i] == 1.0f) continue;
      if (summed < i) sum_values(summed, i);
      kernel_.elementwise.scale(keep[i], value, latent_, value);
      summed = i;
    }
    if (summed < left) sum_values(summed, left);
  }

  /// One head's outputs of all queries.
  void ExpandValues(int64_t head, int worker) {
    const int64_t n = mla_.qk_nope_dim, v = mla_.v_dim, count = std::ssize(queries_);
    float* expanded = expanded_ + worker * kernels::kTileRows * v;
    for (int64_t first = 0; first < count; first += kernels::kTileRows) {
      const int64_t rows = std::min(kernels::kTileRows, count - first);
      const float* values[kernels::kTileRows];
      for (int64_t i = 0; i < rows; ++i) {
        const Query& query = QueryAt(first + i);
        float* value = query.value + head * latent_;
        kernel_.elementwise.scale(1.0f / query.total[head].sum, value, latent_, value);
        values[i] = value;
      }
      kernel_.linear.direct(values, rows, HeadRows(head, n, n + v), expanded, v);
      for (int64_t i = 0; i < rows; ++i) {
        std::copy_n(expanded + i * v, v, QueryAt(first + i).out + head * v);
      }
    }
  }

  float* Absorbed(int64_t query) const { return absorbed_ + query * mla_.heads * width_; }
  const Query& QueryAt(int64_t i) const { return queries_[static_cast<size_t>(i)]; }
  const Block& BlockAt(int64_t i) const { return blocks_[static_cast<size_t>(i)]; }

  const ops::ExecContext& exec_;
  const kernels::KernelTable& kernel_;
  const MlaConfig& mla_;
  const MlaParameters& p_;
  const int64_t latent_;
  const int64_t width_;
  std::span<Query> queries_;
  std::span<Block> blocks_;       // of all queries, in order
  float* absorbed_ = nullptr;     // [queries, H, row width]
  Partial* partial_ = nullptr;    // [wave, H]
  float* block_value_ = nullptr;  // [wave, H, latent]
  float* factors_ = nullptr;      // [2, wave, H]: those of a query's blocks and a head together
  float* scores_ = nullptr;       // [threads, H, 256]
  float* expanded_ = nullptr;     // [threads, 6, V]
};

}  // namespace

void MlaAbsorbed(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                 std::span<const MlaAbsorbedTask> tasks) {
  if (tasks.empty()) return;
  ArenaScope scope(*exec.arena);
  AbsorbedQueries(exec, mla, p, tasks).Run();
}

}  // namespace k3::model
