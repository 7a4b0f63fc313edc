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

#include "base/arithmetic.h"
#include "base/check.h"
#include "model/kda_heads.h"

namespace k3::model {
namespace {

using cache::kChunkTokens;
using cache::KdaState;

/// One head's state: of a sequence, or of a document in training, which starts empty.
struct HeadState {
  int64_t value_stride = 0;
  float *state, *decay, *keys, *alpha, *u;  // as in KdaState; alpha null with an anchored decay

  static HeadState Of(KdaState& of, int64_t head, int64_t key_dim) {
    const int64_t rows = kChunkTokens * key_dim;
    return {.value_stride = of.value_stride,
            .state = of.state.data() + head * key_dim * of.value_stride,
            .decay = of.decay.data() + head * rows,
            .keys = of.keys.data() + head * rows,
            .alpha = of.alpha.count() > 0 ? of.alpha.data() + head * rows : nullptr,
            .u = of.u.data() + head * kChunkTokens * of.value_stride};
  }

  static int64_t ScratchFloats(int64_t key_dim) {
    const int64_t stride = RoundUp(key_dim, 16);
    return (key_dim + kChunkTokens) * stride + 3 * kChunkTokens * key_dim;
  }

  static HeadState Empty(float* at, const KdaConfig& kda) {
    const int64_t n = kda.head_dim, stride = RoundUp(n, 16), rows = kChunkTokens * n;
    HeadState empty{.value_stride = stride};
    empty.state = at;
    empty.u = empty.state + n * stride;
    empty.decay = empty.u + kChunkTokens * stride;
    empty.keys = empty.decay + rows;
    empty.alpha = cache::HasAnchoredDecay(kda) ? nullptr : empty.keys + rows;
    std::fill_n(at, ScratchFloats(n), 0.0f);
    return empty;
  }
};

/// One head of one segment: everything between the projections and W_o.
class HeadRunner {
 public:
  HeadRunner(const KdaHeadInputs& inputs, float eps, const HeadState& state, float* scratch)
      : inputs_(inputs), eps_(eps), state_(state), scratch_(scratch) {}

  static int64_t ScratchFloats(int64_t key_dim) {
    return kChunkTokens * (4 * key_dim + 1) +
           kernels::KdaScratchFloats(key_dim, RoundUp(key_dim, 16));
  }

  /// The segment's `count` tokens, the first at position `start`. `snapshots` as in Segment, of
  /// which this fills the head's state in KDA layer `kda_layer`.
  void Run(int64_t count, int64_t start, std::span<const SnapshotPoint> snapshots, size_t kda_layer,
           float* out) {
    const int64_t n = inputs_.kda.head_dim;
    const kernels::KdaHead open = {.key_dim = n,
                                   .value_dim = n,
                                   .value_stride = state_.value_stride,
                                   .state = state_.state,
                                   .decay = state_.decay,
                                   .keys = state_.keys,
                                   .alpha = state_.alpha,
                                   .u = state_.u};
    for (int64_t done = 0; done < count;) {
      const int64_t row = (start + done) % kChunkTokens;
      const int64_t rows = std::min(kChunkTokens - row, count - done);
      RunRows(open, done, row, rows, out);
      if (row + rows == kChunkTokens) {
        inputs_.kernels.kda.fold(open, state_.state, scratch_ + kChunkTokens * (4 * n + 1));
      }
      done += rows;
      if (!snapshots.empty() && snapshots.front().at == start + done) {
        const int64_t floats = n * state_.value_stride;
        std::copy_n(
            state_.state, floats,
            snapshots.front().snapshot->layers[kda_layer].state.data() + inputs_.head * floats);
        snapshots = snapshots.subspan(1);
      }
    }
    K3_CHECK(snapshots.empty(), "snapshots are taken on the grid, inside the segment");
  }

 private:
  /// Rows of one chunk: the chunk kernel, output norm and gate.
  void RunRows(const kernels::KdaHead& open, int64_t done, int64_t row, int64_t rows, float* out) {
    const int64_t n = inputs_.kda.head_dim, channels = inputs_.channels();
    float* q = scratch_;
    float* k = q + kChunkTokens * n;
    float* v = k + kChunkTokens * n;
    float* alpha = v + kChunkTokens * n;
    float* beta = alpha + kChunkTokens * n;
    MakeKdaRows(inputs_, done, rows,
                {.q = q, .k = k, .v = v, .alpha = alpha, .ld = n, .beta = beta});
    const int64_t first = inputs_.At(done);
    inputs_.kernels.kda.append(open,
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
                                .o_ld = channels},
                               beta + kChunkTokens);
    for (int64_t i = 0; i < rows; ++i) {
      float* o = out + first + i * channels;
      inputs_.kernels.elementwise.gated_rms_norm(
          o, inputs_.p.output_norm.data(), inputs_.in.gate + first + i * channels, n, eps_, o);
    }
  }

  const KdaHeadInputs& inputs_;
  const float eps_;
  const HeadState state_;
  float* scratch_;
};

/// The last taps - 1 inputs before the convolution, for the tokens behind the segment's first
/// `count`. `kept` may be the history that `inputs` reads: it is oldest first, so ascending rows
/// never overwrite what is needed.
void KeepConvolutionInputs(const KdaHeadInputs& inputs, int64_t count, float* kept) {
  const int64_t rows = inputs.kda.conv_kernel - 1, n = inputs.kda.head_dim;
  const std::array<const float*, 3> arrays = {inputs.in.q, inputs.in.k, inputs.in.v};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t which = 0; which < 3; ++which) {
      const float* from =
          inputs.Source(arrays[static_cast<size_t>(which)], which, count - rows + row);
      std::copy(from, from + n, kept + (row * 3 + which) * inputs.channels() + inputs.head * n);
    }
  }
}

}  // namespace

KdaTape KdaTape::Allocate(Arena& arena, const KdaConfig& kda, int64_t tokens) {
  const int64_t channels = kda.heads * kda.head_dim;
  KdaTape tape{};
  for (float** array : {&tape.q, &tape.k, &tape.v, &tape.gate, &tape.decay}) {
    *array = arena.Allocate<float>(tokens * channels);
  }
  tape.decay_low = arena.Allocate<float>(tokens * kda.head_dim);
  if (!kda.full_rank_gate) tape.gate_low = arena.Allocate<float>(tokens * kda.head_dim);
  tape.beta = arena.Allocate<float>(tokens * kda.heads);
  return tape;
}

void ProjectKda(const ops::ExecContext& exec, const KdaConfig& kda, const KdaParameters& p,
                const ops::RowSet& x, const KdaTape& out) {
  const int64_t t = x.count, k = kda.head_dim, c = kda.heads * k;
  std::array<ops::LinearTask, 6> first = {{{&x, p.q, out.q, c},
                                           {&x, p.k, out.k, c},
                                           {&x, p.v, out.v, c},
                                           {&x, p.decay_a, out.decay_low, k},
                                           {&x, p.beta, out.beta, kda.heads},
                                           {&x, p.gate, out.gate, c}}};
  if (!kda.full_rank_gate) first[5] = {&x, p.gate_a, out.gate_low, k};
  ops::Linear(exec, first);

  const ops::RowSet low = ops::SplitRows(exec, out.decay_low, t, k, k);
  ops::RowSet low_gate;
  std::array<ops::LinearTask, 2> second = {{{&low, p.decay_b, out.decay, c}}};
  if (!kda.full_rank_gate) {
    low_gate = ops::SplitRows(exec, out.gate_low, t, k, k);
    second[1] = {&low_gate, p.gate_b, out.gate, c};
  }
  ops::Linear(exec, std::span(second).first(kda.full_rank_gate ? 1 : 2));
}

const float* KdaHeadInputs::Source(const float* array, int64_t which, int64_t t) const {
  if (t >= 0) return array + At(t);
  if (history == nullptr) return zeros;
  return history + ((kda.conv_kernel - 1 + t) * 3 + which) * channels() + head * kda.head_dim;
}

float KdaQueryScale(const KdaConfig& kda) {
  return 1.0f / std::sqrt(static_cast<float>(kda.head_dim));
}

void MakeKdaRows(const KdaHeadInputs& head, int64_t t, int64_t rows, const KdaHeadRows& out) {
  const auto& e = head.kernels.elementwise;
  const KdaConfig& kda = head.kda;
  const int64_t n = kda.head_dim, at = head.head * n, channels = head.channels();
  const auto convolve = [&](const float* array, const Vector& taps, int64_t which, int64_t token,
                            float* y) {
    const float* sources[16];
    for (int64_t j = 0; j < kda.conv_kernel; ++j) {
      sources[j] = head.Source(array, which, token - (kda.conv_kernel - 1) + j);
    }
    e.conv_silu(sources, taps.data() + at, channels, kda.conv_kernel, n, y);
  };
  const float rate = head.p.rate[static_cast<size_t>(head.head)];
  const float* bias = head.p.dt_bias.data() + at;
  for (int64_t i = 0; i < rows; ++i) {
    for (const float* array : {head.in.q, head.in.k, head.in.v, head.in.decay}) {
      PrefetchRow(array + head.At(t + i + kChunkTokens), n);
    }
    float* q = out.q + i * out.ld;
    float* k = out.k + i * out.ld;
    convolve(head.in.q, head.p.conv_q, 0, t + i, q);
    convolve(head.in.k, head.p.conv_k, 1, t + i, k);
    convolve(head.in.v, head.p.conv_v, 2, t + i, out.v + i * out.ld);
    e.l2_norm(q, n, kL2NormEps, KdaQueryScale(kda), q);
    e.l2_norm(k, n, kL2NormEps, 1.0f, k);
    const float* raw = head.in.decay + head.At(t + i);
    float* alpha = out.alpha + i * out.ld;
    if (kda.gate_lower_bound.has_value()) {
      e.bounded_decay(raw, bias, rate, *kda.gate_lower_bound, n, alpha);
    } else {
      e.unbounded_decay(raw, bias, rate, n, alpha);
    }
    out.beta[i] = head.in.beta[(head.begin + t + i) * kda.heads + head.head];
  }
  e.sigmoid(out.beta, rows, out.beta);
}

std::span<int64_t> SegmentBegins(Arena& arena, const Batch& batch) {
  const std::span<int64_t> begins =
      arena.AllocateSpan<int64_t>(static_cast<int64_t>(batch.segments.size()));
  int64_t at = 0;
  for (size_t s = 0; s < begins.size(); ++s) {
    begins[s] = at;
    at += static_cast<int64_t>(batch.segments[s].tokens.size());
  }
  return begins;
}

void Kda(const ops::ExecContext& exec, const ModelConfig& config, const KdaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out, KdaTape* tape) {
  ArenaScope scope(*exec.arena);
  const KdaConfig& kda = config.kda;
  const int64_t n = kda.head_dim, channels = kda.heads * n;
  const KdaTape in = tape != nullptr ? *tape : KdaTape::Allocate(*exec.arena, kda, x.count);
  ProjectKda(exec, kda, parameters, x, in);
  float* heads_out = exec.arena->Allocate<float>(x.count * channels);

  const std::span<const int64_t> begins = SegmentBegins(*exec.arena, batch);
  const int64_t run_floats = RoundUp(HeadRunner::ScratchFloats(n), 16);
  const int64_t scratch_floats = run_floats + HeadState::ScratchFloats(n);
  float* scratch = exec.arena->Allocate<float>(scratch_floats * exec.pool->threads_count());
  float* zeros = exec.arena->Allocate<float>(n);
  std::fill_n(zeros, n, 0.0f);
  const auto kda_layer =
      static_cast<size_t>(std::count(config.is_mla.begin(), config.is_mla.begin() + layer, false));
  const int64_t jobs = static_cast<int64_t>(begins.size()) * kda.heads;
  exec.pool->ParallelFor(jobs, 1, [&](int64_t begin, int64_t end, int worker) {
    float* own = scratch + worker * scratch_floats;
    for (int64_t i = begin; i < end; ++i) {
      const size_t s = static_cast<size_t>(i / kda.heads);
      const int64_t head = i % kda.heads;
      const Segment& segment = batch.segments[s];
      const int64_t count = static_cast<int64_t>(segment.tokens.size());
      KdaState* kept = segment.state != nullptr ? &segment.state->kda(layer) : nullptr;
      const KdaHeadInputs inputs{.kernels = *exec.kernels,
                                 .kda = kda,
                                 .p = parameters,
                                 .in = in,
                                 .head = head,
                                 .begin = begins[s],
                                 .history = kept != nullptr ? kept->conv.data() : nullptr,
                                 .zeros = zeros};
      const HeadState state =
          kept != nullptr ? HeadState::Of(*kept, head, n) : HeadState::Empty(own + run_floats, kda);
      const int64_t start = kept != nullptr ? segment.state->length() : 0;
      HeadRunner(inputs, config.rms_norm_eps, state, own)
          .Run(count, start, segment.snapshots, kda_layer, heads_out);
      if (kept == nullptr) continue;
      for (const SnapshotPoint& point : segment.snapshots) {
        KeepConvolutionInputs(inputs, point.at - start,
                              point.snapshot->layers[kda_layer].conv.data());
      }
      KeepConvolutionInputs(inputs, count, kept->conv.data());
    }
  });

  const ops::RowSet y = ops::SplitRows(exec, heads_out, x.count, channels, channels);
  const ops::LinearTask task{&y, parameters.output, out, config.hidden_size};
  ops::Linear(exec, {&task, 1});
}

}  // namespace k3::model
