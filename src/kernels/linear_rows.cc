// Weighted sums of stored rows, y = x W: the way back through a matrix that lies row by row.
// Each output is one chain of fused multiply-adds over the rows, from 0, in ascending order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "base/arithmetic.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/row_reader-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {
namespace {

/// Rows that are summed before the next columns are: the matrix is read in pieces of neighbours.
constexpr int64_t kGroupRows = 16;

/// Rows of factors, and as many rows of sums at stride ldy.
struct Factors {
  const float* const* x;
  float* y;
  int64_t ldy;
};

/// kBlocks blocks of 32 columns, from block `first` on, of the rows [begin, end), added to y.
template <WeightFormat kFormat, int kRows, int kBlocks>
void SumStrip(const Factors& f, const WeightMatrix& w, int64_t begin, int64_t end, int64_t first) {
  const int64_t whole = w.cols / kSplitBlock, left = w.cols % kSplitBlock;
  const int64_t blocks = CeilDivide(w.cols, kSplitBlock);
  const int64_t row_bytes = w.ElementBytes(w.cols);
  float* y = f.y + first * kSplitBlock;
  V even[kRows][kBlocks], odd[kRows][kBlocks];
  Unroll<kRows>([&](auto t) HWY_ATTR {
    Unroll<kBlocks>([&](auto b) HWY_ATTR {
      even[t][b] = LoadU(y + t * f.ldy + b * kSplitBlock);
      odd[t][b] = LoadU(y + t * f.ldy + b * kSplitBlock + kLanes);
    });
  });
  for (int64_t r = begin; r < end; ++r) {
    RowReader<kFormat> reader;
    reader.Open(w, r, row_bytes);
    reader.LoadScales(first / kLanes * kLanes, blocks);
    V factor[kRows];
    Unroll<kRows>([&](auto t) HWY_ATTR { factor[t] = Set(f.x[t][r]); });
    Unroll<kBlocks>([&](auto b) HWY_ATTR {
      V even_w, odd_w;
      if (HWY_LIKELY(first + b < whole)) {
        reader.Block(first + b, even_w, odd_w);
      } else {
        reader.Tail(first + b, left, even_w, odd_w);
      }
      Unroll<kRows>([&](auto t) HWY_ATTR {
        even[t][b] = Fma(factor[t], even_w, even[t][b]);
        odd[t][b] = Fma(factor[t], odd_w, odd[t][b]);
      });
    });
  }
  Unroll<kRows>([&](auto t) HWY_ATTR {
    Unroll<kBlocks>([&](auto b) HWY_ATTR {
      StoreU(even[t][b], y + t * f.ldy + b * kSplitBlock);
      StoreU(odd[t][b], y + t * f.ldy + b * kSplitBlock + kLanes);
    });
  });
}

template <WeightFormat kFormat, int kRows>
void SumRows(const Factors& f, const WeightMatrix& w) {
  // As many sums as registers hold; strips do not cross the sixteen blocks of one scale vector.
  constexpr int kBlocks = kScalarTarget ? 1 : (kParts == 1 ? 8 : 2) / kRows;
  const int64_t blocks = CeilDivide(w.cols, kSplitBlock);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t i = 0; i < blocks * kSplitBlock; i += kLanes) {
      StoreU(Set(0.0f), f.y + t * f.ldy + i);
    }
  }
  for (int64_t begin = 0; begin < w.rows; begin += kGroupRows) {
    const int64_t end = HWY_MIN(begin + kGroupRows, w.rows);
    int64_t block = 0;
    for (; block + kBlocks <= blocks; block += kBlocks) {
      SumStrip<kFormat, kRows, kBlocks>(f, w, begin, end, block);
    }
    for (; block < blocks; ++block) SumStrip<kFormat, kRows, 1>(f, w, begin, end, block);
  }
}

/// Several rows at once for the format of the released checkpoint's trunk, as in linear_direct.cc.
template <WeightFormat kFormat>
void SumAll(Factors f, int64_t rows, const WeightMatrix& w) {
  const auto rows_of = [&]<int kRows>(std::integral_constant<int, kRows>) HWY_ATTR {
    for (; rows >= kRows; rows -= kRows) {
      SumRows<kFormat, kRows>(f, w);
      f.x += kRows;
      f.y += kRows * f.ldy;
    }
  };
  if constexpr (kFormat == WeightFormat::kBf16 && !kScalarTarget) {
    if constexpr (kParts == 1) rows_of(std::integral_constant<int, 4>{});
    rows_of(std::integral_constant<int, 2>{});
  }
  rows_of(std::integral_constant<int, 1>{});
}

void WeightedRows(const float* const* x, int64_t rows, const WeightMatrix& w, float* y,
                  int64_t ldy) {
  WithFormat(w.format, [&](auto format) HWY_ATTR { SumAll<format>({x, y, ldy}, rows, w); });
}

}  // namespace

WeightedRowsKernel WeightedRowsTable() { return WeightedRows; }

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

WeightedRowsKernel MakeWeightedRowsKernel(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::WeightedRowsTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::WeightedRowsTable();
  return N_SCALAR::WeightedRowsTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
