// Per head, with state S [dk, dv] (technical report, Kimi Delta Attention):
//   q, k, v = SiLU(conv(W x));  q <- q / |q| dk^-1/2,  k <- k / |k|
//   alpha = exp(lower_bound sigmoid(exp(A) (f(x) + dt_bias)))      per key channel, or
//           exp(-exp(A) softplus(f(x) + dt_bias)) without a bound
//   beta  = sigmoid(b(x))
//   S <- Diag(alpha) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
//   y = W_o (RMSNorm(o) sigmoid(g(x)))
// computed on the absolute grid of 16-token chunks (kernels/kda.cc).
#include "model/kda.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace k3::model {
namespace {

using cache::kChunkTokens;
using cache::KdaState;

/// Outputs of the input projections, [T, C] unless said.
struct Projected {
  float *q, *k, *v, *gate;
  float* decay;  // f(x)
  float* beta;   // b(x) [T, H]
};

Projected Project(const ops::ExecContext& exec, const KdaConfig& kda, const KdaParameters& p,
                  const ops::RowSet& x) {
  const int64_t t = x.count, k = kda.head_dim, c = kda.heads * k;
  Arena& arena = *exec.arena;
  Projected out{};
  for (float** array : {&out.q, &out.k, &out.v, &out.gate, &out.decay}) {
    *array = arena.Allocate<float>(t * c);
  }
  out.beta = arena.Allocate<float>(t * kda.heads);
  float* decay_low = arena.Allocate<float>(t * k);
  float* gate_low = arena.Allocate<float>(t * k);
  std::array<ops::LinearTask, 6> first = {{{&x, p.q, out.q, c},
                                           {&x, p.k, out.k, c},
                                           {&x, p.v, out.v, c},
                                           {&x, p.decay_a, decay_low, k},
                                           {&x, p.beta, out.beta, kda.heads},
                                           {&x, p.gate, out.gate, c}}};
  if (!kda.full_rank_gate) first[5] = {&x, p.gate_a, gate_low, k};
  ops::Linear(exec, first);

  const ops::RowSet low = ops::SplitRows(exec, decay_low, t, k, k);
  ops::RowSet low_gate;
  std::array<ops::LinearTask, 2> second = {{{&low, p.decay_b, out.decay, c}}};
  if (!kda.full_rank_gate) {
    low_gate = ops::SplitRows(exec, gate_low, t, k, k);
    second[1] = {&low_gate, p.gate_b, out.gate, c};
  }
  ops::Linear(exec, std::span(second).first(kda.full_rank_gate ? 1 : 2));
  return out;
}

/// One head of one segment: everything between the projections and W_o.
class HeadRunner {
 public:
  HeadRunner(const ops::ExecContext& exec, const ModelConfig& config, const KdaParameters& p,
             const Projected& in, KdaState& state, int64_t head, float* scratch)
      : kernel_(*exec.kernels),
        kda_(config.kda),
        eps_(config.rms_norm_eps),
        p_(p),
        in_(in),
        state_(state),
        head_(head),
        channels_(config.kda.heads * config.kda.head_dim),
        scratch_(scratch) {}

  static int64_t ScratchFloats(const KdaConfig& kda, int64_t value_stride) {
    return kChunkTokens * (4 * kda.head_dim + 1) +
           kernels::KdaScratchFloats(kda.head_dim, value_stride);
  }

  /// Tokens [begin, begin + count) of the batch, the first at position `start`.
  void Run(int64_t begin, int64_t count, int64_t start, float* out) {
    const kernels::KdaHead open = OpenChunk();
    for (int64_t done = 0; done < count;) {
      const int64_t row = (start + done) % kChunkTokens;
      const int64_t rows = std::min(kChunkTokens - row, count - done);
      RunRows(open, begin, done, row, rows, out);
      if (row + rows == kChunkTokens) {
        kernel_.kda.fold(open, State(), scratch_ + kChunkTokens * (4 * kda_.head_dim + 1));
      }
      done += rows;
    }
    KeepConvolutionInputs(begin, count);
  }

 private:
  float* State() { return state_.state.data() + head_ * kda_.head_dim * state_.value_stride; }

  kernels::KdaHead OpenChunk() {
    const int64_t rows = kChunkTokens * kda_.head_dim;
    return {.key_dim = kda_.head_dim,
            .value_dim = kda_.head_dim,
            .value_stride = state_.value_stride,
            .state = State(),
            .decay = state_.decay.data() + head_ * rows,
            .keys = state_.keys.data() + head_ * rows,
            .alpha = state_.alpha.count() > 0 ? state_.alpha.data() + head_ * rows : nullptr,
            .u = state_.u.data() + head_ * kChunkTokens * state_.value_stride};
  }

  /// Rows of one chunk: convolutions, norms, gates, the chunk kernel, output norm and gate.
  void RunRows(const kernels::KdaHead& open, int64_t begin, int64_t done, int64_t row, int64_t rows,
               float* out) {
    const auto& e = kernel_.elementwise;
    const int64_t n = kda_.head_dim, at = head_ * n;
    float* q = scratch_;
    float* k = q + kChunkTokens * n;
    float* v = k + kChunkTokens * n;
    float* alpha = v + kChunkTokens * n;
    float* beta = alpha + kChunkTokens * n;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = done + i;
      Convolve(in_.q, p_.conv_q, 0, begin, t, q + i * n);
      Convolve(in_.k, p_.conv_k, 1, begin, t, k + i * n);
      Convolve(in_.v, p_.conv_v, 2, begin, t, v + i * n);
      e.l2_norm(q + i * n, n, kL2NormEps, 1.0f / std::sqrt(static_cast<float>(n)), q + i * n);
      e.l2_norm(k + i * n, n, kL2NormEps, 1.0f, k + i * n);
      const float* raw = in_.decay + (begin + t) * channels_ + at;
      const float rate = p_.rate[static_cast<size_t>(head_)];
      if (kda_.gate_lower_bound.has_value()) {
        e.bounded_decay(raw, p_.dt_bias.data() + at, rate, *kda_.gate_lower_bound, n,
                        alpha + i * n);
      } else {
        e.unbounded_decay(raw, p_.dt_bias.data() + at, rate, n, alpha + i * n);
      }
      beta[i] = in_.beta[(begin + t) * kda_.heads + head_];
    }
    e.sigmoid(beta, rows, beta);
    const int64_t first = (begin + done) * channels_ + at;
    kernel_.kda.append(open,
                       {.first = row,
                        .count = rows,
                        .q = q,
                        .k = k,
                        .alpha = alpha,
                        .key_ld = n,
                        .alpha_ld = n,
                        .v = v,
                        .v_ld = n,
                        .beta = beta,
                        .beta_ld = 1,
                        .o = out + first,
                        .o_ld = channels_},
                       beta + kChunkTokens);
    for (int64_t i = 0; i < rows; ++i) {
      float* o = out + first + i * channels_;
      e.gated_rms_norm(o, p_.output_norm.data(), in_.gate + first + i * channels_, n, eps_, o);
    }
  }

  /// SiLU of the causal convolution for token t of the segment, this head's channels.
  /// `which` is 0, 1, 2 for q, k, v in the kept inputs.
  void Convolve(const float* u, const Vector& taps, int64_t which, int64_t begin, int64_t t,
                float* y) {
    const int64_t n = kda_.head_dim, kept = kda_.conv_kernel - 1;
    const float* rows[16];
    for (int64_t j = 0; j <= kept; ++j) {
      const int64_t source = t - kept + j;
      rows[j] =
          source >= 0 ? u + (begin + source) * channels_ + head_ * n : Kept(kept + source, which);
    }
    kernel_.elementwise.conv_silu(rows, taps.data() + head_ * n, channels_, kept + 1, n, y);
  }

  float* Kept(int64_t row, int64_t which) {
    return state_.conv.data() + (row * 3 + which) * channels_ + head_ * kda_.head_dim;
  }

  /// The last taps - 1 inputs before the convolution, for the tokens to come.
  void KeepConvolutionInputs(int64_t begin, int64_t count) {
    const int64_t kept = kda_.conv_kernel - 1, n = kda_.head_dim;
    const std::array<const float*, 3> inputs = {in_.q, in_.k, in_.v};
    for (int64_t row = 0; row < kept; ++row) {
      const int64_t source = count - kept + row;
      for (int64_t which = 0; which < 3; ++which) {
        const float* from = source >= 0 ? inputs[static_cast<size_t>(which)] +
                                              (begin + source) * channels_ + head_ * n
                                        : Kept(kept + source, which);
        std::copy(from, from + n, Kept(row, which));
      }
    }
  }

  const kernels::KernelTable& kernel_;
  const KdaConfig& kda_;
  const float eps_;
  const KdaParameters& p_;
  const Projected& in_;
  KdaState& state_;
  const int64_t head_;
  const int64_t channels_;
  float* scratch_;
};

}  // namespace

void Kda(const ops::ExecContext& exec, const ModelConfig& config, const KdaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out) {
  ArenaScope scope(*exec.arena);
  const KdaConfig& kda = config.kda;
  const int64_t channels = kda.heads * kda.head_dim;
  const Projected in = Project(exec, kda, parameters, x);
  float* heads_out = exec.arena->Allocate<float>(x.count * channels);

  const int64_t segments = static_cast<int64_t>(batch.segments.size());
  int64_t* begins = exec.arena->Allocate<int64_t>(segments);
  int64_t begin_at = 0;
  for (int64_t s = 0; s < segments; ++s) {
    begins[s] = begin_at;
    begin_at += static_cast<int64_t>(batch.segments[static_cast<size_t>(s)].tokens.size());
  }
  const int64_t scratch_floats = HeadRunner::ScratchFloats(kda, (kda.head_dim + 15) / 16 * 16);
  float* scratch = exec.arena->Allocate<float>(scratch_floats * exec.pool->threads_count());
  exec.pool->ParallelFor(segments * kda.heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const Segment& segment = batch.segments[static_cast<size_t>(i / kda.heads)];
      HeadRunner runner(exec, config, parameters, in, segment.state->kda(layer), i % kda.heads,
                        scratch + worker * scratch_floats);
      runner.Run(begins[i / kda.heads], static_cast<int64_t>(segment.tokens.size()),
                 segment.state->length(), heads_out);
    }
  });

  const ops::RowSet y = ops::SplitRows(exec, heads_out, x.count, channels, channels);
  const ops::LinearTask task{&y, parameters.output, out, config.hidden_size};
  ops::Linear(exec, {&task, 1});
}

}  // namespace k3::model
