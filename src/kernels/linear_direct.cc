// Linear layers straight from the stored rows, for up to six activation rows: the decoder's kernel.
// The order of the sums is linear.cc's.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_direct.cc"
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

/// A whole block's part of the sums, the even elements and then the odd ones, for so many sums that
/// there are no registers to hold both halves of the weights beside them.
template <int kRows, int kWeights, bool kOdd>
HWY_INLINE void AddBf16Half(const RowReader<WeightFormat::kBf16>* reader, const float* const* x,
                            int64_t block, V (&sum)[kRows][kWeights]) {
  V weights[kWeights];
  Unroll<kWeights>([&](auto r)
                       HWY_ATTR { weights[r] = LoadBf16Half<kOdd>(reader[r].data + block * 64); });
  Unroll<kRows>([&](auto t) HWY_ATTR {
    const V a = LoadU(x[t] + block * kSplitBlock + (kOdd ? kLanes : 0));
    Unroll<kWeights>([&](auto r) HWY_ATTR { sum[t][r] = Fma(weights[r], a, sum[t][r]); });
  });
}

/// kRows activation rows times kWeights weight rows, both streamed.
template <WeightFormat kFormat, int kRows, int kWeights>
void DirectBlock(const float* const* x, const WeightMatrix& w, int64_t first, float* y,
                 int64_t ldy) {
  RowReader<kFormat> reader[kWeights];
  const int64_t row_bytes = w.ElementBytes(w.cols);
  Unroll<kWeights>([&](auto r) HWY_ATTR { reader[r].Open(w, first + r, row_bytes); });
  V sum[kRows][kWeights];
  Unroll<kRows>(
      [&](auto t) HWY_ATTR { Unroll<kWeights>([&](auto r) HWY_ATTR { sum[t][r] = Set(0.0f); }); });
  const int64_t whole = w.cols / kSplitBlock, left = w.cols % kSplitBlock;
  const int64_t blocks = whole + (left != 0 ? 1 : 0);
  for (int64_t block = 0; block < blocks; ++block) {
    if (kFormat == WeightFormat::kMxfp4 && block % kLanes == 0) {
      Unroll<kWeights>([&](auto r) HWY_ATTR { reader[r].LoadScales(block, blocks); });
    }
    Unroll<kWeights>([&](auto r)
                         HWY_ATTR { reader[r].PrefetchBlock(block, kWeights * row_bytes); });
    if constexpr (kFormat == WeightFormat::kBf16 && kRows > 2) {
      if (HWY_LIKELY(block < whole)) {
        AddBf16Half<kRows, kWeights, false>(reader, x, block, sum);
        AddBf16Half<kRows, kWeights, true>(reader, x, block, sum);
        continue;
      }
    }
    V even_x[kRows], odd_x[kRows];
    Unroll<kRows>([&](auto t) HWY_ATTR {
      even_x[t] = LoadU(x[t] + block * kSplitBlock);
      odd_x[t] = LoadU(x[t] + block * kSplitBlock + kLanes);
    });
    Unroll<kWeights>([&](auto r) HWY_ATTR {
      V even, odd;
      if (HWY_LIKELY(block < whole)) {
        reader[r].Block(block, even, odd);
      } else {
        reader[r].Tail(block, left, even, odd);
      }
      Unroll<kRows>([&](auto t) HWY_ATTR {
        sum[t][r] = Fma(even, even_x[t], sum[t][r]);
        sum[t][r] = Fma(odd, odd_x[t], sum[t][r]);
      });
    });
  }
  Unroll<kRows>([&](auto t) HWY_ATTR { ReduceSums(sum[t], y + t * ldy + first); });
}

template <WeightFormat kFormat, int kRows>
void DirectRows(const float* const* x, const WeightMatrix& w, float* y, int64_t ldy) {
  // Enough sums at a time to hide the latency of a fused multiply-add, not more than registers.
  constexpr int kWeights =
      kScalarTarget ? 1 : (kParts == 1 ? (kRows <= 2 ? 8 : 4) : (kRows <= 1 ? 4 : 2));
  int64_t r = 0;
  for (; r + kWeights <= w.rows; r += kWeights) {
    DirectBlock<kFormat, kRows, kWeights>(x, w, r, y, ldy);
  }
  if (r == w.rows) return;
  if (w.rows >= kWeights) {
    // The last rows once more with some before them: the same values again.
    DirectBlock<kFormat, kRows, kWeights>(x, w, w.rows - kWeights, y, ldy);
    return;
  }
  for (int64_t t = 0; t < kRows; ++t) {
    for (r = 0; r < w.rows; ++r) DirectBlock<kFormat, 1, 1>(x + t, w, r, y + t * ldy, ldy);
  }
}

/// Several rows at once for the formats of the released checkpoint; the others, and the scalar
/// target, take them one by one.
template <WeightFormat kFormat>
void DirectFormat(const float* const* x, int64_t rows, const WeightMatrix& w, float* y,
                  int64_t ldy) {
  constexpr bool kCommon = kFormat == WeightFormat::kBf16 || kFormat == WeightFormat::kMxfp4;
  if constexpr (kCommon && !kScalarTarget) {
    switch (rows) {
      case 1:
        return DirectRows<kFormat, 1>(x, w, y, ldy);
      case 2:
        return DirectRows<kFormat, 2>(x, w, y, ldy);
      case 3:
        return DirectRows<kFormat, 3>(x, w, y, ldy);
      case 4:
        return DirectRows<kFormat, 4>(x, w, y, ldy);
      case 5:
        return DirectRows<kFormat, 5>(x, w, y, ldy);
      default:
        return DirectRows<kFormat, 6>(x, w, y, ldy);
    }
  } else {
    for (int64_t t = 0; t < rows; ++t) DirectRows<kFormat, 1>(x + t, w, y + t * ldy, ldy);
  }
}

void Direct(const float* const* x, int64_t rows, const WeightMatrix& w, float* y, int64_t ldy) {
  WithFormat(w.format, [&](auto format) HWY_ATTR { DirectFormat<format>(x, rows, w, y, ldy); });
}

}  // namespace

DirectKernel DirectTable() { return Direct; }

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

DirectKernel MakeDirectKernel(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::DirectTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::DirectTable();
  return N_SCALAR::DirectTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
