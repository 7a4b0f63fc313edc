#include "tensor/number_formats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace k3 {

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

}  // namespace k3
