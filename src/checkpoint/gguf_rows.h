#pragma once
// Rows of numbers in the block formats of GGUF. Pure, any thread.
// Source: the block layouts of the ggml project (Q8_0 and MXFP4).

#include <cstddef>
#include <cstdint>
#include <span>

namespace k3 {

/// Nearest IEEE half, ties to even; beyond its range infinity, NaN stays NaN.
uint16_t FloatToHalf(float value);

/// Q8_0: for 32 values a half d = max|x| / 127 and the signed bytes round(x / d), where x / d is
/// taken before d is rounded to half. `row` is finite, its count a multiple of 32; `out` holds 34
/// bytes for each 32 values.
void PackQ8Row(std::span<const float> row, std::byte* out);

/// MXFP4 codes and scales as compressed-tensors stores a row (tensor/number_formats.h) in ggml's
/// order: the scale byte, then bytes j with element j in the low nibble and j + 16 in the high.
/// Codes and scales do not change. `count` is a multiple of 32; `out` holds 17 bytes for each 32.
void RepackMxfp4Row(const uint8_t* codes, const uint8_t* scales, int64_t count, std::byte* out);

}  // namespace k3
