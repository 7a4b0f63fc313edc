#pragma once
// Bit-exact scalar codecs of the stored number formats: bfloat16, IEEE half and MXFP4 (OCP
// Microscaling Formats 1.0: E2M1 elements, one E8M0 scale for 32 consecutive elements of a row).
// MXFP4 as compressed-tensors packs it: element 2i in the low nibble of byte i, 2i+1 in the high.
// The vector kernels are tested against these.

#include <bit>
#include <cstdint>
#include <span>

namespace k3 {

inline float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// Nearest bfloat16, ties to even. NaN stays NaN (quiet).
inline uint16_t FloatToBf16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

float HalfToFloat(uint16_t bits);

inline constexpr int64_t kMxfp4BlockSize = 32;
/// The E8M0 scale byte that means NaN; a checkpoint holding it is refused.
inline constexpr uint8_t kE8m0Nan = 255;

/// Value of a 4-bit E2M1 code: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives from 8 on (8 is -0).
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// 2^(scale - 127); 0 gives the subnormal 2^-127. `scale` is not 255.
inline float E8m0ToFloat(uint8_t scale) {
  return std::bit_cast<float>(scale == 0 ? uint32_t{0x00400000} : uint32_t{scale} << 23);
}

/// Unpacks one row. codes [count / 2], scales [count / 32], out [count]; count a multiple of 32.
/// Every product is exact in float32 unless it is below 2^-127 x 0.5.
void UnpackMxfp4Row(const uint8_t* codes, const uint8_t* scales, std::span<float> out);

/// Packs one row to the nearest code under the scale floor(log2(max)) - 2, halfway values to the
/// larger magnitude. `row` [count], codes [count / 2], scales [count / 32].
void PackMxfp4Row(std::span<const float> row, uint8_t* codes, uint8_t* scales);

/// How training chooses the scale of a block whose largest magnitude is amax.
enum class Mxfp4ScaleRule : uint8_t {
  kFloor,  // 2^(floor(log2 amax) - 2): amax / scale in [4, 8), what is above 6 is clipped
  kCeil,   // the smallest power of two with amax / scale <= 6: nothing is clipped
};

/// Packs one row to the nearest code, ties to the code whose last bit is 0. Scales are limited to
/// 2^-127 .. 2^127; a block of zeros has codes 0 and the scale 1. `row` [count] finite, count a
/// multiple of 32, codes [count / 2], scales [count / 32].
void QuantizeMxfp4Row(std::span<const float> row, Mxfp4ScaleRule rule, uint8_t* codes,
                      uint8_t* scales);

/// What a row is after a round trip through MXFP8: E4M3 elements (largest 448), one E8M0 scale for
/// 32 of them, the smallest power of two with amax / scale <= 448; nearest, ties to even. x [count]
/// finite, y [count] may be x; the last block may be short.
void FakeQuantMxfp8Row(std::span<const float> x, float* y);

}  // namespace k3
