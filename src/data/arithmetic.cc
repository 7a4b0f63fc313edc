#include "data/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>

namespace k3::tasks {

std::string WorkOutSum(int64_t a, int64_t b) {
  std::string out;
  int64_t carry = 0;
  for (int64_t x = a, y = b; out.empty() || x > 0 || y > 0; x /= 10, y /= 10) {
    const int64_t sum = x % 10 + y % 10 + carry;
    out += fmt::format("{}{}+{}{}={}", out.empty() ? "" : ", ", x % 10, y % 10,
                       carry > 0 ? "+1" : "", sum);
    carry = sum / 10;
  }
  return fmt::format("{}. So {}.", out, a + b);
}

std::string WorkOutDifference(int64_t a, int64_t b) {
  const int64_t larger = std::max(a, b);
  const int64_t smaller = std::min(a, b);
  std::string out;
  int64_t borrow = 0;
  for (int64_t x = larger, y = smaller; out.empty() || x > 0; x /= 10, y /= 10) {
    const int64_t from = x % 10 - y % 10 - borrow < 0 ? x % 10 + 10 : x % 10;
    out += fmt::format("{}{}-{}{}={}", out.empty() ? "" : ", ", from, y % 10,
                       borrow > 0 ? "-1" : "", from - y % 10 - borrow);
    borrow = from >= 10 ? 1 : 0;
  }
  const std::string turned =
      a < b ? fmt::format("{} - {} turned round: ", larger, smaller) : std::string();
  return fmt::format("{}{}. So {}.", turned, out, a - b);
}

}  // namespace k3::tasks
