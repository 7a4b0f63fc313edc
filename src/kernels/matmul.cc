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
  int64_t row_stride;  // of a, from one row of c to the next
  int64_t k_stride;    // of a, from one term of a sum to the next
  const float* b;
  int64_t ldb;
  int64_t k;
  bool accumulate;
  float* c;
  int64_t ldc;
};

/// What a later call will read, asked for beside the sums: two lines of the cache a step, since a
/// burst of requests would hold up the loads behind it.
struct NoAhead {
  HWY_INLINE void Ask() {}
};
struct Ahead {
  const uint8_t* next;
  const uint8_t* end;

  HWY_INLINE void Ask() {
    constexpr int64_t kLine = 64;
    if (next >= end) return;
    __builtin_prefetch(next, 0, 2);  // the second cache: it stays there until the next call
    __builtin_prefetch(next + kLine, 0, 2);
    next += 2 * kLine;
  }
};

/// kRows rows of c by kVectors x 16 columns.
template <int kRows, int kVectors, typename Asker>
void Block(const Operands& o, Asker& ahead) {
  Asker asker = ahead;  // in registers
  V sum[kRows][kVectors];
  Unroll<kRows>([&](auto r) HWY_ATTR {
    Unroll<kVectors>([&](auto v) HWY_ATTR {
      sum[r][v] = o.accumulate ? LoadU(o.c + r * o.ldc + v * kLanes) : Set(0.0f);
    });
  });
  const float* HWY_RESTRICT b = o.b;
  for (int64_t k = 0; k < o.k; ++k, b += o.ldb) {
    asker.Ask();
    V row[kVectors];
    Unroll<kVectors>([&](auto v) HWY_ATTR { row[v] = LoadU(b + v * kLanes); });
    Unroll<kRows>([&](auto r) HWY_ATTR {
      const V factor = Set(o.a[r * o.row_stride + k * o.k_stride]);
      Unroll<kVectors>([&](auto v) HWY_ATTR { sum[r][v] = Fma(factor, row[v], sum[r][v]); });
    });
  }
  ahead = asker;
  Unroll<kRows>([&](auto r) HWY_ATTR {
    Unroll<kVectors>([&](auto v) HWY_ATTR { StoreU(sum[r][v], o.c + r * o.ldc + v * kLanes); });
  });
}

/// The last columns, fewer than 16.
void TailColumns(const Operands& o, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    V sum = o.accumulate ? LoadN(o.c + r * o.ldc, columns) : Set(0.0f);
    for (int64_t k = 0; k < o.k; ++k) {
      sum = Fma(Set(o.a[r * o.row_stride + k * o.k_stride]), LoadN(o.b + k * o.ldb, columns), sum);
    }
    StoreN(sum, o.c + r * o.ldc, columns);
  }
}

/// All columns of kRows rows, in blocks of up to kVectorsMax x 16.
template <int kRows, int kVectorsMax, typename Asker>
void RowStrip(Operands o, int64_t n, Asker& ahead) {
  const auto columns_of = [&]<int kVectors>(std::integral_constant<int, kVectors>) HWY_ATTR {
    if constexpr (kVectors <= kVectorsMax) {
      for (; n >= kVectors * kLanes; n -= kVectors * kLanes) {
        Block<kRows, kVectors>(o, ahead);
        o.b += kVectors * kLanes;
        o.c += kVectors * kLanes;
      }
    }
  };
  columns_of(std::integral_constant<int, 8>{});
  columns_of(std::integral_constant<int, 4>{});
  columns_of(std::integral_constant<int, 2>{});
  columns_of(std::integral_constant<int, 1>{});
  if (n > 0) TailColumns(o, kRows, n);
}

template <typename Asker>
void MultiplyAll(Operands o, int64_t m, int64_t n, Asker ahead) {
  const auto rows_of = [&]<int kRows, int kVectorsMax>(std::integral_constant<int, kRows>,
                                                       std::integral_constant<int, kVectorsMax>)
                           HWY_ATTR {
                             for (; m >= kRows; m -= kRows) {
                               RowStrip<kRows, kVectorsMax>(o, n, ahead);
                               o.a += kRows * o.row_stride;
                               o.c += kRows * o.ldc;
                             }
                           };
  // Sums in registers: 24 of AVX-512's 32, 12 of AVX2's 16 (two to a vector of sixteen lanes).
  using std::integral_constant;
  if constexpr (kParts == 1) {
    rows_of(integral_constant<int, 6>{}, integral_constant<int, 4>{});
    rows_of(integral_constant<int, 4>{}, integral_constant<int, 4>{});
    rows_of(integral_constant<int, 2>{}, integral_constant<int, 8>{});
    rows_of(integral_constant<int, 1>{}, integral_constant<int, 8>{});
  } else if constexpr (kParts == 2) {
    rows_of(integral_constant<int, 6>{}, integral_constant<int, 1>{});
    rows_of(integral_constant<int, 2>{}, integral_constant<int, 2>{});
    rows_of(integral_constant<int, 1>{}, integral_constant<int, 4>{});
  } else {
    rows_of(integral_constant<int, 1>{}, integral_constant<int, 1>{});
  }
}

void MatMul(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
            int64_t n, bool accumulate, float* c, int64_t ldc) {
  MultiplyAll({a, lda, 1, b, ldb, k, accumulate, c, ldc}, m, n, NoAhead());
}
void MatMulAhead(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
                 int64_t n, float* c, int64_t ldc, const float* ahead, int64_t ahead_floats) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(ahead);
  MultiplyAll({a, lda, 1, b, ldb, k, false, c, ldc}, m, n,
              Ahead{bytes, bytes + ahead_floats * static_cast<int64_t>(sizeof(float))});
}
void MatMulTransposed(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m,
                      int64_t k, int64_t n, bool accumulate, float* c, int64_t ldc) {
  MultiplyAll({a, 1, lda, b, ldb, k, accumulate, c, ldc}, m, n, NoAhead());
}

}  // namespace

MatMulKernels MatMulTable() {
  return {.f32 = MatMul, .f32_ahead = MatMulAhead, .f32_tn = MatMulTransposed};
}

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
