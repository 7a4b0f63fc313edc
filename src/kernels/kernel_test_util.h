#pragma once
// What the kernel tests share: the targets of this processor, and data with awkward values.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"

namespace k3::kernels {

inline std::vector<SimdTarget> SupportedTargets() {
  std::vector<SimdTarget> targets;
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    if (IsSupported(target)) targets.push_back(target);
  }
  return targets;
}

inline std::vector<float> RandomFloats(int64_t count, uint64_t stream, float gain = 1.0f) {
  Random random(17, stream);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.NextNormal() * gain;
  return values;
}

/// Equal to the last bit, signs of zero and NaNs included.
inline bool SameBits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace k3::kernels
