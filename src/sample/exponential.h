#pragma once
// The exponentials of sampling, in additions and multiplications only, so that probabilities are
// the same bits on every machine and with every C library. Pure, any thread.

#include <bit>
#include <cstdint>
#include <span>

namespace k3 {

/// exp(x) for x <= 0 to within 2e-15 relative; exactly 1 at 0, exactly 0 below -709.
inline double ExpNonPositive(double x) {
  // At the least argument n is -1023: the exponent field of 2^n is then 0, and so is the result.
  constexpr double kLeast = -709.2;
  // x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^52 rounds to an integer in the low bits.
  constexpr double kRound = 6755399441055744.0;
  constexpr double kLog2E = 1.4426950408889634074;
  // ln 2 in two parts: the first ends in enough zero bits that n times it is exact.
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const double inside = x < kLeast ? kLeast : x;
  const double shifted = inside * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (inside - n * kLn2High) - n * kLn2Low;
  // Taylor up to r^12: the next term is below 2e-16.
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return p * std::bit_cast<double>(power);
}

/// out[i] = exp((x[i] - x_max) * scale) for x [n], out [n], scale >= 0 and no x above x_max;
/// -infinity gives 0. Returns the sum in order of i.
double ExpDifferences(std::span<const float> x, float x_max, double scale, std::span<double> out);

}  // namespace k3
