#include "checkpoint/gguf_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/number_formats.h"

namespace k3 {
namespace {

constexpr int64_t kBlock = 32;

}  // namespace

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  // 65520 is halfway between the largest half and the next power of two.
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) {
    // Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets float32, whose last bit there is
    // worth 2^-24, do the rounding.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xFFF + odd) >> 13));
}

void PackQ8Row(std::span<const float> row, std::byte* out) {
  for (size_t start = 0; start < row.size(); start += kBlock) {
    const std::span<const float> block = row.subspan(start, kBlock);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    const float step = largest / 127.0f;
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    const uint16_t half = FloatToHalf(step);
    std::memcpy(out, &half, sizeof(half));
    out += sizeof(half);
    for (const float value : block) {
      // A step below the smallest normal number has an infinite inverse; limits keep that defined.
      const float scaled = std::clamp(std::round(value * inverse), -127.0f, 127.0f);
      *out++ = static_cast<std::byte>(static_cast<int8_t>(std::isnan(scaled) ? 0.0f : scaled));
    }
  }
}

void RepackMxfp4Row(const uint8_t* codes, const uint8_t* scales, int64_t count, std::byte* out) {
  for (int64_t block = 0; block < count / kBlock; ++block) {
    *out++ = static_cast<std::byte>(scales[block]);
    for (int64_t j = 0; j < kBlock / 2; j += 2) {
      // Byte j / 2 holds the elements j and j + 1, the byte 8 further on j + 16 and j + 17.
      const uint8_t first = codes[j / 2];
      const uint8_t second = codes[j / 2 + kBlock / 4];
      *out++ = static_cast<std::byte>((first & 15) | (second & 15) << 4);
      *out++ = static_cast<std::byte>(first >> 4 | (second >> 4) << 4);
    }
    codes += kBlock / 2;
  }
}

}  // namespace k3
