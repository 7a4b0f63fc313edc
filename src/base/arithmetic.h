#pragma once
// Overflow-checked size arithmetic for numbers that come from files, and small rounding helpers.

#include <cstdint>

namespace k3 {

/// *product = a * b; false, with *product untouched, when it does not fit.
[[nodiscard]] inline bool CheckedMultiply(int64_t a, int64_t b, int64_t* product) {
  int64_t value = 0;
  if (__builtin_mul_overflow(a, b, &value)) return false;
  *product = value;
  return true;
}

/// *sum = a + b; false, with *sum untouched, when it does not fit.
[[nodiscard]] inline bool CheckedAdd(int64_t a, int64_t b, int64_t* sum) {
  int64_t value = 0;
  if (__builtin_add_overflow(a, b, &value)) return false;
  *sum = value;
  return true;
}

/// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The smallest multiple of b that is at least a, for a >= 0, b > 0.
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDivide(a, b) * b; }

}  // namespace k3
