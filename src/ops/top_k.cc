#include "ops/top_k.h"

#include <algorithm>

#include "base/check.h"

namespace k3::ops {

void TopK(std::span<const float> scores, std::span<int32_t> top) {
  K3_CHECK(top.size() <= scores.size(), "more experts chosen than there are");
  if (top.empty()) return;
  // Worse than: a smaller score, or the same score at a higher index.
  const auto worse = [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    if (x < y || (x != x && y == y)) return true;
    if (y < x || (y != y && x == x)) return false;
    return a > b;
  };
  // A heap of the best so far, the worst of them on top.
  const auto better = [&](int32_t a, int32_t b) { return worse(b, a); };
  size_t count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const int32_t index = static_cast<int32_t>(i);
    if (count < top.size()) {
      top[count++] = index;
      std::push_heap(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(count), better);
    } else if (worse(top.front(), index)) {
      std::pop_heap(top.begin(), top.end(), better);
      top.back() = index;
      std::push_heap(top.begin(), top.end(), better);
    }
  }
  std::sort(top.begin(), top.end());
}

}  // namespace k3::ops
