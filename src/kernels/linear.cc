// Linear layers along the input dimension, from weights as they lie in the file. Lane l sums the
// elements 2l and 2l+1 of every block of 32 in order; the tree at the end is fixed. So one row
// straight from the file and a tile of panels give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/arithmetic.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/row_reader-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {
namespace {

void SplitRow(const float* x, int64_t k, float* out) {
  V even, odd;
  for (int64_t i = 0; i < k; i += kSplitBlock) {
    const int64_t left = k - i;
    const V first = LoadN(x + i, left);
    const V second = left > kLanes ? LoadN(x + i + kLanes, left - kLanes) : Set(0.0f);
    Deinterleave(first, second, even, odd);
    StoreU(even, out + i);
    StoreU(odd, out + i + kLanes);
  }
}

/// The rows of b that are asked for ahead of use: a context's latents are streamed, in short rows.
constexpr int64_t kAheadFloats = 1280;
[[maybe_unused]] constexpr int64_t kNarrowAheadFloats = 2560;

struct DotOperands {
  const float* x;
  int64_t ldx;
  const float* b;
  int64_t ldb;
  int64_t k_padded;
  int64_t ahead;  // floats from a row of b to the one to ask for
  float* y;
  int64_t ldy;
};

/// kRows rows of x times kCols rows of b, all split float32 rows.
template <int kRows, int kCols>
void DotBlock(const DotOperands& o) {
  V sum[kRows][kCols];
  Unroll<kRows>([&](auto t)
                    HWY_ATTR { Unroll<kCols>([&](auto r) HWY_ATTR { sum[t][r] = Set(0.0f); }); });
  for (int64_t k = 0; k < o.k_padded; k += kLanes) {
    V row[kCols];
    Unroll<kCols>([&](auto r) HWY_ATTR {
      hwy::Prefetch(o.b + r * o.ldb + k + o.ahead);
      row[r] = LoadU(o.b + r * o.ldb + k);
    });
    Unroll<kRows>([&](auto t) HWY_ATTR {
      const V a = LoadU(o.x + t * o.ldx + k);
      Unroll<kCols>([&](auto r) HWY_ATTR { sum[t][r] = Fma(row[r], a, sum[t][r]); });
    });
  }
  Unroll<kRows>([&](auto t) HWY_ATTR { ReduceSums(sum[t], o.y + t * o.ldy); });
}

#if HWY_TARGET == HWY_AVX3

/// Four rows of x, of kSteps vectors each, in registers, times four rows of b.
template <int kSteps>
HWY_INLINE void DotNarrowFour(const V (&x)[4][kSteps], const float* HWY_RESTRICT b, int64_t ldb,
                              float* y, int64_t ldy) {
  V sum[4][4];
  Unroll<4>([&](auto r) HWY_ATTR {
    Unroll<4>([&](auto t) HWY_ATTR { sum[t][r] = Set(0.0f); });
    Unroll<kSteps>([&](auto k) HWY_ATTR {
      const float* at = b + r * ldb + k * kLanes;
      hwy::Prefetch(at + kNarrowAheadFloats);
      const V row = LoadU(at);
      Unroll<4>([&](auto t) HWY_ATTR { sum[t][r] = Fma(row, x[t][k], sum[t][r]); });
    });
  });
  ReduceSums4x4(sum, y, ldy);
}

/// Four rows of x times any number of rows of b, one after the other: with nothing else to load,
/// memory is read in one stream ahead of the sums.
template <int kSteps>
void DotNarrow(const DotOperands& o, int64_t n) {
  V x[4][kSteps];
  Unroll<4>([&](auto t) HWY_ATTR {
    Unroll<kSteps>([&](auto k) HWY_ATTR { x[t][k] = LoadU(o.x + t * o.ldx + k * kLanes); });
  });
  int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    DotNarrowFour<kSteps>(x, o.b + r * o.ldb, o.ldb, o.y + r, o.ldy);
  }
  for (; r < n; ++r) {
    V sum[4];
    Unroll<4>([&](auto t) HWY_ATTR { sum[t] = Set(0.0f); });
    Unroll<kSteps>([&](auto k) HWY_ATTR {
      const V row = LoadU(o.b + r * o.ldb + k * kLanes);
      Unroll<4>([&](auto t) HWY_ATTR { sum[t] = Fma(row, x[t][k], sum[t]); });
    });
    float sums[4];
    ReduceSums(sum, sums);
    Unroll<4>([&](auto t) HWY_ATTR { o.y[t * o.ldy + r] = sums[t]; });
  }
}

#endif

/// Whether rows of x were narrow enough.
template <int kRows>
bool TryDotNarrow([[maybe_unused]] const DotOperands& o, [[maybe_unused]] int64_t n) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kRows == 4) {
    switch (o.k_padded / kLanes) {
      case 2:
        return DotNarrow<2>(o, n), true;
      case 3:
        return DotNarrow<3>(o, n), true;
      case 4:
        return DotNarrow<4>(o, n), true;
      case 5:
        return DotNarrow<5>(o, n), true;
      default:
        break;
    }
  }
#endif
  return false;
}

template <int kRows>
void DotStrip(DotOperands o, int64_t n) {
  if (TryDotNarrow<kRows>(o, n)) return;
  if constexpr (!kScalarTarget) {
    for (; n >= kTileCols; n -= kTileCols) {
      DotBlock<kRows, kTileCols>(o);
      o.b += kTileCols * o.ldb;
      o.y += kTileCols;
    }
  }
  for (; n > 0; --n) {
    DotBlock<kRows, 1>(o);
    o.b += o.ldb;
    ++o.y;
  }
}

void DotRows(const float* x, int64_t ldx, int64_t rows, const float* b, int64_t ldb, int64_t n,
             int64_t k_padded, float* y, int64_t ldy) {
  DotOperands o = {.x = x,
                   .ldx = ldx,
                   .b = b,
                   .ldb = ldb,
                   .k_padded = k_padded,
                   .ahead = RoundUp(CeilDivide(kAheadFloats, ldb), kTileCols) * ldb,
                   .y = y,
                   .ldy = ldy};
  const auto strip = [&]<int kRows>(std::integral_constant<int, kRows>) HWY_ATTR {
    DotStrip<kRows>(o, n);
    o.x += kRows * ldx;
    o.y += kRows * ldy;
    rows -= kRows;
  };
  if constexpr (!kScalarTarget) {
    constexpr int kRows = kParts == 1 ? 4 : 2;
    while (rows >= kRows) strip(std::integral_constant<int, kRows>{});
  }
  while (rows > 0) strip(std::integral_constant<int, 1>{});
}

void PackRows(const float* const* x, int64_t rows, int64_t k_padded, float* panel) {
  for (int64_t k = 0; k < k_padded; k += kLanes) {
    for (int64_t t = 0; t < rows; ++t, panel += kLanes) StoreU(LoadU(x[t] + k), panel);
  }
}

template <WeightFormat kFormat>
void PackWeightRow(const WeightMatrix& w, int64_t row, float* panel) {
  constexpr int64_t kStep = kTileCols * kLanes;
  RowReader<kFormat> reader;
  reader.Open(w, row, w.ElementBytes(w.cols));
  const int64_t blocks = w.cols / kSplitBlock;
  V even, odd;
  for (int64_t block = 0; block < blocks; ++block, panel += 2 * kStep) {
    if (block % kLanes == 0) reader.LoadScales(block, blocks);
    reader.Block(block, even, odd);
    StoreU(even, panel);
    StoreU(odd, panel + kStep);
  }
  if constexpr (kFormat != WeightFormat::kMxfp4) {
    if (const int64_t left = w.cols % kSplitBlock; left != 0) {
      reader.Tail(blocks, left, even, odd);
      StoreU(even, panel);
      StoreU(odd, panel + kStep);
    }
  }
}

void PackWeights(const WeightMatrix& w, int64_t first, float* panel) {
  constexpr int64_t kStep = kTileCols * kLanes;
  for (int64_t r = 0; r < kTileCols; ++r, panel += kLanes) {
    if (first + r >= w.rows) {
      for (int64_t k = 0; k < RoundUp(w.cols, kSplitBlock); k += kLanes) {
        StoreU(Set(0.0f), panel + k / kLanes * kStep);
      }
      continue;
    }
    WithFormat(w.format, [&](auto format) HWY_ATTR { PackWeightRow<format>(w, first + r, panel); });
  }
}

/// kRows by kCols outputs of a tile whose panels hold `x_rows` and four rows a step.
template <int kRows, int kCols>
void TileBlock(const float* HWY_RESTRICT x, int64_t x_rows, const float* HWY_RESTRICT w,
               int64_t steps, int64_t cols, float* y, int64_t ldy, int64_t incy) {
  V sum[kRows][kCols];
  Unroll<kRows>([&](auto t)
                    HWY_ATTR { Unroll<kCols>([&](auto r) HWY_ATTR { sum[t][r] = Set(0.0f); }); });
  for (int64_t s = 0; s < steps; ++s, x += x_rows * kLanes, w += kTileCols * kLanes) {
    V weights[kCols];
    Unroll<kCols>([&](auto r) HWY_ATTR { weights[r] = LoadU(w + r * kLanes); });
    Unroll<kRows>([&](auto t) HWY_ATTR {
      const V a = LoadU(x + t * kLanes);
      Unroll<kCols>([&](auto r) HWY_ATTR { sum[t][r] = Fma(weights[r], a, sum[t][r]); });
    });
  }
  if (HWY_LIKELY(incy == 1 && cols >= kCols)) {
    Unroll<kRows>([&](auto t) HWY_ATTR { ReduceSums(sum[t], y + t * ldy); });
    return;
  }
  Unroll<kRows>([&](auto t) HWY_ATTR {
    float row[kCols];
    ReduceSums(sum[t], row);
    Unroll<kCols>([&](auto r) HWY_ATTR {
      if (r < cols) y[t * ldy + r * incy] = row[r];
    });
  });
}

/// With sixteen AVX2 registers of eight lanes a tile is done in corners of its own.
template <int kRows>
void TileRows(const float* x, int64_t x_rows, const float* w, int64_t steps, int64_t cols, float* y,
              int64_t ldy, int64_t incy) {
  constexpr int kCols = kScalarTarget ? 1 : (kParts == 1 ? 4 : 2);
  for (int64_t r = 0; r < cols; r += kCols) {
    TileBlock<kRows, kCols>(x, x_rows, w + r * kLanes, steps, cols - r, y + r * incy, ldy, incy);
  }
}

void Tile(const float* x, const float* w, int64_t steps, int64_t rows, int64_t cols, float* y,
          int64_t ldy, int64_t incy) {
  constexpr int kRowsMax = kScalarTarget ? 1 : (kParts == 1 ? 6 : 2);
  for (int64_t t = 0; t < rows; t += kRowsMax) {
    const float* from = x + t * kLanes;
    float* to = y + t * ldy;
    switch (HWY_MIN(rows - t, int64_t{kRowsMax})) {
      case 1:
        TileRows<1>(from, rows, w, steps, cols, to, ldy, incy);
        break;
      case 2:
        TileRows<HWY_MIN(kRowsMax, 2)>(from, rows, w, steps, cols, to, ldy, incy);
        break;
      case 3:
        TileRows<HWY_MIN(kRowsMax, 3)>(from, rows, w, steps, cols, to, ldy, incy);
        break;
      case 4:
        TileRows<HWY_MIN(kRowsMax, 4)>(from, rows, w, steps, cols, to, ldy, incy);
        break;
      case 5:
        TileRows<HWY_MIN(kRowsMax, 5)>(from, rows, w, steps, cols, to, ldy, incy);
        break;
      default:
        TileRows<kRowsMax>(from, rows, w, steps, cols, to, ldy, incy);
    }
  }
}

}  // namespace

LinearKernels LinearTable(SimdTarget target) {
  return {.split_row = SplitRow,
          .direct = MakeDirectKernel(target),
          .weighted_rows = MakeWeightedRowsKernel(target),
          .dot_rows = DotRows,
          .pack_rows = PackRows,
          .pack_weights = PackWeights,
          .tile = Tile};
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

LinearKernels MakeLinearKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::LinearTable(target);
  if (target == SimdTarget::kAvx2) return N_AVX2::LinearTable(target);
  return N_SCALAR::LinearTable(target);
}

}  // namespace k3::kernels
#endif  // HWY_ONCE
