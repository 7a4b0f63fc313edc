#pragma once
// The learning rate over a run: linear warm-up over 1 % of the steps, then a cosine down to a fixed
// share of the peak.
//
//   const CosineSchedule schedule(2e-3f, 0.1f, 5000);
//   for (int64_t n = 0; n < 5000; ++n) { const float lr = schedule.At(n); ... }
//
// With W = max(1, N / 100) steps of warm-up, step n (from 0) has peak (n + 1) / W up to n = W - 1,
// which has exactly the peak; step N - 1 has exactly peak * min_share, and so has every later one.
// A value: any thread, nothing owned. Source: technical report, section 3.3; the warm-up's rounding
// and the inclusive end points are ours. A wrong argument is a broken invariant (K3_CHECK).

#include <cstdint>

namespace k3::train {

class CosineSchedule {
 public:
  /// peak > 0, 0 <= min_share <= 1, steps >= 1.
  CosineSchedule(float peak, float min_share, int64_t steps);

  /// The rate of step n >= 0.
  float At(int64_t n) const;

  int64_t warmup_steps() const { return warmup_; }

 private:
  float peak_;
  float least_;
  int64_t steps_;
  int64_t warmup_;
};

}  // namespace k3::train
