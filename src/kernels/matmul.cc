// c (+)= a b for small dense products (attention, KDA): broadcasts a, streams rows of b. Every
// output element is one chain of fused multiply-adds in ascending k.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {
namespace {

struct Operands {
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  int64_t k;
  bool accumulate;
  float* c;
  int64_t ldc;
};

/// kRows rows of c by kVectors x 16 columns.
template <int kRows, int kVectors>
void Block(const Operands& o) {
  V sum[kRows][kVectors];
  Unroll<kRows>([&](auto r) HWY_ATTR {
    Unroll<kVectors>([&](auto v) HWY_ATTR {
      sum[r][v] = o.accumulate ? LoadU(o.c + r * o.ldc + v * kLanes) : Set(0.0f);
    });
  });
  const float* HWY_RESTRICT b = o.b;
  for (int64_t k = 0; k < o.k; ++k, b += o.ldb) {
    V row[kVectors];
    Unroll<kVectors>([&](auto v) HWY_ATTR { row[v] = LoadU(b + v * kLanes); });
    Unroll<kRows>([&](auto r) HWY_ATTR {
      const V factor = Set(o.a[r * o.lda + k]);
      Unroll<kVectors>(
          [&](auto v) HWY_ATTR { sum[r][v] = Fma(factor, row[v], sum[r][v]); });
    });
  }
  Unroll<kRows>([&](auto r) HWY_ATTR {
    Unroll<kVectors>(
        [&](auto v) HWY_ATTR { StoreU(sum[r][v], o.c + r * o.ldc + v * kLanes); });
  });
}

/// The last columns, fewer than 16.
void TailColumns(const Operands& o, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    V sum = o.accumulate ? LoadN(o.c + r * o.ldc, columns) : Set(0.0f);
    for (int64_t k = 0; k < o.k; ++k) {
      sum = Fma(Set(o.a[r * o.lda + k]), LoadN(o.b + k * o.ldb, columns), sum);
    }
    StoreN(sum, o.c + r * o.ldc, columns);
  }
}

template <int kRows>
void RowStrip(Operands o, int64_t n) {
  const auto advance = [&](int64_t columns) {
    o.b += columns;
    o.c += columns;
    n -= columns;
  };
  if constexpr (kRows <= 2) {
    for (; n >= 8 * kLanes; advance(8 * kLanes)) Block<kRows, 8>(o);
  }
  for (; n >= 4 * kLanes; advance(4 * kLanes)) Block<kRows, 4>(o);
  if (n >= 2 * kLanes) {
    Block<kRows, 2>(o);
    advance(2 * kLanes);
  }
  if (n >= kLanes) {
    Block<kRows, 1>(o);
    advance(kLanes);
  }
  if (n > 0) TailColumns(o, kRows, n);
}

void MatMul(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
            int64_t n, bool accumulate, float* c, int64_t ldc) {
  Operands o{a, lda, b, ldb, k, accumulate, c, ldc};
  const auto advance = [&](int64_t rows) {
    o.a += rows * lda;
    o.c += rows * ldc;
    m -= rows;
  };
  for (; m >= 6; advance(6)) RowStrip<6>(o, n);
  for (; m >= 4; advance(4)) RowStrip<4>(o, n);
  for (; m >= 2; advance(2)) RowStrip<2>(o, n);
  if (m == 1) RowStrip<1>(o, n);
}

}  // namespace

MatMulKernels MatMulTable() { return {.f32 = MatMul}; }

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

MatMulKernels MakeMatMulKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::MatMulTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::MatMulTable();
  return N_SCALAR::MatMulTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
