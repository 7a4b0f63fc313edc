#include "tensor/number_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace k3 {
namespace {

using Block = std::array<float, kMxfp4BlockSize>;

/// The nearest of the eight magnitudes, ties to the even code, by looking at all of them.
int NearestCode(double magnitude) {
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double now = std::fabs(double{kE2m1Values[code]} - magnitude);
    const double then = std::fabs(double{kE2m1Values[best]} - magnitude);
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  return best;
}

/// The rule's exponent, by looking at all of them.
int ExpectedExponent(double largest, Mxfp4ScaleRule rule) {
  for (int exponent = -127; exponent < 128; ++exponent) {
    const double scaled = std::ldexp(largest, -exponent);
    if (scaled < 8 && rule == Mxfp4ScaleRule::kFloor) return exponent;
    if (scaled <= 6 && rule == Mxfp4ScaleRule::kCeil) return exponent;
  }
  return 128;
}

struct Packed {
  std::array<uint8_t, 16> codes{};
  uint8_t scale = 0;

  int Code(size_t i) const { return i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4; }
};
Packed Quantize(const Block& block, Mxfp4ScaleRule rule) {
  Packed packed;
  QuantizeMxfp4Row(block, rule, packed.codes.data(), &packed.scale);
  return packed;
}
Block Unpack(const Packed& packed) {
  Block block;
  UnpackMxfp4Row(packed.codes.data(), &packed.scale, block);
  return block;
}

constexpr Mxfp4ScaleRule kRules[] = {Mxfp4ScaleRule::kFloor, Mxfp4ScaleRule::kCeil};

TEST(Mxfp4QuantizeTest, AgreesWithASearchOverAllCodes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Mxfp4ScaleRule rule : kRules) {
    for (int trial = 0; trial < 2000; ++trial) {
      // From the smallest subnormal to the largest float.
      const int exponent = trial % 280 - 150;
      Block block;
      for (float& value : block) {
        value = std::ldexp(std::clamp(normal(random), -1.9f, 1.9f), std::min(exponent, 127));
        // Some exact ties and halves of the grid.
        if (trial % 3 == 0 && exponent < 126) {
          value = std::ldexp(std::round(std::ldexp(value, 2 - exponent)), exponent - 2);
        }
      }
      float largest = 0;
      for (const float value : block) largest = std::max(largest, std::fabs(value));
      const Packed packed = Quantize(block, rule);
      if (largest == 0) continue;
      ASSERT_EQ(packed.scale, ExpectedExponent(largest, rule) + 127);
      for (size_t i = 0; i < block.size(); ++i) {
        const double scaled = std::ldexp(std::fabs(double{block[i]}), 127 - packed.scale);
        ASSERT_EQ(packed.Code(i) & 7, NearestCode(scaled)) << block[i];
        ASSERT_EQ(packed.Code(i) >> 3, std::signbit(block[i]) ? 1 : 0);
      }
    }
  }
}

TEST(Mxfp4QuantizeTest, TiesGoToTheEvenCode) {
  // With 6 in the block both rules have the scale 1.
  Block block{6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -5};
  for (const Mxfp4ScaleRule rule : kRules) {
    const Packed packed = Quantize(block, rule);
    EXPECT_EQ(packed.scale, 127);
    const int expected[] = {7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 14};
    for (size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(packed.Code(i), expected[i]) << i;
  }
}

TEST(Mxfp4QuantizeTest, ZerosGetCodesOfZeroAndAScaleOfOne) {
  Block block{};
  block[3] = -0.0f;
  for (const Mxfp4ScaleRule rule : kRules) {
    const Packed packed = Quantize(block, rule);
    EXPECT_EQ(packed.scale, 127);
    for (const uint8_t codes : packed.codes) EXPECT_EQ(codes, 0);
  }
}

TEST(Mxfp4QuantizeTest, QuantisedValuesStayAsTheyAre) {
  std::mt19937 random(2);
  for (int scale = 0; scale < 253; ++scale) {
    Packed packed;
    for (uint8_t& codes : packed.codes) codes = static_cast<uint8_t>(random());
    packed.scale = static_cast<uint8_t>(scale);
    const Block block = Unpack(packed);
    for (const Mxfp4ScaleRule rule : kRules) {
      const Packed again = Quantize(block, rule);
      const Block values = Unpack(again);
      for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(values[i], block[i]) << scale;
      // Random codes hold a 4 or 6, whose block keeps its scale under the floor rule.
      if (rule == Mxfp4ScaleRule::kFloor) {
        EXPECT_EQ(again.scale, packed.scale);
      }
    }
  }
}

TEST(Mxfp4QuantizeTest, NormalBlocksHaveTheKnownStatistics) {
  constexpr int kBlocks = 20'000;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::array<std::array<double, 8>, 2> largest_code{};
  std::array<double, 2> squares{}, clipped{};
  for (int n = 0; n < kBlocks; ++n) {
    Block block;
    for (float& value : block) value = normal(random);
    for (const Mxfp4ScaleRule rule : kRules) {
      const auto r = static_cast<size_t>(rule);
      const Packed packed = Quantize(block, rule);
      const Block values = Unpack(packed);
      int code = 0;
      float largest = 0;
      for (size_t i = 0; i < block.size(); ++i) {
        code = std::max(code, packed.Code(i) & 7);
        largest = std::max(largest, std::fabs(block[i]));
        squares[r] += std::pow(double{values[i]} - block[i], 2) / (32.0 * kBlocks);
      }
      largest_code[r][static_cast<size_t>(code)] += 1.0 / kBlocks;
      if (largest > 6 * E8m0ToFloat(packed.scale)) clipped[r] += 1.0 / kBlocks;
    }
  }
  // Shares of blocks by the value of their largest code, measured once with another program on as
  // many blocks: five standard errors are 5 x sqrt(0.25 / 20,000) = 0.018.
  EXPECT_NEAR(largest_code[0][6], 0.45, 0.018);
  EXPECT_NEAR(largest_code[0][7], 0.55, 0.018);
  EXPECT_NEAR(largest_code[1][5], 0.13, 0.018);
  EXPECT_NEAR(largest_code[1][6], 0.62, 0.018);
  EXPECT_NEAR(largest_code[1][7], 0.26, 0.018);
  EXPECT_NEAR(clipped[0], 0.29, 0.018);
  EXPECT_EQ(clipped[1], 0);
  // Mean squared errors; the sample's own scatter is below 1 %.
  EXPECT_NEAR(squares[0], 0.01319, 0.00015);
  EXPECT_NEAR(squares[1], 0.01324, 0.00015);
}

/// All magnitudes of E4M3 in order.
std::vector<double> E4m3Magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

TEST(Mxfp8FakeQuantTest, AgreesWithASearchOverAllValues) {
  const std::vector<double> grid = E4m3Magnitudes();
  ASSERT_EQ(grid.back(), 448);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 1500; ++trial) {
    const auto count = static_cast<size_t>(1 + trial % 70);
    const int exponent = trial % 250 - 130;
    std::vector<float> x(count), y(count);
    for (float& value : x) {
      // Over many powers of two, so that E4M3's subnormals are met.
      value = std::ldexp(std::clamp(normal(random), -1.9f, 1.9f),
                         std::min(exponent - static_cast<int>(random() % 24), 126));
      if (trial % 2 == 0) value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFF80000);
    }
    FakeQuantMxfp8Row(x, y.data());
    for (size_t begin = 0; begin < count; begin += 32) {
      const size_t end = std::min(begin + 32, count);
      double largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
      int scale = -127;
      while (std::ldexp(largest, -scale) > 448) ++scale;
      for (size_t i = begin; i < end; ++i) {
        const double scaled = std::ldexp(std::fabs(double{x[i]}), -scale);
        size_t best = 0;
        for (size_t code = 1; code < grid.size(); ++code) {
          const double now = std::fabs(grid[code] - scaled), then = std::fabs(grid[best] - scaled);
          if (now < then || (now == then && code % 2 == 0)) best = code;
        }
        ASSERT_EQ(y[i], std::copysign(static_cast<float>(std::ldexp(grid[best], scale)), x[i]))
            << x[i] << " in trial " << trial;
      }
    }
    std::vector<float> again(count);
    FakeQuantMxfp8Row(y, again.data());
    EXPECT_EQ(std::memcmp(again.data(), y.data(), count * sizeof(float)), 0);
    FakeQuantMxfp8Row(x, x.data());
    EXPECT_EQ(std::memcmp(x.data(), y.data(), count * sizeof(float)), 0);
  }
}

TEST(Mxfp8FakeQuantTest, TiesGoToTheEvenValue) {
  // With 448 in the block the scale is 1. Steps are 2^-9 below 2^-6, then 1/8 of a power of two.
  const std::vector<float> x = {448,     0x1p-10f, 0x3p-10f, 0x5p-10f,
                                1.0625f, 1.1875f,  -1.0625f, -0.0f};
  const std::vector<float> expected = {448, 0, 0x1p-8f, 0x1p-8f, 1, 1.25f, -1, -0.0f};
  std::vector<float> y(x.size());
  FakeQuantMxfp8Row(x, y.data());
  EXPECT_EQ(y, expected);
}

}  // namespace
}  // namespace k3
