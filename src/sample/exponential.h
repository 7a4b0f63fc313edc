#pragma once
// The exponentials of sampling, in additions and multiplications only, so that probabilities are
// the same bits on every machine and with every C library. Pure, any thread.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace k3 {

struct ExpConstants {
  // At the least argument n is -1023: the exponent field of 2^n is then 0, and so is the result.
  static constexpr double kLeast = -709.2;
  // x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^52 rounds to an integer in the low bits.
  static constexpr double kRound = 6755399441055744.0;
  static constexpr double kLog2E = 1.4426950408889634074;
  // ln 2 in two parts: the first ends in enough zero bits that n times it is exact.
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  // Taylor from r^12 down to 1: the next term is below 2e-16.
  static constexpr std::array<double, 13> kTaylor = {1.0 / 479001600,
                                                     1.0 / 39916800,
                                                     1.0 / 3628800,
                                                     1.0 / 362880,
                                                     1.0 / 40320,
                                                     1.0 / 5040,
                                                     1.0 / 720,
                                                     1.0 / 120,
                                                     1.0 / 24,
                                                     1.0 / 6,
                                                     0.5,
                                                     1.0,
                                                     1.0};
};

/// exp(x) for x <= 0 to within 2e-15 relative; exactly 1 at 0, exactly 0 below -709.
inline double ExpNonPositive(double x) {
  using E = ExpConstants;
  const double inside = x < E::kLeast ? E::kLeast : x;
  const double shifted = inside * E::kLog2E + E::kRound;
  const double n = shifted - E::kRound;
  const double r = (inside - n * E::kLn2High) - n * E::kLn2Low;
  double p = E::kTaylor[0];
  for (size_t term = 1; term < E::kTaylor.size(); ++term) p = p * r + E::kTaylor[term];
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return p * std::bit_cast<double>(power);
}

}  // namespace k3
