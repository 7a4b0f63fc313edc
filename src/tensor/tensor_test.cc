#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tensor/number_formats.h"
#include "tensor/tensor_view.h"

namespace k3 {
namespace {

TEST(ShapeTest, CountsAndRefusesOverflow) {
  EXPECT_EQ(Shape({3, 4}).Elements(), 12);
  EXPECT_EQ(Shape({}).Elements(), 1);
  EXPECT_EQ(Shape({0, 7}).Elements(), 0);
  EXPECT_FALSE(Shape({int64_t{1} << 40, int64_t{1} << 40}).CheckedElements().has_value());
  EXPECT_FALSE(Shape({-1, 4}).CheckedElements().has_value());
  EXPECT_EQ(Shape({16, 512}).ToString(), "[16, 512]");
}

TEST(TensorTest, OwnsZeroedAlignedMemory) {
  Tensor tensor(DType::kF32, {5, 7});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  for (float x : tensor.f32()) EXPECT_EQ(x, 0);
  tensor.f32()[3] = 2;
  Tensor copy = tensor.Clone();
  tensor.f32()[3] = 1;
  EXPECT_EQ(copy.f32()[3], 2);
}

TEST(DTypeTest, NamesRoundTrip) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kU8, DType::kF8E5M2}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_FALSE(ParseDType("F33").has_value());
}

TEST(FormatsTest, EveryBf16RoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      EXPECT_EQ(FloatToBf16(value), bits);
    }
  }
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3F80);  // a tie goes to the even neighbour
  EXPECT_EQ(FloatToBf16(1.01171875f), 0x3F82);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(FormatsTest, HalfAgreesWithTheCompiler) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(value, static_cast<float>(bits >> 15 ? -magnitude : magnitude));
  }
}

TEST(FormatsTest, Mxfp4UnpacksEveryCodeAndScale) {
  std::array<uint8_t, 16> codes;
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(i | (15 - i) << 4);
  for (int scale = 0; scale < 255; ++scale) {
    const uint8_t scale_byte = static_cast<uint8_t>(scale);
    std::array<float, 32> out;
    UnpackMxfp4Row(codes.data(), &scale_byte, out);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(out[2 * i], std::ldexp(kE2m1Values[i], scale - 127));
      EXPECT_EQ(out[2 * i + 1], std::ldexp(kE2m1Values[15 - i], scale - 127));
    }
  }
}

TEST(FormatsTest, Mxfp4PackOfUnpackedIsTheSame) {
  Random random(5, 0);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(64);
    const float gain = std::ldexp(1.0f, static_cast<int>(random.NextBelow(60)) - 30);
    for (float& x : row) x = random.NextNormal() * gain;
    std::array<uint8_t, 32> codes, codes_again;
    std::array<uint8_t, 2> scales, scales_again;
    PackMxfp4Row(row, codes.data(), scales.data());
    std::vector<float> unpacked(64);
    UnpackMxfp4Row(codes.data(), scales.data(), unpacked);
    PackMxfp4Row(unpacked, codes_again.data(), scales_again.data());
    std::vector<float> again(64);
    UnpackMxfp4Row(codes_again.data(), scales_again.data(), again);
    EXPECT_EQ(unpacked, again);
    for (size_t i = 0; i < row.size(); ++i) {
      // Half the widest gap (4 to 6) or the clip from below 8 to 6, in units of the scale.
      EXPECT_LE(std::fabs(row[i] - unpacked[i]), 2.0f * E8m0ToFloat(scales[i / 32]));
    }
  }
}

}  // namespace
}  // namespace k3
