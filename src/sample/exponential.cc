#include "sample/exponential.h"

#include "base/check.h"

namespace k3 {

double ExpDifferences(std::span<const float> x, float x_max, double scale, std::span<double> out) {
  K3_CHECK(x.size() == out.size(), "one result for each input");
  // Blocks of constant length let the compiler use vectors; the last one is element by element.
  constexpr size_t kBlock = 16;
  const double offset = x_max;
  size_t i = 0;
  for (; i + kBlock <= x.size(); i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) {
      out[i + j] = ExpNonPositive((static_cast<double>(x[i + j]) - offset) * scale);
    }
  }
  for (; i < x.size(); ++i) out[i] = ExpNonPositive((static_cast<double>(x[i]) - offset) * scale);
  double sum = 0.0;
  for (const double value : out) sum += value;
  return sum;
}

}  // namespace k3
