// Gradient of gated MLA in prefill form (mla.cc has the formulas). Attention of one head, with
// P = exp(s q k^T - log_sum), s the scale, o = P v and delta = rowsum(do * o):
//   dv = P^T do      dS = P * (do v^T - delta)      dq = s dS k      dk = s dS^T q
// P is computed again, tile by tile, from the log of the sums that the forward pass kept
// (FlashAttention-2, Dao 2023, algorithm 2). A worker takes one head of one document: blocks of
// keys in ascending order, for each block the tiles of queries in ascending order. That fixes the
// order of every sum.
#include <algorithm>
#include <array>

#include "base/arithmetic.h"
#include "model/mla_forms.h"
#include "ops/gradients.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

// A block of transposed keys (N + R = 96) and a tile of queries stay in the first-level cache.
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kQueryTile = 48;

/// Arrays of the whole batch that the heads read and write.
struct HeadArrays {
  const MlaTape* tape;
  const float* expanded;    // [T, H (N + V)], keys and values of every head
  const float* d_attended;  // [T, H V]
  float* dq;                // [T, H (N + R)]
  float* d_expanded;        // [T, H (N + V)]
  float* d_shared;          // [T, H, R], every head's gradient of the shared dims
};

/// One head of one document, tokens [begin, begin + count) of the batch.
class BackwardHead {
 public:
  BackwardHead(const kernels::KernelTable& kernel, const MlaConfig& mla, const HeadArrays& arrays,
               int64_t begin, int64_t count, int64_t head, float* scratch)
      : kernel_(kernel),
        mla_(mla),
        arrays_(arrays),
        begin_(begin),
        count_(count),
        head_(head),
        key_(mla.qk_nope_dim + mla.qk_rope_dim),
        value_(mla.v_dim) {
    for (const auto& [array, floats] : Layout(mla, count)) {
      this->*array = scratch;
      scratch += RoundUp(floats, 16);
    }
  }

  static int64_t ScratchFloats(const MlaConfig& mla, int64_t count) {
    int64_t total = 0;
    for (const auto& [array, floats] : Layout(mla, count)) total += RoundUp(floats, 16);
    return total;
  }

  void Run() {
    const MlaTape& tape = *arrays_.tape;
    for (int64_t t = 0; t < count_; ++t) {
      const int64_t at = (begin_ + t) * mla_.heads + head_;
      delta_[t] = kernel_.elementwise.dot(arrays_.d_attended + at * value_,
                                          tape.attended + at * value_, value_);
      std::fill_n(arrays_.dq + at * key_, key_, 0.0f);
    }
    for (int64_t first = 0; first < count_; first += kKeyBlock) {
      const int64_t tokens = std::min(kKeyBlock, count_ - first);
      LoadBlock(first, tokens);
      for (int64_t q = first; q < count_; q += kQueryTile) {
        RunTile(first, tokens, q, std::min(kQueryTile, count_ - q));
      }
      StoreBlock(first, tokens);
    }
    const float scale = MlaScale(mla_);
    for (int64_t t = 0; t < count_; ++t) {
      float* dq = arrays_.dq + ((begin_ + t) * mla_.heads + head_) * key_;
      kernel_.elementwise.scale(scale, dq, key_, dq);
    }
  }

 private:
  using Part = std::pair<float * BackwardHead::*, int64_t>;
  static std::array<Part, 10> Layout(const MlaConfig& mla, int64_t count) {
    const int64_t key = mla.qk_nope_dim + mla.qk_rope_dim, value = mla.v_dim;
    return {{{&BackwardHead::keys_, kKeyBlock * key},
             {&BackwardHead::keys_across_, key * kKeyBlock},
             {&BackwardHead::values_across_, value * kKeyBlock},
             {&BackwardHead::d_keys_, kKeyBlock * key},
             {&BackwardHead::d_values_, kKeyBlock * value},
             {&BackwardHead::queries_, kQueryTile * key},
             {&BackwardHead::d_out_, kQueryTile * value},
             {&BackwardHead::weights_, kQueryTile * kKeyBlock},
             {&BackwardHead::d_scores_, kQueryTile * kKeyBlock},
             {&BackwardHead::delta_, count}}};
  }

  const float* Expanded(int64_t token) const {
    return arrays_.expanded + ((begin_ + token) * mla_.heads + head_) * (mla_.qk_nope_dim + value_);
  }

  /// Rows of x [rows, cols] at stride ld as columns of y, whose stride is kKeyBlock; columns up to
  /// the next multiple of 16 are zero, since tiles read them.
  static void Transpose(const float* x, int64_t ld, int64_t rows, int64_t cols, float* y) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) y[c * kKeyBlock + r] = x[r * ld + c];
      std::fill(y + c * kKeyBlock + rows, y + c * kKeyBlock + RoundUp(rows, 16), 0.0f);
    }
  }

  void LoadBlock(int64_t first, int64_t tokens) {
    const int64_t kv_width = mla_.kv_lora_rank + mla_.qk_rope_dim;
    for (int64_t s = 0; s < tokens; ++s) {
      std::copy_n(Expanded(first + s), mla_.qk_nope_dim, keys_ + s * key_);
      std::copy_n(arrays_.tape->kv + (begin_ + first + s) * kv_width + mla_.kv_lora_rank,
                  mla_.qk_rope_dim, keys_ + s * key_ + mla_.qk_nope_dim);
    }
    Transpose(keys_, key_, tokens, key_, keys_across_);
    Transpose(Expanded(first) + mla_.qk_nope_dim, mla_.heads * (mla_.qk_nope_dim + value_), tokens,
              value_, values_across_);
    std::fill_n(d_keys_, tokens * key_, 0.0f);
    std::fill_n(d_values_, tokens * value_, 0.0f);
  }

  void StoreBlock(int64_t first, int64_t tokens) {
    for (int64_t s = 0; s < tokens; ++s) {
      const int64_t at = (begin_ + first + s) * mla_.heads + head_;
      float* out = arrays_.d_expanded + at * (mla_.qk_nope_dim + value_);
      const float* d_key = d_keys_ + s * key_;
      std::copy_n(d_key, mla_.qk_nope_dim, out);
      std::copy_n(d_values_ + s * value_, value_, out + mla_.qk_nope_dim);
      std::copy_n(d_key + mla_.qk_nope_dim, mla_.qk_rope_dim,
                  arrays_.d_shared + at * mla_.qk_rope_dim);
    }
  }

  /// Queries [begin, begin + rows) against the block; none stands before its first key.
  void RunTile(int64_t first, int64_t tokens, int64_t begin, int64_t rows) {
    // Keys behind the tile's last query are not looked at.
    const int64_t used = std::min(begin + rows - first, tokens);
    const int64_t columns = RoundUp(used, 16);
    LoadTile(begin, rows, columns);
    const auto& matmul = kernel_.matmul;
    matmul.f32(queries_, key_, keys_across_, kKeyBlock, rows, key_, columns, true, weights_,
               kKeyBlock);
    matmul.f32(d_out_, value_, values_across_, kKeyBlock, rows, value_, columns, true, d_scores_,
               kKeyBlock);
    for (int64_t i = 0; i < rows; ++i) {
      float* weight = weights_ + i * kKeyBlock;
      float* d_score = d_scores_ + i * kKeyBlock;
      const int64_t visible = std::min(begin + i - first + 1, used);
      kernel_.elementwise.exp(weight, visible, weight);
      for (int64_t s = 0; s < visible; ++s) d_score[s] *= weight[s];
      std::fill(weight + visible, weight + used, 0.0f);
      std::fill(d_score + visible, d_score + used, 0.0f);
    }
    matmul.f32_tn(weights_, kKeyBlock, d_out_, value_, used, rows, value_, true, d_values_, value_);
    matmul.f32_tn(d_scores_, kKeyBlock, queries_, key_, used, rows, key_, true, d_keys_, key_);
    float* dq = arrays_.dq + ((begin_ + begin) * mla_.heads + head_) * key_;
    matmul.f32(d_scores_, kKeyBlock, keys_, key_, rows, used, key_, true, dq, mla_.heads * key_);
  }

  /// Scaled queries and output gradients of a tile, together. Both products start from what is
  /// taken away from their results: log_sum and delta.
  void LoadTile(int64_t begin, int64_t rows, int64_t columns) {
    const MlaTape& tape = *arrays_.tape;
    const float scale = MlaScale(mla_);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (begin_ + begin + i) * mla_.heads + head_;
      kernel_.elementwise.scale(scale, tape.q + at * key_, key_, queries_ + i * key_);
      std::copy_n(arrays_.d_attended + at * value_, value_, d_out_ + i * value_);
      std::fill_n(weights_ + i * kKeyBlock, columns, -tape.log_sum[at]);
      std::fill_n(d_scores_ + i * kKeyBlock, columns, -delta_[begin + i]);
    }
  }

  const kernels::KernelTable& kernel_;
  const MlaConfig& mla_;
  const HeadArrays& arrays_;
  const int64_t begin_;
  const int64_t count_;
  const int64_t head_;
  const int64_t key_;
  const int64_t value_;
  float* keys_ = nullptr;           // [block, N + R]
  float* keys_across_ = nullptr;    // [N + R, block]
  float* values_across_ = nullptr;  // [V, block]
  float* d_keys_ = nullptr;         // [block, N + R]
  float* d_values_ = nullptr;       // [block, V]
  float* queries_ = nullptr;        // [tile, N + R], scaled
  float* d_out_ = nullptr;          // [tile, V]
  float* weights_ = nullptr;        // P [tile, block]
  float* d_scores_ = nullptr;       // dS [tile, block]
  float* delta_ = nullptr;          // [count]
};

/// Every head of every document.
void RunHeads(const ops::ExecContext& exec, const MlaConfig& mla, const Batch& batch,
              const HeadArrays& arrays) {
  ArenaScope scope(*exec.arena);
  struct Document {
    int64_t begin, count;
  };
  Document* documents = exec.arena->Allocate<Document>(std::ssize(batch.segments));
  int64_t documents_count = 0, begin = 0, longest = 0;
  for (const Segment& segment : batch.segments) {
    const int64_t count = std::ssize(segment.tokens);
    documents[documents_count++] = {begin, count};
    begin += count;
    longest = std::max(longest, count);
  }
  const int64_t floats = BackwardHead::ScratchFloats(mla, longest);
  float* scratch = exec.arena->Allocate<float>(floats * exec.pool->threads_count());
  exec.pool->ParallelFor(documents_count * mla.heads, 1,
                         [&](int64_t first, int64_t end, int worker) {
                           for (int64_t i = first; i < end; ++i) {
                             const Document& document = documents[i / mla.heads];
                             BackwardHead(*exec.kernels, mla, arrays, document.begin,
                                          document.count, i % mla.heads, scratch + worker * floats)
                                 .Run();
                           }
                         });
}

/// One call of MlaBackward. Arrays stand in the arena until it returns.
class Backward {
 public:
  Backward(const ops::ExecContext& exec, const ModelConfig& config, const MlaParameters& p,
           const Batch& batch, const float* x, const MlaTape& tape, MlaGradients& gradients)
      : exec_(exec),
        mla_(config.mla),
        p_(p),
        batch_(batch),
        x_(x),
        tape_(tape),
        gradients_(gradients),
        tokens_(batch.tokens_count()),
        hidden_(config.hidden_size),
        query_(mla_.heads * (mla_.qk_nope_dim + mla_.qk_rope_dim)),
        kv_(mla_.kv_lora_rank + mla_.qk_rope_dim),
        expanded_(mla_.heads * (mla_.qk_nope_dim + mla_.v_dim)),
        value_(mla_.heads * mla_.v_dim) {}

  void Run(const float* dout, float* dx) {
    Gate(dout);
    Attention();
    Latents();
    if (mla_.q_lora_rank > 0) {
      LowRankQueries();
    } else {
      terms_[terms_count_++] = {dq_, query_, p_.q};
      AddWeightGradient(dq_, query_, x_, hidden_, gradients_.q);
    }
    ops::InputGradientTask input{
        .terms = std::span(terms_).first(terms_count_), .count = tokens_, .dx = dx, .ld = hidden_};
    ops::LinearInputGradient(exec_, {&input, 1});
    ops::LinearWeightGradient(exec_, std::span(weights_).first(weights_count_));
  }

 private:
  float* Floats(int64_t count) { return exec_.arena->Allocate<float>(count); }

  void AddWeightGradient(const float* dy, int64_t width, const float* x, int64_t x_width,
                         const GradientMatrix& dw) {
    weights_[weights_count_++] = {dy, width, x, x_width, tokens_, dw};
  }

  /// dx [T, w.cols] = dy W.
  float* InputGradient(const float* dy, const WeightMatrix& w) {
    float* dx = Floats(tokens_ * w.cols);
    const ops::InputGradientTerm term{dy, w.rows, w};
    const ops::InputGradientTask task{
        .terms = {&term, 1}, .count = tokens_, .dx = dx, .ld = w.cols};
    ops::LinearInputGradient(exec_, {&task, 1});
    return dx;
  }

  /// Of y = W_o (a sigmoid(g)): da, and g's gradient.
  void Gate(const float* dout) {
    d_attended_ = InputGradient(dout, p_.output);
    const float* gated = tape_.attended;
    if (mla_.output_gate) {
      float* again = Floats(tokens_ * value_);
      float* d_gate = Floats(tokens_ * value_);
      exec_.pool->ParallelFor(tokens_, 4, [&](int64_t first, int64_t end, int) {
        const int64_t at = first * value_;
        exec_.kernels->backward.sigmoid_gate(tape_.attended + at, tape_.gate + at, d_attended_ + at,
                                             (end - first) * value_, again + at, d_attended_ + at,
                                             d_gate + at);
      });
      gated = again;
      terms_[terms_count_++] = {d_gate, value_, p_.gate};
      AddWeightGradient(d_gate, value_, x_, hidden_, gradients_.gate);
    }
    AddWeightGradient(dout, hidden_, gated, value_, gradients_.output);
  }

  void Attention() {
    const int64_t latent = mla_.kv_lora_rank;
    latents_ = Floats(tokens_ * latent);
    exec_.pool->ParallelFor(tokens_, 8, [&](int64_t first, int64_t end, int) {
      for (int64_t t = first; t < end; ++t) {
        exec_.kernels->elementwise.rms_norm(tape_.kv + t * kv_, p_.kv_norm.data(), latent,
                                            kLowRankNormEps, latents_ + t * latent);
      }
    });
    dq_ = Floats(tokens_ * query_);
    d_expanded_ = Floats(tokens_ * expanded_);
    d_shared_ = Floats(tokens_ * mla_.heads * mla_.qk_rope_dim);
    ArenaScope scope(*exec_.arena);
    float* expanded = Floats(tokens_ * expanded_);
    const ops::RowSet rows = ops::SplitRows(exec_, latents_, tokens_, latent, latent);
    const ops::LinearTask task{&rows, p_.kv_b, expanded, expanded_};
    ops::Linear(exec_, {&task, 1});
    RunHeads(exec_, mla_, batch_,
             {.tape = &tape_,
              .expanded = expanded,
              .d_attended = d_attended_,
              .dq = dq_,
              .d_expanded = d_expanded_,
              .d_shared = d_shared_});
  }

  /// dx [T, w.size()] of rows normed with w, from dy at stride w.size(); x and dx at stride `ld`.
  void NormGradient(const float* x, int64_t ld, const Vector& w, const float* dy, float* dx,
                    Vector& dw) {
    const int64_t n = std::ssize(w);
    ops::SumOverRows(
        exec_, tokens_, n,
        [&](int64_t first, int64_t end, float* partial, int) {
          for (int64_t t = first; t < end; ++t) {
            exec_.kernels->backward.rms_norm(x + t * ld, w.data(), dy + t * n, n, kLowRankNormEps,
                                             dx + t * ld, partial);
          }
        },
        dw.data());
  }

  /// The latent and the shared dims, whose gradients of all heads are added in order.
  void Latents() {
    const int64_t latent = mla_.kv_lora_rank, shared = mla_.qk_rope_dim;
    float* d_kv = Floats(tokens_ * kv_);
    const float* d_latents = InputGradient(d_expanded_, p_.kv_b);
    NormGradient(tape_.kv, kv_, p_.kv_norm, d_latents, d_kv, gradients_.kv_norm);
    exec_.pool->ParallelFor(tokens_, 8, [&](int64_t first, int64_t end, int) {
      for (int64_t t = first; t < end; ++t) {
        float* out = d_kv + t * kv_ + latent;
        const float* of_heads = d_shared_ + t * mla_.heads * shared;
        std::copy_n(of_heads, shared, out);
        for (int64_t h = 1; h < mla_.heads; ++h) {
          exec_.kernels->elementwise.add(of_heads + h * shared, shared, out);
        }
      }
    });
    AddWeightGradient(d_expanded_, expanded_, latents_, latent, gradients_.kv_b);
    terms_[terms_count_++] = {d_kv, kv_, p_.kv_a};
    AddWeightGradient(d_kv, kv_, x_, hidden_, gradients_.kv_a);
  }

  void LowRankQueries() {
    const int64_t rank = mla_.q_lora_rank;
    float* normed = Floats(tokens_ * rank);
    exec_.pool->ParallelFor(tokens_, 8, [&](int64_t first, int64_t end, int) {
      for (int64_t t = first; t < end; ++t) {
        exec_.kernels->elementwise.rms_norm(tape_.q_low + t * rank, p_.q_norm.data(), rank,
                                            kLowRankNormEps, normed + t * rank);
      }
    });
    AddWeightGradient(dq_, query_, normed, rank, gradients_.q_b);
    float* d_low = InputGradient(dq_, p_.q_b);
    NormGradient(tape_.q_low, rank, p_.q_norm, d_low, d_low, gradients_.q_norm);
    terms_[terms_count_++] = {d_low, rank, p_.q_a};
    AddWeightGradient(d_low, rank, x_, hidden_, gradients_.q_a);
  }

  const ops::ExecContext& exec_;
  const MlaConfig& mla_;
  const MlaParameters& p_;
  const Batch& batch_;
  const float* x_;
  const MlaTape& tape_;
  MlaGradients& gradients_;
  const int64_t tokens_, hidden_;
  const int64_t query_, kv_, expanded_, value_;  // widths of rows
  float* d_attended_ = nullptr;
  float* latents_ = nullptr;  // normed [T, L]
  float* dq_ = nullptr;
  float* d_expanded_ = nullptr;
  float* d_shared_ = nullptr;
  std::array<ops::InputGradientTerm, 3> terms_;  // of dx
  size_t terms_count_ = 0;
  std::array<ops::WeightGradientTask, 6> weights_;
  size_t weights_count_ = 0;
};

}  // namespace

void MlaBackward(const ops::ExecContext& exec, const ModelConfig& config,
                 const MlaParameters& parameters, const Batch& batch, const float* x,
                 const MlaTape* tape, const float* dout, float* dx, MlaGradients& gradients) {
  ArenaScope scope(*exec.arena);
  MlaTape again;
  if (tape == nullptr) {
    const int64_t tokens = batch.tokens_count();
    again = MlaTape::Allocate(*exec.arena, config.mla, tokens);
    ArenaScope rows_scope(*exec.arena);
    const ops::RowSet rows =
        ops::SplitRows(exec, x, tokens, config.hidden_size, config.hidden_size);
    MlaAttend(exec, config.mla, parameters, 0, batch, rows, again);
    tape = &again;
  }
  Backward(exec, config, parameters, batch, x, *tape, gradients).Run(dout, dx);
}

}  // namespace k3::model
