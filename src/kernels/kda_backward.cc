// Gradients of Kimi Delta Attention on one head's chunk of 16 tokens. In the terms of kda.cc, with
// r_i = v_i - K+_i S - sum_{j<i} KK_ij u_j and u_i = beta_i r_i, from dO and dS' (chunk's end):
//   dU = A^T dO + K_end dS'            K_end = the chunk's keys decayed to its end
//   dR_i = beta_i dU_i,  dU_j -= KK_ij dR_i for j < i                        (rows descending)
//   dbeta_i = dU_i . r_i,  dV = dR
//   dA = tril(dO U^T),  dKK = -tril_strict(dR U^T)
//   dQ+ = dO S^T,  dK+ = -dR S^T,  dK_end = U dS'^T
//   dS = Diag(decay_15) dS' + Q+^T dO - K+^T dR
// and, with D_ij the decay from row j to row i,
//   dq_i  = dQ+_i decay_i + sum_{j<=i} dA_ij k_j D_ij
//   row_i = dK+_i decay_i + sum_{j<i} dKK_ij k_j D_ij
//   key_j = sum_{i>=j} dA_ij q_i D_ij + sum_{i>j} dKK_ij k_i D_ij,  end_j = dK_end_j D_15,j
//   dk = row + key + end
//   dg_i = sum_{r>=i} (q_r dq_r + k_r (row_r - key_r)) + sum_{r<i} k_r end_r
//          + decay_15 rowsum(S dS')
// With the bounded gate the pair sums are matrix products with K- = k / decay; without a bound they
// are taken element by element with the running product of the decays between.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/math-inl.h"
#include "kernels/parts-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

MatMulKernels MatMulTable();  // matmul.cc, for this same target

namespace {

constexpr int64_t kChunk = kKdaChunk;
/// The gradient by K- is a sum of terms as small as e^-80. This power of two, taken out again at
/// the end, keeps them clear of the denormals.
constexpr float kMinusScale = 0x1p60f;
constexpr float kMinusUnscale = 0x1p-60f;

/// Scratch of one chunk. X = [-dR; dO] [32, dv]; "_t" is transposed.
struct ChunkScratch {
  float *ends_t, *dplus_t, *dminus_t, *dend_t;  // [dk, 16], [dk, 32], [dk, 16], [dk, 16]
  float *dminus, *dend;                         // [16, dk]
  float *x_t, *u_t, *du;                        // [dv, 32], [dv, 16], [16, dv]
  float *a, *w_t, *w;                           // [16, 16], [16, 32], [32, 16]
  float* row_sums;                              // [dk]

  ChunkScratch(float* at, int64_t n, int64_t m) {
    const auto take = [&at](float*& array, int64_t count) {
      array = at;
      at += count;
    };
    take(ends_t, kChunk * n);
    take(dplus_t, 2 * kChunk * n);
    take(dminus_t, kChunk * n);
    take(dend_t, kChunk * n);
    take(dminus, kChunk * n);
    take(dend, kChunk * n);
    take(x_t, 2 * kChunk * m);
    take(u_t, kChunk * m);
    take(du, kChunk * m);
    take(a, kChunk * kChunk);
    take(w_t, 2 * kChunk * kChunk);
    take(w, 2 * kChunk * kChunk);
    take(row_sums, n);
  }
};

/// What `append` left in its scratch: K+ above Q+ [32, dk], r [16, dv] and K- times both [32, 16].
struct Appended {
  const float *plus, *r, *scores;

  Appended(const float* scratch, int64_t n, int64_t m)
      : plus(scratch), r(plus + 2 * kChunk * n), scores(r + 2 * kChunk * m) {}
};

/// y [cols, rows] = x [rows, cols]; both multiples of 4.
void Transpose(const float* x, int64_t ldx, int64_t rows, int64_t cols, float* y, int64_t ldy) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < cols; c += 4) {
      const float* from = x + r * ldx + c;
      float* to = y + c * ldy + r;
      __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + ldx);
      __m128 d = _mm_loadu_ps(from + 2 * ldx), e = _mm_loadu_ps(from + 3 * ldx);
      _MM_TRANSPOSE4_PS(a, b, d, e);
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + ldy, b);
      _mm_storeu_ps(to + 2 * ldy, d);
      _mm_storeu_ps(to + 3 * ldy, e);
    }
  }
#else
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[c * ldy + r] = x[r * ldx + c];
  }
#endif
}

/// Every key decayed to the end of the chunk, [dk, 16].
void EndKeys(const KdaChunkBackward& c, const ChunkScratch& s) {
  const int64_t n = c.key_dim;
  if (c.alpha == nullptr) {
    const float* last = c.decay + (kChunk - 1) * n;
    for (int64_t d = 0; d < n; ++d) {
      StoreU(Mul(LoadU(c.keys + d * kChunk), Set(last[d])), s.ends_t + d * kChunk);
    }
    return;
  }
  float* ends = s.dend;  // not in use yet
  for (int64_t d = 0; d < n; d += kLanes) {
    V product = Set(1.0f);
    for (int64_t j = kChunk - 1; j >= 0; --j) {
      StoreU(Mul(LoadU(c.keys + j * n + d), product), ends + j * n + d);
      product = Mul(product, LoadU(c.alpha + j * n + d));
    }
  }
  Transpose(ends, n, kChunk, n, s.ends_t, kChunk);
}

/// dR, dV and dbeta by substitution from the last row to the first. -dR into the upper half of X.
void SolveBack(const KdaChunkBackward& c, const Appended& from, const ChunkScratch& s) {
  const int64_t m = c.value_dim;
  V dbeta[kChunk];
  for (V& sum : dbeta) sum = Set(0.0f);
  for (int64_t d = 0; d < m; d += kLanes) {
    V dr[kChunk];
    for (int64_t i = kChunk - 1; i >= 0; --i) {
      V du = LoadU(s.du + i * m + d);
      for (int64_t later = kChunk - 1; later > i; --later) {
        du = Fnma(Set(from.scores[later * kChunk + i]), dr[later], du);
      }
      dbeta[i] = Fma(du, LoadU(from.r + i * m + d), dbeta[i]);
      dr[i] = Mul(Set(c.beta[i]), du);
      StoreU(dr[i], c.dv + i * m + d);
      StoreU(Neg(dr[i]), c.dy + i * m + d);
    }
  }
  for (int64_t i = 0; i < kChunk; ++i) c.dbeta[i] = ReduceSum(dbeta[i]);
}

/// W = [dKK; dA] [32, 16] with zeros above the diagonals, and its transpose [16, 32].
void PairGradients(const KdaChunkBackward& c, const ChunkScratch& s) {
  const int64_t m = c.value_dim;
  MatMulTable().f32(c.u, m, s.x_t, 2 * kChunk, kChunk, m, 2 * kChunk, false, s.w_t, 2 * kChunk);
  Transpose(s.w_t, 2 * kChunk, kChunk, 2 * kChunk, s.w, kChunk);
  for (int64_t i = 0; i < kChunk; ++i) {
    float* kk = s.w + i * kChunk;
    float* a = kk + kChunk * kChunk;
    StoreU(LoadN(kk, i), kk);
    StoreU(LoadN(a, i + 1), a);
  }
  Transpose(s.w, kChunk, 2 * kChunk, kChunk, s.w_t, 2 * kChunk);
}

/// rowsum(S dS') [dk], before dS' is overwritten.
void StateRowSums(const KdaChunkBackward& c, const ChunkScratch& s) {
  const int64_t n = c.key_dim, m = c.value_dim;
  float* partial = s.dminus_t;  // [dk, 16] and
  float* columns = s.dminus;    // [16, dk], not in use yet
  for (int64_t d = 0; d < n; ++d) {
    V sum = Set(0.0f);
    for (int64_t e = 0; e < m; e += kLanes) {
      sum = Fma(LoadU(c.state + d * m + e), LoadU(c.dstate + d * m + e), sum);
    }
    StoreU(sum, partial + d * kLanes);
  }
  Transpose(partial, kLanes, n, kLanes, columns, n);
  for (int64_t d = 0; d < n; d += kLanes) {
    V sum = LoadU(columns + d);
    for (int64_t lane = 1; lane < kLanes; ++lane) sum = Add(sum, LoadU(columns + lane * n + d));
    StoreU(sum, s.row_sums + d);
  }
}

/// The gradient by the state at the chunk's start.
void StateGradient(const KdaChunkBackward& c, const Appended& from) {
  const int64_t n = c.key_dim, m = c.value_dim;
  const float* last = c.decay + (kChunk - 1) * n;
  for (int64_t d = 0; d < n; ++d) {
    const V decay = Set(last[d]);
    float* row = c.dstate + d * m;
    for (int64_t e = 0; e < m; e += kLanes) StoreU(Mul(decay, LoadU(row + e)), row + e);
  }
  MatMulTable().f32_tn(from.plus, n, c.dy, m, n, 2 * kChunk, m, true, c.dstate, m);
}

/// The terms of one row and sixteen channels.
struct RowTerms {
  V q, k, dq, row, key, end;
};

/// dq, dk and dg of sixteen channels from `terms(i)`, i ascending. `tail` belongs to every dg.
template <typename Terms>
HWY_INLINE void FinishChannels(const KdaChunkBackward& c, int64_t d, V tail, const Terms& terms) {
  const int64_t n = c.key_dim;
  V local[kChunk], before[kChunk];
  V ends = tail;
  for (int64_t i = 0; i < kChunk; ++i) {
    const RowTerms t = terms(i);
    StoreU(t.dq, c.dq + i * n + d);
    StoreU(Add(t.row, Add(t.key, t.end)), c.dk + i * n + d);
    local[i] = Fma(t.q, t.dq, Mul(t.k, Sub(t.row, t.key)));
    before[i] = ends;
    ends = Fma(t.k, t.end, ends);
  }
  V sum = Set(0.0f);
  for (int64_t i = kChunk - 1; i >= 0; --i) {
    sum = Add(sum, local[i]);
    StoreU(Add(sum, before[i]), c.dg + i * n + d);
  }
}

/// Pair sums as matrix products. c.dk and c.dq hold dK+ and dQ+, s.dend dK_end without its decay.
void BoundedRows(const KdaChunkBackward& c, const Appended& from, const ChunkScratch& s) {
  const int64_t n = c.key_dim;
  const float* last = c.decay + (kChunk - 1) * n;
  for (int64_t d = 0; d < n; d += kLanes) {
    const V end_decay = LoadU(last + d);
    FinishChannels(c, d, Mul(end_decay, LoadU(s.row_sums + d)),
                   [&](int64_t i) HWY_ATTR -> RowTerms {
                     const int64_t at = i * n + d;
                     const V decay = LoadU(c.decay + at);
                     const V inverse = Div(Set(1.0f), decay);
                     return {.q = Mul(LoadU(from.plus + kChunk * n + at), inverse),
                             .k = Mul(LoadU(from.plus + at), inverse),
                             .dq = Mul(LoadU(c.dq + at), decay),
                             .row = Mul(LoadU(c.dk + at), decay),
                             .key = Mul(Mul(LoadU(s.dminus + at), inverse), Set(kMinusUnscale)),
                             .end = Mul(Mul(end_decay, inverse), LoadU(s.dend + at))};
                   });
  }
}

/// Pair sums element by element.
void UnboundedRows(const KdaChunkBackward& c, const ChunkScratch& s) {
  const int64_t n = c.key_dim;
  const float* last = c.decay + (kChunk - 1) * n;
  for (int64_t d = 0; d < n; d += kLanes) {
    V dq[kChunk], row[kChunk], key[kChunk], to_end[kChunk];
    V product = Set(1.0f);
    for (int64_t i = kChunk - 1; i >= 0; --i) {
      const int64_t at = i * n + d;
      const V decay = LoadU(c.decay + at);
      dq[i] = Mul(LoadU(c.dq + at), decay);
      row[i] = Mul(LoadU(c.dk + at), decay);
      key[i] = Set(0.0f);
      to_end[i] = product;
      product = Mul(product, LoadU(c.alpha + at));
    }
    for (int64_t i = 0; i < kChunk; ++i) {
      const V q = LoadU(c.q + i * n + d), k = LoadU(c.keys + i * n + d);
      V between = Set(1.0f);
      for (int64_t j = i; j >= 0; --j) {
        const V dkk = Set(s.w[i * kChunk + j]), da = Set(s.w[(kChunk + i) * kChunk + j]);
        const V earlier = Mul(LoadU(c.keys + j * n + d), between);
        dq[i] = Fma(da, earlier, dq[i]);
        row[i] = Fma(dkk, earlier, row[i]);
        key[j] = Fma(Fma(da, q, Mul(dkk, k)), between, key[j]);
        between = Mul(between, LoadU(c.alpha + j * n + d));
      }
    }
    FinishChannels(c, d, Mul(LoadU(last + d), LoadU(s.row_sums + d)),
                   [&](int64_t i) HWY_ATTR -> RowTerms {
                     return {.q = LoadU(c.q + i * n + d),
                             .k = LoadU(c.keys + i * n + d),
                             .dq = dq[i],
                             .row = row[i],
                             .key = key[i],
                             .end = Mul(to_end[i], LoadU(s.dend + i * n + d))};
                   });
  }
}

void Chunk(const KdaChunkBackward& c, float* scratch) {
  const MatMulKernels matmul = MatMulTable();
  const int64_t n = c.key_dim, m = c.value_dim, twice = 2 * kChunk;
  const ChunkScratch s(scratch, n, m);
  const Appended from(c.appended, n, m);

  EndKeys(c, s);
  for (int64_t i = 0; i < kChunk; ++i) {
    StoreU(LoadN(from.scores + (kChunk + i) * kChunk, i + 1), s.a + i * kChunk);
  }
  matmul.f32_tn(s.ends_t, kChunk, c.dstate, m, kChunk, n, m, false, s.du, m);
  matmul.f32_tn(s.a, kChunk, c.dy + kChunk * m, m, kChunk, kChunk, m, true, s.du, m);
  SolveBack(c, from, s);

  Transpose(c.dy, m, twice, m, s.x_t, twice);
  Transpose(c.u, m, kChunk, m, s.u_t, kChunk);
  PairGradients(c, s);
  StateRowSums(c, s);
  matmul.f32(c.state, m, s.x_t, twice, n, m, twice, false, s.dplus_t, twice);
  matmul.f32(c.dstate, m, s.u_t, kChunk, n, m, kChunk, false, s.dend_t, kChunk);
  StateGradient(c, from);

  if (c.alpha == nullptr) {
    matmul.f32(c.keys, kChunk, s.w_t, twice, n, kChunk, twice, true, s.dplus_t, twice);
    for (int64_t i = 0; i < twice; ++i) {
      StoreU(Mul(LoadU(s.w + i * kChunk), Set(kMinusScale)), s.w + i * kChunk);
    }
    matmul.f32_tn(from.plus, n, s.w, kChunk, n, twice, kChunk, false, s.dminus_t, kChunk);
    Transpose(s.dminus_t, kChunk, n, kChunk, s.dminus, n);
  }
  Transpose(s.dplus_t, twice, n, kChunk, c.dk, n);
  Transpose(s.dplus_t + kChunk, twice, n, kChunk, c.dq, n);
  Transpose(s.dend_t, kChunk, n, kChunk, s.dend, n);
  if (c.alpha == nullptr) {
    BoundedRows(c, from, s);
  } else {
    UnboundedRows(c, s);
  }
}

void GatedRmsNorm(const float* x, const float* w, const float* gate, const float* dy, int64_t n,
                  float eps, float* y, float* dx, float* dgate, float* dw) {
  V squares = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V a = LoadPart(x + i, HWY_MIN(n - i, int64_t{kLanes}));
    squares = Fma(a, a, squares);
  }
  const float size = static_cast<float>(n);
  const V scale = Set(1.0f / std::sqrt(ReduceSum(squares) / size + eps));
  V dot = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    const V normed = Mul(LoadPart(x + i, count), scale);
    const V weight = LoadPart(w + i, count), upstream = LoadPart(dy + i, count);
    const V open = Sigmoid(LoadPart(gate + i, count));
    const V result = Mul(Mul(normed, weight), open);
    const V gated = Mul(upstream, open);
    const V dnormed = Mul(gated, weight);
    StorePart(result, y + i, count);
    StorePart(Mul(Mul(upstream, result), Sub(Set(1.0f), open)), dgate + i, count);
    StorePart(Fma(gated, normed, LoadPart(dw + i, count)), dw + i, count);
    StorePart(dnormed, dx + i, count);
    dot = Fma(normed, dnormed, dot);
  }
  const V mean = Set(ReduceSum(dot) / size);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    const V normed = Mul(LoadPart(x + i, count), scale);
    StorePart(Mul(scale, Fnma(normed, mean, LoadPart(dx + i, count))), dx + i, count);
  }
}

void SiluNorm(const float* const* u, const float* w, int64_t ldw, int64_t taps, int64_t n,
              float eps, float scale, const float* dy, float* dsum, float* scratch) {
  V squares = Set(0.0f), dot = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    V sum = Set(0.0f);
    for (int64_t j = 0; j < taps; ++j) {
      sum = Fma(LoadPart(w + j * ldw + i, count), LoadPart(u[j] + i, count), sum);
    }
    const V open = Sigmoid(sum);
    const V value = Mul(sum, open);
    const V slope = Fma(value, Sub(Set(1.0f), open), open);
    const V upstream = LoadPart(dy + i, count);
    if (scale == 0.0f) {
      StorePart(Mul(upstream, slope), dsum + i, count);
      continue;
    }
    StorePart(value, scratch + i, count);
    StorePart(slope, dsum + i, count);
    squares = Fma(value, value, squares);
    dot = Fma(value, upstream, dot);
  }
  if (scale == 0.0f) return;
  const float inverse = 1.0f / std::sqrt(ReduceSum(squares) + eps);
  const V factor = Set(scale * inverse);
  const V along = Set(ReduceSum(dot) * inverse * inverse);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    const V dvalue =
        Mul(factor, Fnma(along, LoadPart(scratch + i, count), LoadPart(dy + i, count)));
    StorePart(Mul(dvalue, LoadPart(dsum + i, count)), dsum + i, count);
  }
}

constexpr int64_t kTapsMax = 16;

/// Sixteen channels or fewer of the convolution's gradients; `taps` is a constant where it is 4.
HWY_INLINE void ConvolutionChannels(const float* dsum, int64_t ldsum, const float* const* u,
                                    int64_t rows, const float* w, int64_t ldw, int64_t taps,
                                    int64_t at, int64_t count, float* du, int64_t ldu, float* dw,
                                    int64_t lddw) {
  V weight[kTapsMax], dweight[kTapsMax];
  for (int64_t j = 0; j < taps; ++j) {
    weight[j] = LoadPart(w + j * ldw + at, count);
    dweight[j] = LoadPart(dw + j * lddw + at, count);
  }
  for (int64_t t = 0; t < rows; ++t) {
    const V here = LoadPart(dsum + t * ldsum + at, count);
    V sum = Mul(weight[taps - 1], here);
    for (int64_t j = 1; j < taps; ++j) {
      sum = Fma(weight[taps - 1 - j], LoadPart(dsum + (t + j) * ldsum + at, count), sum);
    }
    StorePart(sum, du + t * ldu + at, count);
    for (int64_t j = 0; j < taps; ++j) {
      dweight[j] = Fma(here, LoadPart(u[t + j] + at, count), dweight[j]);
    }
  }
  for (int64_t j = 0; j < taps; ++j) StorePart(dweight[j], dw + j * lddw + at, count);
}

void Convolution(const float* dsum, int64_t ldsum, const float* const* u, int64_t rows,
                 const float* w, int64_t ldw, int64_t taps, int64_t n, float* du, int64_t ldu,
                 float* dw, int64_t lddw) {
  for (int64_t at = 0; at < n; at += kLanes) {
    const int64_t count = HWY_MIN(n - at, int64_t{kLanes});
    if (taps == 4) {
      ConvolutionChannels(dsum, ldsum, u, rows, w, ldw, 4, at, count, du, ldu, dw, lddw);
    } else {
      ConvolutionChannels(dsum, ldsum, u, rows, w, ldw, taps, at, count, du, ldu, dw, lddw);
    }
  }
}

/// `slopes(z)` gives dg/dz without the rate, and dg/drate. A slope that underflowed stays zero
/// whatever the rate, which exp(A_log) may have made infinite.
template <typename Slopes>
HWY_INLINE void DecayGate(const float* raw, const float* bias, float rate, const float* dg,
                          int64_t n, float* draw, float* dbias, float* drate,
                          const Slopes& slopes) {
  const V a = Set(rate), zero = Set(0.0f);
  V drates = LoadU(drate);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    const V z = Add(LoadPart(raw + i, count), LoadPart(bias + i, count));
    const V upstream = LoadPart(dg + i, count);
    const std::pair<V, V> slope = slopes(z);
    const V scaled = Mul(upstream, slope.first);
    const M live = Less(zero, Abs(scaled));
    const V dz = Select(live, Mul(scaled, a), zero);
    StorePart(dz, draw + i, count);
    StorePart(Add(LoadPart(dbias + i, count), dz), dbias + i, count);
    drates = Add(drates, Select(live, Mul(upstream, slope.second), zero));
  }
  StoreU(drates, drate);
}

void BoundedDecay(const float* raw, const float* bias, float rate, float lower_bound,
                  const float* dg, int64_t n, float* draw, float* dbias, float* drate) {
  const V a = Set(rate), bound = Set(lower_bound);
  DecayGate(raw, bias, rate, dg, n, draw, dbias, drate, [&](V z) HWY_ATTR {
    // p (1 - p) of the sigmoid, in a form that keeps its small values.
    const V e = Exp(Neg(Abs(Mul(a, z))));
    const V whole = Add(Set(1.0f), e);
    const V slope = Mul(bound, Div(e, Mul(whole, whole)));
    return std::pair<V, V>(slope, Mul(slope, z));
  });
}

void UnboundedDecay(const float* raw, const float* bias, float rate, const float* dg, int64_t n,
                    float* draw, float* dbias, float* drate) {
  DecayGate(raw, bias, rate, dg, n, draw, dbias, drate,
            [](V z) HWY_ATTR { return std::pair<V, V>(Neg(Sigmoid(z)), Neg(Softplus(z))); });
}

}  // namespace

KdaBackwardKernels KdaBackwardTable() {
  return {.chunk = Chunk,
          .gated_rms_norm = GatedRmsNorm,
          .silu_norm = SiluNorm,
          .convolution = Convolution,
          .bounded_decay = BoundedDecay,
          .unbounded_decay = UnboundedDecay};
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

KdaBackwardKernels MakeKdaBackwardKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::KdaBackwardTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::KdaBackwardTable();
  return N_SCALAR::KdaBackwardTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
