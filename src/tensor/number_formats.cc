#include "tensor/number_formats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace k3 {
namespace {

/// The bits of the largest magnitude: those of floats that are not negative are in their order.
uint32_t LargestBits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF);
  }
  return largest;
}

/// The E8M0 byte of the smallest power of two that brings a magnitude with these bits to at most
/// (1 + mantissa / 2^23) 2^exponent; at least 0, and never 255 because float32 ends before.
uint32_t CeilScale(uint32_t largest, int exponent, uint32_t mantissa) {
  const int above = (largest & 0x7FFFFF) > mantissa ? 1 : 0;
  return static_cast<uint32_t>(std::max(static_cast<int>(largest >> 23) - exponent + above, 0));
}

/// 1 / E8m0ToFloat(scale) for a scale of at most 253.
float InverseScale(uint32_t scale) { return std::bit_cast<float>((254 - scale) << 23); }

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 1023;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

void UnpackMxfp4Row(const uint8_t* codes, const uint8_t* scales, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
    out[i] = kE2m1Values[code] * E8m0ToFloat(scales[i / kMxfp4BlockSize]);
  }
}

void PackMxfp4Row(std::span<const float> row, uint8_t* codes, uint8_t* scales) {
  K3_CHECK(row.size() % kMxfp4BlockSize == 0, "MXFP4 rows are whole blocks of 32");
  constexpr float kMidpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  std::fill_n(codes, row.size() / 2, uint8_t{0});
  for (size_t block = 0; block < row.size() / kMxfp4BlockSize; ++block) {
    const std::span<const float> x = row.subspan(block * kMxfp4BlockSize, kMxfp4BlockSize);
    float largest = 0;
    for (float value : x) largest = std::max(largest, std::fabs(value));
    // ilogb is floor(log2); E2M1's largest exponent is 2.
    const int exponent = largest > 0 ? std::clamp(std::ilogb(largest) - 2, -127, 127) : -127;
    scales[block] = static_cast<uint8_t>(exponent + 127);
    for (size_t i = 0; i < x.size(); ++i) {
      const float magnitude = std::ldexp(std::fabs(x[i]), -exponent);
      const uint8_t code = static_cast<uint8_t>(
          std::upper_bound(std::begin(kMidpoints), std::end(kMidpoints), magnitude) -
          std::begin(kMidpoints));
      const uint8_t signed_code = static_cast<uint8_t>(code | (x[i] < 0 ? 8 : 0));
      const size_t at = block * kMxfp4BlockSize + i;
      codes[at / 2] =
          static_cast<uint8_t>(codes[at / 2] | (at % 2 == 0 ? signed_code : signed_code << 4));
    }
  }
}

void QuantizeMxfp4Row(std::span<const float> row, Mxfp4ScaleRule rule, uint8_t* codes,
                      uint8_t* scales) {
  K3_CHECK(row.size() % kMxfp4BlockSize == 0, "MXFP4 rows are whole blocks of 32");
  for (size_t block = 0; block < row.size() / kMxfp4BlockSize; ++block) {
    const float* x = row.data() + block * kMxfp4BlockSize;
    uint8_t* out = codes + block * kMxfp4BlockSize / 2;
    const uint32_t largest = LargestBits(x, kMxfp4BlockSize);
    if (largest == 0) {
      scales[block] = 127;
      std::fill_n(out, kMxfp4BlockSize / 2, uint8_t{0});
      continue;
    }
    // 6 is 1.5 x 2^2; the floor rule takes any mantissa.
    const uint32_t scale =
        CeilScale(largest, 2, rule == Mxfp4ScaleRule::kCeil ? 0x400000u : 0x7FFFFFu);
    const float inverse = InverseScale(scale);
    int32_t code[kMxfp4BlockSize];
    for (int64_t i = 0; i < kMxfp4BlockSize; ++i) {
      const float a = std::fabs(x[i]) * inverse;
      // How many midpoints lie below; one that is met belongs to the even code.
      const int32_t magnitude = int32_t{a > 0.25f} + int32_t{a >= 0.75f} + int32_t{a > 1.25f} +
                                int32_t{a >= 1.75f} + int32_t{a > 2.5f} + int32_t{a >= 3.5f} +
                                int32_t{a > 5.0f};
      const auto sign = static_cast<int32_t>(std::bit_cast<uint32_t>(x[i]) >> 31 << 3);
      code[i] = magnitude | sign;
    }
    for (int64_t i = 0; i < kMxfp4BlockSize / 2; ++i) {
      out[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
    }
    scales[block] = static_cast<uint8_t>(scale);
  }
}

void FakeQuantMxfp8Row(std::span<const float> x, float* y) {
  const int64_t count = std::ssize(x);
  for (int64_t begin = 0; begin < count; begin += kMxfp4BlockSize) {
    const int64_t n = std::min(kMxfp4BlockSize, count - begin);
    // 448 is 1.75 x 2^8.
    const uint32_t byte = CeilScale(LargestBits(x.data() + begin, n), 8, 0x600000u);
    const float inverse = InverseScale(byte);
    const float scale = E8m0ToFloat(static_cast<uint8_t>(byte));
    for (int64_t i = begin; i < begin + n; ++i) {
      const float a = std::fabs(x[i]) * inverse;
      // Three bits behind the leading one, 2^-9 below 2^-6. Adding 1.5 x 2^23 such steps leaves
      // no room for smaller digits, and the addition rounds to nearest, ties to even.
      const uint32_t exponent = std::max(std::bit_cast<uint32_t>(a) >> 23, 121u);
      const float shift = std::bit_cast<float>((exponent + 20) << 23 | 0x400000u);
      y[i] = std::copysign((a + shift - shift) * scale, x[i]);
    }
  }
}

}  // namespace k3
