// Kimi Delta Attention on one head's 16-token chunk, in the WY form: rows are appended
// to an open chunk, their outputs read the state as it was at the chunk's start, and a full chunk
// is folded into it. Prefill appends up to 16 rows at once, decode one: the arithmetic of a row is
// the same, so the bits are.
//   u_i = beta_i (v_i - K+_i S - sum_{j<i} KK_ij u_j)      K+ = k * decay, KK_ij = k_i . k_j D_ij
//   o_i = Q+_i S + sum_{j<=i} A_ij u_j                     Q+ = q * decay, A_ij = q_i . k_j D_ij
//   S'  = Diag(decay_15) S + sum_j (k_j D_15,j) u_j^T
// D_ij is the decay from row j to row i. With the bounded gate it is decay_i / decay_j, both within
// float32's range over 16 rows; without a bound it is the running product of the decays between.
// Decays are multiplied up rather than exponentiated from summed logs: a log of -80 would carry an
// error of 4e-6 into every later factor.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/simd-inl.h"
#include "kernels/parts-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

MatMulKernels MatMulTable();  // matmul.cc, for this same target

namespace {

constexpr int64_t kChunk = kKdaChunk;

/// Cumulative decays of the new rows, k and q decayed from the chunk's start, and the row's keys.
/// plus [2 count, dk]: rows of k first, then rows of q.
void DecayRows(const KdaHead& head, const KdaRows& rows, float* plus) {
  const int64_t n = head.key_dim;
  const bool bounded = head.alpha == nullptr;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    const float* alpha = rows.alpha + i * rows.alpha_ld;
    const float* k = rows.k + i * rows.key_ld;
    const float* q = rows.q + i * rows.key_ld;
    float* decay = head.decay + row * n;
    float* k_plus = plus + i * n;
    float* q_plus = plus + (rows.count + i) * n;
    for (int64_t d = 0; d < n; d += kLanes) {
      const int64_t count = HWY_MIN(n - d, int64_t{kLanes});
      V product = LoadPart(alpha + d, count);
      if (row > 0) product = Mul(LoadPart(decay - n + d, count), product);
      const V key = LoadPart(k + d, count);
      StorePart(product, decay + d, count);
      StorePart(Mul(key, product), k_plus + d, count);
      StorePart(Mul(LoadPart(q + d, count), product), q_plus + d, count);
      if (bounded) {
        float minus[kLanes];
        StoreU(Div(key, product), minus);
        for (int64_t l = 0; l < count; ++l) head.keys[(d + l) * kChunk + row] = minus[l];
      } else {
        StorePart(key, head.keys + row * n + d, count);
        StorePart(LoadPart(alpha + d, count), head.alpha + row * n + d, count);
      }
    }
  }
}

/// Without a bound: k_i . k_j D_ij and q_i . k_j D_ij for every j <= i, the decays multiplied up
/// backwards from row i. scores [2 count, 16] as in the bounded form.
void UnboundedScores(const KdaHead& head, const KdaRows& rows, float* product, float* scores) {
  const int64_t n = head.key_dim;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    const float* k = rows.k + i * rows.key_ld;
    const float* q = rows.q + i * rows.key_ld;
    for (int64_t d = 0; d < n; ++d) product[d] = 1.0f;
    for (int64_t j = row; j >= 0; --j) {
      V k_sum = Set(0.0f), q_sum = Set(0.0f);
      for (int64_t d = 0; d < n; d += kLanes) {
        const int64_t count = HWY_MIN(n - d, int64_t{kLanes});
        const V between = LoadPart(product + d, count);
        const V key = Mul(LoadPart(head.keys + j * n + d, count), between);
        k_sum = Fma(LoadPart(k + d, count), key, k_sum);
        q_sum = Fma(LoadPart(q + d, count), key, q_sum);
        StorePart(Mul(between, LoadPart(head.alpha + j * n + d, count)), product + d, count);
      }
      scores[i * kChunk + j] = ReduceSum(k_sum);
      scores[(rows.count + i) * kChunk + j] = ReduceSum(q_sum);
    }
  }
}

/// Forward substitution in row order, then the outputs. read [2 count, value_stride]: K+ S, Q+ S;
/// each row of K+ S is replaced by u / beta, for the backward pass.
void SolveRows(const KdaHead& head, const KdaRows& rows, float* read, const float* scores) {
  const int64_t stride = head.value_stride;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    const float* k_scores = scores + i * kChunk;
    const float* q_scores = scores + (rows.count + i) * kChunk;
    const V beta = Set(rows.beta[i * rows.beta_ld]);
    for (int64_t d = 0; d < head.value_dim; d += kLanes) {
      const int64_t count = HWY_MIN(head.value_dim - d, int64_t{kLanes});
      V u = Sub(LoadPart(rows.v + i * rows.v_ld + d, count), LoadU(read + i * stride + d));
      V o = LoadU(read + (rows.count + i) * stride + d);
      for (int64_t j = 0; j < row; ++j) {
        const V earlier = LoadU(head.u + j * stride + d);
        u = Fnma(Set(k_scores[j]), earlier, u);
        o = Fma(Set(q_scores[j]), earlier, o);
      }
      StoreU(u, read + i * stride + d);
      u = Mul(beta, u);
      o = Fma(Set(q_scores[row]), u, o);
      StoreU(u, head.u + row * stride + d);
      StorePart(o, rows.o + i * rows.o_ld + d, count);
    }
  }
}

void Append(const KdaHead& head, const KdaRows& rows, float* scratch) {
  const MatMulKernels matmul = MatMulTable();
  const int64_t n = head.key_dim, stride = head.value_stride, twice = 2 * rows.count;
  float* plus = scratch;
  float* read = plus + 2 * kChunk * n;
  float* scores = read + 2 * kChunk * stride;
  float* product = scores + 2 * kChunk * kChunk;
  DecayRows(head, rows, plus);
  matmul.f32(plus, n, head.state, stride, twice, n, stride, false, read, stride);
  if (head.alpha == nullptr) {
    matmul.f32(plus, n, head.keys, kChunk, twice, n, kChunk, false, scores, kChunk);
  } else {
    UnboundedScores(head, rows, product, scores);
  }
  SolveRows(head, rows, read, scores);
}

void Fold(const KdaHead& head, float* state, float* scratch) {
  const int64_t n = head.key_dim, stride = head.value_stride;
  const float* last = head.decay + (kChunk - 1) * n;
  float* ends = scratch;  // [dk, 16]: every key decayed to the end of the chunk
  if (head.alpha == nullptr) {
    for (int64_t d = 0; d < n; ++d) {
      StoreU(Mul(LoadU(head.keys + d * kChunk), Set(last[d])), ends + d * kChunk);
    }
  } else {
    for (int64_t d = 0; d < n; ++d) {
      float product = 1.0f;
      for (int64_t j = kChunk - 1; j >= 0; --j) {
        ends[d * kChunk + j] = head.keys[j * n + d] * product;
        product *= head.alpha[j * n + d];
      }
    }
  }
  for (int64_t d = 0; d < n; ++d) {
    const V decay = Set(last[d]);
    float* row = state + d * stride;
    for (int64_t v = 0; v < stride; v += kLanes) StoreU(Mul(decay, LoadU(row + v)), row + v);
  }
  MatMulTable().f32(ends, kChunk, head.u, stride, n, kChunk, stride, true, state, stride);
}

}  // namespace

KdaKernels KdaTable() { return {.append = Append, .fold = Fold}; }

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

KdaKernels MakeKdaKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::KdaTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::KdaTable();
  return N_SCALAR::KdaTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
