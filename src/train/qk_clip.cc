#include "train/qk_clip.h"

#include <cmath>

#include "base/check.h"

namespace k3::train {
namespace {

void ScaleRows(std::span<float> matrix, int64_t first, int64_t rows, int64_t cols, float factor) {
  const auto begin = static_cast<size_t>(first * cols);
  for (float& value : matrix.subspan(begin, static_cast<size_t>(rows * cols))) value *= factor;
}

}  // namespace

int64_t QkClip(const QkClipShape& s, std::span<const float> largest_logits, float tau,
               std::span<float> q_b, std::span<float> kv_b) {
  K3_CHECK(tau > 0, "a threshold above zero");
  K3_CHECK(std::ssize(largest_logits) == s.heads, "a largest logit for each head");
  K3_CHECK(std::ssize(q_b) == s.heads * (s.nope + s.rope) * s.q_rank, "q_b has the layer's shape");
  K3_CHECK(std::ssize(kv_b) == s.heads * (s.nope + s.value) * s.kv_rank,
           "kv_b has the layer's shape");
  int64_t clipped = 0;
  for (int64_t head = 0; head < s.heads; ++head) {
    const float largest = largest_logits[static_cast<size_t>(head)];
    K3_CHECK(std::isfinite(largest), "logits are finite");
    if (largest <= tau) continue;
    ++clipped;
    const double gamma = static_cast<double>(tau) / largest;
    const auto half = static_cast<float>(std::sqrt(gamma));
    const int64_t q_first = head * (s.nope + s.rope);
    ScaleRows(q_b, q_first, s.nope, s.q_rank, half);
    ScaleRows(q_b, q_first + s.nope, s.rope, s.q_rank, static_cast<float>(gamma));
    ScaleRows(kv_b, head * (s.nope + s.value), s.nope, s.kv_rank, half);
  }
  return clipped;
}

}  // namespace k3::train
