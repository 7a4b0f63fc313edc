// Linear and matrix kernels against plain loops that spell out the promised order of the sums: the
// comparison is bit for bit, on every target, for rows straight from the file and for panels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/arithmetic.h"
#include "kernels/kernel_test_util.h"
#include "tensor/number_formats.h"

namespace k3::kernels {
namespace {

/// A matrix in one stored format at an odd address, and its exact values.
struct StoredMatrix {
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> scales;
  std::vector<float> values;
  WeightMatrix view;
};

void PutBits(std::vector<uint8_t>& bytes, uint64_t bits, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(bits >> (8 * i)));
}

StoredMatrix MakeMatrix(WeightFormat format, int64_t rows, int64_t cols) {
  StoredMatrix m;
  Random random(3, static_cast<uint64_t>(rows * 1000 + cols));
  m.bytes.push_back(0);  // everything behind is misaligned
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float x = random.NextNormal();
    if (format == WeightFormat::kBf16) {
      PutBits(m.bytes, FloatToBf16(x), 2);
      m.values.push_back(Bf16ToFloat(FloatToBf16(x)));
    } else if (format == WeightFormat::kF16) {
      const uint16_t half =
          static_cast<uint16_t>(random.NextBelow(0x7C00) | random.NextBelow(2) << 15);
      PutBits(m.bytes, half, 2);
      m.values.push_back(HalfToFloat(half));
    } else if (format == WeightFormat::kF32) {
      PutBits(m.bytes, std::bit_cast<uint32_t>(x), 4);
      m.values.push_back(x);
    }
  }
  if (format == WeightFormat::kMxfp4) {
    for (int64_t i = 0; i < rows * cols / 2; ++i) PutBits(m.bytes, random.NextBelow(256), 1);
    // Scales from 2^-127 on: a subnormal weight must not be flushed.
    for (int64_t i = 0; i < rows * cols / 32; ++i) {
      m.scales.push_back(static_cast<uint8_t>(i % 7 == 0 ? 0 : 110 + random.NextBelow(30)));
    }
    m.values.resize(static_cast<size_t>(rows * cols));
    UnpackMxfp4Row(m.bytes.data() + 1, m.scales.data(), m.values);
  }
  m.view = {m.bytes.data() + 1, m.scales.empty() ? nullptr : m.scales.data(), rows, cols, format};
  return m;
}

/// The promised order: lane l takes elements 2l and 2l + 1 of every block of 32, then the tree.
float ReferenceDot(const float* x, const float* w, int64_t k) {
  float lanes[16] = {};
  for (int64_t block = 0; block < RoundUp(k, 32); block += 32) {
    for (int64_t l = 0; l < 16; ++l) {
      for (int64_t i = block + 2 * l; i < block + 2 * l + 2; ++i) {
        const float a = i < k ? x[i] : 0.0f, b = i < k ? w[i] : 0.0f;
        lanes[l] = std::fma(a, b, lanes[l]);
      }
    }
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

struct Shape3 {
  int64_t tokens, rows, cols;
};

class LinearTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(LinearTest, DirectAndPanelsEqualTheReference) {
  for (const Shape3& shape : std::vector<Shape3>{{1, 1, 32},
                                                 {1, 9, 64},
                                                 {2, 8, 96},
                                                 {3, 13, 160},
                                                 {4, 5, 32},
                                                 {5, 17, 64},
                                                 {6, 7, 224},
                                                 {1, 3, 1},
                                                 {2, 9, 31},
                                                 {3, 8, 33},
                                                 {6, 10, 100},
                                                 {5, 4, 17}}) {
    if (GetParam() == WeightFormat::kMxfp4 && shape.cols % 32 != 0) continue;
    const StoredMatrix w = MakeMatrix(GetParam(), shape.rows, shape.cols);
    const std::vector<float> x = RandomFloats(shape.tokens * shape.cols, 9);
    std::vector<float> want(static_cast<size_t>(shape.tokens * shape.rows));
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t r = 0; r < shape.rows; ++r) {
        want[static_cast<size_t>(t * shape.rows + r)] =
            ReferenceDot(&x[static_cast<size_t>(t * shape.cols)],
                         &w.values[static_cast<size_t>(r * shape.cols)], shape.cols);
      }
    }
    const int64_t k = RoundUp(shape.cols, kSplitBlock);
    for (SimdTarget target : SupportedTargets()) {
      const LinearKernels kernel = Kernels(target).linear;
      std::vector<float> split(static_cast<size_t>(shape.tokens * k));
      std::vector<const float*> rows;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        kernel.split_row(&x[static_cast<size_t>(t * shape.cols)], shape.cols, &split[t * k]);
        rows.push_back(&split[static_cast<size_t>(t * k)]);
      }
      std::vector<float> got(want.size());
      kernel.direct(rows.data(), shape.tokens, w.view, got.data(), shape.rows);
      EXPECT_TRUE(SameBits(want, got)) << SimdTargetName(target) << " direct, " << shape.tokens
                                       << " x " << shape.rows << " x " << shape.cols;

      std::vector<float> x_panel(static_cast<size_t>(shape.tokens * k));
      std::vector<float> w_panel(static_cast<size_t>(kTileCols * k));
      kernel.pack_rows(rows.data(), shape.tokens, k, x_panel.data());
      std::vector<float> tiled(want.size()), transposed(want.size());
      for (int64_t r = 0; r < shape.rows; r += kTileCols) {
        const int64_t cols = std::min(kTileCols, shape.rows - r);
        kernel.pack_weights(w.view, r, w_panel.data());
        kernel.tile(x_panel.data(), w_panel.data(), k / 16, shape.tokens, cols, &tiled[r],
                    shape.rows, 1);
        kernel.tile(x_panel.data(), w_panel.data(), k / 16, shape.tokens, cols,
                    &transposed[r * shape.tokens], 1, shape.tokens);
      }
      EXPECT_TRUE(SameBits(want, tiled)) << SimdTargetName(target) << " panels";
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t r = 0; r < shape.rows; ++r) {
          EXPECT_TRUE(SameBits(&transposed[r * shape.tokens + t], &want[t * shape.rows + r], 1));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearTest,
                         ::testing::Values(WeightFormat::kBf16, WeightFormat::kF16,
                                           WeightFormat::kF32, WeightFormat::kMxfp4));

TEST_P(LinearTest, WeightedRowsAreOneChainOverTheRows) {
  constexpr int64_t kFactorRows = 7;  // four, two and one at a time
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32},
                                   {17, 64},
                                   {5, 544},
                                   {130, 512},
                                   {3, 1},
                                   {20, 45},
                                   {16, 287}}) {
    if (GetParam() == WeightFormat::kMxfp4 && cols % 32 != 0) continue;
    const StoredMatrix w = MakeMatrix(GetParam(), rows, cols);
    const int64_t ldy = RoundUp(cols, kSplitBlock) + 16;
    const std::vector<float> x = RandomFloats(kFactorRows * rows, 5);
    std::vector<const float*> x_rows;
    for (int64_t t = 0; t < kFactorRows; ++t) x_rows.push_back(x.data() + t * rows);
    std::vector<float> expected(static_cast<size_t>(kFactorRows * ldy), -1.0f);
    for (int64_t t = 0; t < kFactorRows; ++t) {
      float* sums = expected.data() + t * ldy;
      std::fill_n(sums, RoundUp(cols, kSplitBlock), 0.0f);
      for (int64_t c = 0; c < cols; ++c) {
        float& sum = sums[c / 32 * 32 + c % 2 * 16 + c % 32 / 2];
        for (int64_t r = 0; r < rows; ++r) {
          sum = std::fma(x[static_cast<size_t>(t * rows + r)],
                         w.values[static_cast<size_t>(r * cols + c)], sum);
        }
      }
    }
    for (SimdTarget target : SupportedTargets()) {
      for (const int64_t count : {int64_t{1}, int64_t{3}, kFactorRows}) {
        std::vector<float> y(expected.size(), -1.0f);
        Kernels(target).linear.weighted_rows(x_rows.data(), count, w.view, y.data(), ldy);
        EXPECT_TRUE(SameBits({y.begin(), y.begin() + count * ldy},
                             {expected.begin(), expected.begin() + count * ldy}))
            << SimdTargetName(target) << " " << rows << " " << cols << " " << count;
        EXPECT_TRUE(
            std::all_of(y.begin() + count * ldy, y.end(), [](float v) { return v == -1.0f; }));
      }
    }
  }
}

TEST(DotRowsTest, EqualsTheReferenceForAnyCounts) {
  // Split rows on both sides: lane l takes elements l mod 16 in order. Rows of up to 80 floats have
  // a loop of their own for each width.
  for (int64_t width : {32, 48, 64, 80, 96}) {
    for (int64_t rows : {1, 3, 4, 9}) {
      for (int64_t n : {1, 4, 7, 16}) {
        const std::vector<float> x = RandomFloats(rows * width, 1), b = RandomFloats(n * width, 2);
        std::vector<float> want;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t r = 0; r < n; ++r) {
            want.push_back(
                Kernels(SimdTarget::kScalar).elementwise.dot(&x[t * width], &b[r * width], width));
          }
        }
        for (SimdTarget target : SupportedTargets()) {
          std::vector<float> got(want.size());
          Kernels(target).linear.dot_rows(x.data(), width, rows, b.data(), width, n, width,
                                          got.data(), n);
          EXPECT_TRUE(SameBits(want, got))
              << SimdTargetName(target) << " " << rows << " x " << n << ", width " << width;
        }
      }
    }
  }
}

TEST(MatMulTest, EqualsTheChainForAnyShape) {
  for (int64_t m : {1, 2, 3, 5, 6, 7, 13, 32}) {
    for (int64_t n : {1, 15, 16, 33, 64, 128, 200}) {
      for (int64_t k : {0, 1, 16, 37}) {
        for (bool accumulate : {false, true}) {
          const std::vector<float> a = RandomFloats(m * k, 1), b = RandomFloats(k * n, 2),
                                   start = RandomFloats(m * n, 3);
          std::vector<float> want = start;
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              float sum = accumulate ? start[i * n + j] : 0.0f;
              for (int64_t p = 0; p < k; ++p) sum = std::fma(a[i * k + p], b[p * n + j], sum);
              want[i * n + j] = sum;
            }
          }
          for (SimdTarget target : SupportedTargets()) {
            std::vector<float> got = start;
            Kernels(target).matmul.f32(a.data(), k, b.data(), n, m, k, n, accumulate, got.data(),
                                       n);
            ASSERT_TRUE(SameBits(want, got))
                << SimdTargetName(target) << " " << m << " x " << k << " x " << n;
            // Asking ahead changes no result; what is asked for may end within a step's two lines.
            if (!accumulate) {
              got = start;
              Kernels(target).matmul.f32_ahead(a.data(), k, b.data(), n, m, k, n, got.data(), n,
                                               b.data(), k * n);
              ASSERT_TRUE(SameBits(want, got))
                  << SimdTargetName(target) << " ahead, " << m << " x " << k << " x " << n;
            }
            // The same with a stored transposed, wider than it is used.
            const int64_t lda = m + 3;
            std::vector<float> transposed(static_cast<size_t>(k * lda), NAN);
            for (int64_t i = 0; i < m * k; ++i) transposed[i % k * lda + i / k] = a[i];
            got = start;
            Kernels(target).matmul.f32_tn(transposed.data(), lda, b.data(), n, m, k, n, accumulate,
                                          got.data(), n);
            ASSERT_TRUE(SameBits(want, got))
                << SimdTargetName(target) << " transposed, " << m << " x " << k << " x " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::kernels
