#pragma once
// The k largest of a row of scores, ties to the lower index. No allocation, any thread.

#include <cstdint>
#include <span>

namespace k3::ops {

/// Writes the indices of the `top.size()` largest scores into `top`, in ascending index order.
/// top.size() <= scores.size(). NaN counts as smaller than everything.
void TopK(std::span<const float> scores, std::span<int32_t> top);

}  // namespace k3::ops
