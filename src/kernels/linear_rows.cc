// Weighted sums of stored rows, y = x^T W: the way back through a matrix that lies row by row.
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

/// kBlocks blocks of 32 columns, from block `first` on, of the rows [begin, end), added to y.
template <WeightFormat kFormat, int kBlocks>
void SumStrip(const float* x, const WeightMatrix& w, int64_t begin, int64_t end, int64_t first,
              float* y) {
  const int64_t whole = w.cols / kSplitBlock, left = w.cols % kSplitBlock;
  const int64_t blocks = CeilDivide(w.cols, kSplitBlock);
  const int64_t row_bytes = w.ElementBytes(w.cols);
  V even[kBlocks], odd[kBlocks];
  Unroll<kBlocks>([&](auto b) HWY_ATTR {
    even[b] = LoadU(y + b * kSplitBlock);
    odd[b] = LoadU(y + b * kSplitBlock + kLanes);
  });
  for (int64_t r = begin; r < end; ++r) {
    RowReader<kFormat> reader;
    reader.Open(w, r, row_bytes);
    reader.LoadScales(first / kLanes * kLanes, blocks);
    const V weight = Set(x[r]);
    Unroll<kBlocks>([&](auto b) HWY_ATTR {
      V even_w, odd_w;
      if (HWY_LIKELY(first + b < whole)) {
        reader.Block(first + b, even_w, odd_w);
      } else {
        reader.Tail(first + b, left, even_w, odd_w);
      }
      even[b] = Fma(weight, even_w, even[b]);
      odd[b] = Fma(weight, odd_w, odd[b]);
    });
  }
  Unroll<kBlocks>([&](auto b) HWY_ATTR {
    StoreU(even[b], y + b * kSplitBlock);
    StoreU(odd[b], y + b * kSplitBlock + kLanes);
  });
}

template <WeightFormat kFormat>
void SumRows(const float* x, const WeightMatrix& w, float* y) {
  // As many sums as registers hold; strips do not cross the sixteen blocks of one scale vector.
  constexpr int kBlocks = kScalarTarget ? 1 : (kParts == 1 ? 8 : 2);
  const int64_t blocks = CeilDivide(w.cols, kSplitBlock);
  for (int64_t i = 0; i < blocks * kSplitBlock; i += kLanes) StoreU(Set(0.0f), y + i);
  for (int64_t begin = 0; begin < w.rows; begin += kGroupRows) {
    const int64_t end = HWY_MIN(begin + kGroupRows, w.rows);
    int64_t block = 0;
    for (; block + kBlocks <= blocks; block += kBlocks) {
      SumStrip<kFormat, kBlocks>(x, w, begin, end, block, y + block * kSplitBlock);
    }
    for (; block < blocks; ++block) {
      SumStrip<kFormat, 1>(x, w, begin, end, block, y + block * kSplitBlock);
    }
  }
}

void WeightedRows(const float* x, const WeightMatrix& w, float* y) {
  WithFormat(w.format, [&](auto format) HWY_ATTR { SumRows<format>(x, w, y); });
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
