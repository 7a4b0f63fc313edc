#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace k3::train {

CosineSchedule::CosineSchedule(float peak, float min_share, int64_t steps)
    : peak_(peak),
      least_(peak * min_share),
      steps_(steps),
      warmup_(std::max<int64_t>(1, steps / 100)) {
  K3_CHECK(peak > 0 && min_share >= 0 && min_share <= 1, "a falling schedule");
  K3_CHECK(steps >= 1, "a schedule of some steps");
}

float CosineSchedule::At(int64_t n) const {
  K3_CHECK(n >= 0, "steps count from 0");
  if (n < warmup_) {
    const double part = static_cast<double>(n + 1) / static_cast<double>(warmup_);
    return static_cast<float>(peak_ * part);
  }
  if (n >= steps_ - 1) return least_;
  const double part = static_cast<double>(n - warmup_ + 1) / static_cast<double>(steps_ - warmup_);
  const double height = 0.5 * (1 + std::cos(std::numbers::pi * part));
  return static_cast<float>(least_ + (static_cast<double>(peak_) - least_) * height);
}

}  // namespace k3::train
