// Gradients of Kimi Delta Attention, formulas in kda.cc and kernels/kda_backward.cc. A head of a
// segment is one piece of work: forward once more, with the state at the start of every chunk and
// what the chunk kernel leaves kept in the worker's scratch, then the chunks from the last to the
// first. Every document starts with an empty state, zeros before its first token and its own grid
// of chunks; a short last chunk is padded with rows that change nothing.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/arithmetic.h"
#include "model/kda.h"
#include "model/kda_heads.h"
#include "ops/gradients.h"

namespace k3::model {
namespace {

constexpr int64_t kChunk = kernels::kKdaChunk;

/// Gradients by the projections' outputs, [T, C] unless said.
struct ProjectionGradients {
  float *q, *k, *v, *decay;
  float* gate;  // first the gradient by W_o's input
  float* y;     // W_o's input once more
  float* beta;  // [T, H]
};

/// One head's sums over one segment, added up in order afterwards.
struct VectorPartials {
  float* conv[3];      // [taps, K]
  float* dt_bias;      // [K]
  float* output_norm;  // [K]
  float* rate;         // [16] lanes

  static int64_t Floats(const KdaConfig& kda) {
    return (3 * kda.conv_kernel + 2) * kda.head_dim + 16;
  }
  VectorPartials(float* at, const KdaConfig& kda) {
    for (float*& array : conv) {
      array = at;
      at += kda.conv_kernel * kda.head_dim;
    }
    dt_bias = at;
    output_norm = dt_bias + kda.head_dim;
    rate = output_norm + kda.head_dim;
  }
};

/// What the forward pass leaves of one chunk, for the way back. Channels padded to n.
struct ChunkRecord {
  float *state, *decay, *keys, *alpha, *q, *u, *o, *beta, *appended;

  static int64_t Floats(int64_t n, bool anchored) {
    return n * n + (anchored ? 4 : 6) * kChunk * n + kChunk + kernels::KdaScratchFloats(n, n);
  }
  ChunkRecord(float* at, int64_t n, bool anchored) {
    state = at;
    decay = state + n * n;
    keys = decay + kChunk * n;
    u = keys + kChunk * n;
    o = u + kChunk * n;
    alpha = o + kChunk * n;
    q = alpha + (anchored ? 0 : kChunk * n);
    beta = q + (anchored ? 0 : kChunk * n);
    appended = beta + kChunk;
    if (anchored) alpha = q = nullptr;
  }
};

/// One worker's scratch: rows of a chunk on the way forward, gradients on the way back, records.
class HeadScratch {
 public:
  HeadScratch(float* at, const KdaConfig& kda)
      : n_(RoundUp(kda.head_dim, 16)),
        anchored_(cache::HasAnchoredDecay(kda)),
        record_floats_(RecordFloats(n_, anchored_)) {
    const auto take = [&at](float*& array, int64_t count) {
      array = at;
      at += count;
    };
    for (float** rows : {&q, &k, &v, &alpha, &dq, &dk, &dg, &dv}) take(*rows, kChunk * n_);
    take(dy, 2 * kChunk * n_);
    for (float*& rows : dsum) take(rows, (kChunk + kda.conv_kernel - 1) * n_);
    take(sources, (kChunk + kda.conv_kernel - 1) * n_);
    take(dbeta, kChunk);
    take(dstate, n_ * n_);
    take(kernel, KernelFloats(n_));
    records_ = at;
  }

  static int64_t Floats(const KdaConfig& kda, int64_t chunks) {
    const int64_t n = RoundUp(kda.head_dim, 16);
    const int64_t rows = 10 * kChunk + 4 * (kChunk + kda.conv_kernel - 1);
    return rows * n + kChunk + n * n + KernelFloats(n) +
           chunks * RecordFloats(n, cache::HasAnchoredDecay(kda));
  }

  int64_t n() const { return n_; }
  ChunkRecord Record(int64_t chunk) const {
    return {records_ + chunk * record_floats_, n_, anchored_};
  }

  float *q, *k, *v, *alpha, *dq, *dk, *dg, *dv;  // [16, n]
  float* dy;                                     // [32, n]
  float* dsum[3];  // [16 + taps - 1, n] by the convolutions' sums of q, k, v
  float* sources;  // [16 + taps - 1, n], a convolution's inputs
  float* dbeta;    // [16]
  float* dstate;   // [n, n]
  float* kernel;

 private:
  static int64_t KernelFloats(int64_t n) {
    return std::max(kernels::KdaBackwardScratchFloats(n, n), kernels::KdaScratchFloats(n, n));
  }
  static int64_t RecordFloats(int64_t n, bool anchored) {
    return RoundUp(ChunkRecord::Floats(n, anchored), 16);
  }

  int64_t n_;
  bool anchored_;
  int64_t record_floats_;
  float* records_;
};

class HeadBackward {
 public:
  HeadBackward(const KdaHeadInputs& inputs, float eps, int64_t count, const HeadScratch& scratch,
               const ProjectionGradients& out, const VectorPartials& partials)
      : in_(inputs),
        eps_(eps),
        count_(count),
        chunks_((count + kChunk - 1) / kChunk),
        s_(scratch),
        out_(out),
        partials_(partials),
        n_(scratch.n()) {}

  void Run() {
    std::fill_n(s_.Record(0).state, n_ * n_, 0.0f);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) Forward(chunk);
    std::fill_n(s_.dstate, n_ * n_, 0.0f);
    for (int64_t chunk = chunks_ - 1; chunk >= 0; --chunk) Backward(chunk);
  }

 private:
  int64_t Rows(int64_t chunk) const { return std::min(kChunk, count_ - chunk * kChunk); }

  /// Clears the rows of a short chunk that belong to no token.
  void ClearRows(float* array, int64_t rows, float value = 0.0f) const {
    std::fill(array + rows * n_, array + kChunk * n_, value);
  }

  void Forward(int64_t chunk) const {
    const ChunkRecord record = s_.Record(chunk);
    const int64_t rows = Rows(chunk);
    float* q = record.q != nullptr ? record.q : s_.q;
    MakeKdaRows(in_, chunk * kChunk, rows,
                {.q = q, .k = s_.k, .v = s_.v, .alpha = s_.alpha, .ld = n_, .beta = record.beta});
    for (float* array : {q, s_.k, s_.v}) ClearRows(array, rows);
    ClearRows(s_.alpha, rows, 1.0f);
    std::fill(record.beta + rows, record.beta + kChunk, 0.0f);
    const kernels::KdaHead head = {.key_dim = n_,
                                   .value_dim = n_,
                                   .value_stride = n_,
                                   .state = record.state,
                                   .decay = record.decay,
                                   .keys = record.keys,
                                   .alpha = record.alpha,
                                   .u = record.u};
    in_.kernels.kda.append(head,
                           {.first = 0,
                            .count = kChunk,
                            .q = q,
                            .k = s_.k,
                            .alpha = s_.alpha,
                            .key_ld = n_,
                            .alpha_ld = n_,
                            .v = s_.v,
                            .v_ld = n_,
                            .beta = record.beta,
                            .beta_ld = 1,
                            .o = record.o,
                            .o_ld = n_},
                           record.appended);
    if (chunk + 1 < chunks_) {
      float* next = s_.Record(chunk + 1).state;
      std::copy_n(record.state, n_ * n_, next);
      in_.kernels.kda.fold(head, next, s_.kernel);
    }
  }

  /// Copies tokens [first, first + count) of `array` [T, C] together: rows at stride n. Rows of one
  /// head lie far apart; here they are fetched all at once, and keep clear of each other in the
  /// cache.
  void Pack(const float* array, int64_t first, int64_t count, float* rows) const {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(in_.Source(array, 0, first + i), in_.kda.head_dim, rows + i * n_);
    }
  }

  /// Asks for a chunk's rows of arrays [T, C] that are to be written.
  void Prefetch(int64_t chunk, std::initializer_list<const float*> arrays) const {
    if (chunk < 0) return;
    const int64_t rows = Rows(chunk), first = in_.At(chunk * kChunk);
    for (const float* array : arrays) {
      for (int64_t i = 0; i < rows; ++i) {
        PrefetchRow(array + first + i * in_.channels(), in_.kda.head_dim);
      }
    }
  }

  void Backward(int64_t chunk) const {
    const ChunkRecord record = s_.Record(chunk);
    const int64_t rows = Rows(chunk), k = in_.kda.head_dim, channels = in_.channels();
    const int64_t first = in_.At(chunk * kChunk);
    float* dout = s_.dy + kChunk * n_;
    float* gate = s_.dq;  // not in use yet
    float* dheads = s_.dk;
    Pack(in_.in.gate, chunk * kChunk, rows, gate);
    Pack(out_.gate, chunk * kChunk, rows, dheads);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = first + i * channels;
      in_.kernels.kda_backward.gated_rms_norm(record.o + i * n_, in_.p.output_norm.data(),
                                              gate + i * n_, dheads + i * n_, k, eps_, out_.y + at,
                                              dout + i * n_, out_.gate + at, partials_.output_norm);
    }
    ClearRows(dout, rows);
    in_.kernels.kda_backward.chunk({.key_dim = n_,
                                    .value_dim = n_,
                                    .state = record.state,
                                    .decay = record.decay,
                                    .keys = record.keys,
                                    .alpha = record.alpha,
                                    .q = record.q,
                                    .u = record.u,
                                    .beta = record.beta,
                                    .appended = record.appended,
                                    .dstate = s_.dstate,
                                    .dy = s_.dy,
                                    .dq = s_.dq,
                                    .dk = s_.dk,
                                    .dg = s_.dg,
                                    .dv = s_.dv,
                                    .dbeta = s_.dbeta},
                                   s_.kernel);
    const KdaTape& in = in_.in;
    Convolution(chunk, 0, in.q, in_.p.conv_q, KdaQueryScale(in_.kda), s_.dq, out_.q);
    Convolution(chunk, 1, in.k, in_.p.conv_k, 1.0f, s_.dk, out_.k);
    Convolution(chunk, 2, in.v, in_.p.conv_v, 0.0f, s_.dv, out_.v);
    Gates(chunk, record.beta);
  }

  /// Norm (where scale is not 0), SiLU and convolution of q, k or v (`which` 0, 1, 2).
  void Convolution(int64_t chunk, int64_t which, const float* array, const Vector& taps,
                   float scale, const float* dy, float* out) const {
    const int64_t k = in_.kda.head_dim, taps_count = in_.kda.conv_kernel, kept = taps_count - 1;
    const int64_t rows = Rows(chunk), channels = in_.channels();
    const float* sources[kChunk + 15];
    Pack(array, chunk * kChunk - kept, kept + rows, s_.sources);
    for (int64_t i = 0; i < kept + rows; ++i) sources[i] = s_.sources + i * n_;
    Prefetch(chunk, {out});
    const float* weights = taps.data() + in_.head * k;
    float* dsum = s_.dsum[which];
    if (chunk == chunks_ - 1) {
      std::fill(dsum + rows * n_, dsum + (kChunk + kept) * n_, 0.0f);
    } else {
      std::copy_n(dsum, kept * n_, dsum + kChunk * n_);
    }
    for (int64_t i = 0; i < rows; ++i) {
      in_.kernels.kda_backward.silu_norm(sources + i, weights, channels, taps_count, k, kL2NormEps,
                                         scale, dy + i * n_, dsum + i * n_, s_.kernel);
    }
    in_.kernels.kda_backward.convolution(dsum, n_, sources, rows, weights, channels, taps_count, k,
                                         out + in_.At(chunk * kChunk), channels,
                                         partials_.conv[which], k);
  }

  void Gates(int64_t chunk, const float* beta) const {
    const auto& kernel = in_.kernels.kda_backward;
    const int64_t k = in_.kda.head_dim, heads = in_.kda.heads, rows = Rows(chunk);
    const float* bias = in_.p.dt_bias.data() + in_.head * k;
    const float rate = in_.p.rate[static_cast<size_t>(in_.head)];
    Pack(in_.in.decay, chunk * kChunk, rows, s_.dq);
    Prefetch(chunk, {out_.decay});
    Prefetch(chunk - 1, {out_.gate, out_.y});
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t token = chunk * kChunk + i, at = in_.At(token);
      const float* raw = s_.dq + i * n_;
      const float* dg = s_.dg + i * n_;
      if (in_.kda.gate_lower_bound.has_value()) {
        kernel.bounded_decay(raw, bias, rate, *in_.kda.gate_lower_bound, dg, k, out_.decay + at,
                             partials_.dt_bias, partials_.rate);
      } else {
        kernel.unbounded_decay(raw, bias, rate, dg, k, out_.decay + at, partials_.dt_bias,
                               partials_.rate);
      }
      out_.beta[(in_.begin + token) * heads + in_.head] = s_.dbeta[i] * beta[i] * (1.0f - beta[i]);
    }
  }

  const KdaHeadInputs& in_;
  const float eps_;
  const int64_t count_;
  const int64_t chunks_;
  const HeadScratch& s_;
  const ProjectionGradients& out_;
  const VectorPartials& partials_;
  const int64_t n_;
};

/// Adds every (segment, head)'s sums [jobs] in order of the segments, then of the heads.
void AddPartials(const ops::ExecContext& exec, const KdaConfig& kda, float* partials, int64_t jobs,
                 KdaGradients& gradients) {
  const auto& e = exec.kernels->elementwise;
  const int64_t k = kda.head_dim, channels = kda.heads * k;
  const std::array<Vector*, 3> taps = {&gradients.conv_q, &gradients.conv_k, &gradients.conv_v};
  for (int64_t job = 0; job < jobs; ++job) {
    const VectorPartials from(partials + job * VectorPartials::Floats(kda), kda);
    const int64_t head = job % kda.heads;
    for (size_t which = 0; which < taps.size(); ++which) {
      for (int64_t j = 0; j < kda.conv_kernel; ++j) {
        e.add(from.conv[which] + j * k, k, taps[which]->data() + j * channels + head * k);
      }
    }
    e.add(from.dt_bias, k, gradients.dt_bias.data() + head * k);
    e.add(from.output_norm, k, gradients.output_norm.data());
    float& rate = gradients.rate[static_cast<size_t>(head)];
    for (int64_t lane = 0; lane < 16; ++lane) rate += from.rate[lane];
  }
}

/// Everything between the projections and W_o.
void HeadGradients(const ops::ExecContext& exec, const ModelConfig& config,
                   const KdaParameters& parameters, const Batch& batch, const KdaTape& in,
                   const ProjectionGradients& out, KdaGradients& gradients) {
  const KdaConfig& kda = config.kda;
  Arena& arena = *exec.arena;
  const std::span<const int64_t> begins = SegmentBegins(arena, batch);
  int64_t longest = 0;
  for (const Segment& segment : batch.segments) {
    longest = std::max(longest, static_cast<int64_t>(segment.tokens.size()));
  }
  const int64_t floats = HeadScratch::Floats(kda, (longest + kChunk - 1) / kChunk);
  const int64_t workers = exec.pool->threads_count();
  // Zeros in the channels that pad a head, which no kernel turns into anything else.
  float* scratch = arena.Allocate<float>(floats * workers);
  std::fill_n(scratch, floats * workers, 0.0f);
  float* zeros = arena.Allocate<float>(kda.head_dim);
  std::fill_n(zeros, kda.head_dim, 0.0f);
  const int64_t jobs = static_cast<int64_t>(begins.size()) * kda.heads;
  float* partials = arena.Allocate<float>(jobs * VectorPartials::Floats(kda));
  std::fill_n(partials, jobs * VectorPartials::Floats(kda), 0.0f);

  exec.pool->ParallelFor(jobs, 1, [&](int64_t begin, int64_t end, int worker) {
    const HeadScratch own(scratch + worker * floats, kda);
    std::fill_n(own.alpha, kChunk * own.n(), 1.0f);
    for (int64_t job = begin; job < end; ++job) {
      const size_t s = static_cast<size_t>(job / kda.heads);
      const KdaHeadInputs inputs{.kernels = *exec.kernels,
                                 .kda = kda,
                                 .p = parameters,
                                 .in = in,
                                 .head = job % kda.heads,
                                 .begin = begins[s],
                                 .zeros = zeros};
      const VectorPartials sums(partials + job * VectorPartials::Floats(kda), kda);
      HeadBackward(inputs, config.rms_norm_eps,
                   static_cast<int64_t>(batch.segments[s].tokens.size()), own, out, sums)
          .Run();
    }
  });
  AddPartials(exec, kda, partials, jobs, gradients);
}

/// Gradients of the projections' matrices, and dx.
void ProjectionsBackward(const ops::ExecContext& exec, const ModelConfig& config,
                         const KdaParameters& p, int64_t count, const float* x, const KdaTape& in,
                         const ProjectionGradients& d, float* dx, KdaGradients& gradients) {
  const KdaConfig& kda = config.kda;
  const int64_t width = config.hidden_size, k = kda.head_dim, c = kda.heads * k;
  const bool low_rank = !kda.full_rank_gate;
  float* ddecay_low = exec.arena->Allocate<float>(count * k);
  float* dgate_low = exec.arena->Allocate<float>(count * k);
  const std::array<ops::InputGradientTerm, 2> low_terms = {
      {{d.decay, c, p.decay_b}, {d.gate, c, p.gate_b}}};
  const std::array<ops::InputGradientTask, 2> low = {
      {{std::span(low_terms).subspan(0, 1), count, ddecay_low, k},
       {std::span(low_terms).subspan(1, 1), count, dgate_low, k}}};
  ops::LinearInputGradient(exec, std::span(low).first(low_rank ? 2 : 1));

  const std::array<ops::WeightGradientTask, 8> weights = {
      {{d.q, c, x, width, count, gradients.q},
       {d.k, c, x, width, count, gradients.k},
       {d.v, c, x, width, count, gradients.v},
       {ddecay_low, k, x, width, count, gradients.decay_a},
       {d.beta, kda.heads, x, width, count, gradients.beta},
       {d.decay, c, in.decay_low, k, count, gradients.decay_b},
       low_rank ? ops::WeightGradientTask{dgate_low, k, x, width, count, gradients.gate_a}
                : ops::WeightGradientTask{d.gate, c, x, width, count, gradients.gate},
       {d.gate, c, in.gate_low, k, count, gradients.gate_b}}};
  ops::LinearWeightGradient(exec, std::span(weights).first(low_rank ? 8 : 7));

  const std::array<ops::InputGradientTerm, 6> terms = {
      {{d.q, c, p.q},
       {d.k, c, p.k},
       {d.v, c, p.v},
       {ddecay_low, k, p.decay_a},
       {d.beta, kda.heads, p.beta},
       low_rank ? ops::InputGradientTerm{dgate_low, k, p.gate_a}
                : ops::InputGradientTerm{d.gate, c, p.gate}}};
  const ops::InputGradientTask task{terms, count, dx, width};
  ops::LinearInputGradient(exec, {&task, 1});
}

}  // namespace

void KdaBackward(const ops::ExecContext& exec, const ModelConfig& config,
                 const KdaParameters& parameters, const Batch& batch, const float* x,
                 const KdaTape* tape, const float* dout, float* dx, KdaGradients& gradients) {
  Arena& arena = *exec.arena;
  ArenaScope scope(arena);
  const KdaConfig& kda = config.kda;
  const int64_t count = batch.tokens_count(), width = config.hidden_size;
  const int64_t channels = kda.heads * kda.head_dim;
  const KdaTape in = tape != nullptr ? *tape : KdaTape::Allocate(arena, kda, count);
  if (tape == nullptr) {
    ArenaScope rows(arena);
    ProjectKda(exec, kda, parameters, ops::SplitRows(exec, x, count, width, width), in);
  }
  ProjectionGradients d{};
  for (float** array : {&d.q, &d.k, &d.v, &d.decay, &d.gate, &d.y}) {
    *array = arena.Allocate<float>(count * channels);
  }
  d.beta = arena.Allocate<float>(count * kda.heads);
  const ops::InputGradientTerm output{dout, width, parameters.output};
  const ops::InputGradientTask by_output{{&output, 1}, count, d.gate, channels};
  ops::LinearInputGradient(exec, {&by_output, 1});
  HeadGradients(exec, config, parameters, batch, in, d, gradients);
  const ops::WeightGradientTask weights{dout, width, d.y, channels, count, gradients.output};
  ops::LinearWeightGradient(exec, {&weights, 1});
  ProjectionsBackward(exec, config, parameters, count, x, in, d, dx, gradients);
}

}  // namespace k3::model
