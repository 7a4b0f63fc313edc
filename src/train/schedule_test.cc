#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace k3::train {
namespace {

TEST(CosineScheduleTest, EndPointsAreExact) {
  for (const int64_t steps : {2, 3, 99, 100, 199, 200, 1000, 12345}) {
    const CosineSchedule schedule(3e-3f, 0.1f, steps);
    const int64_t warmup = schedule.warmup_steps();
    EXPECT_EQ(warmup, steps < 200 ? 1 : steps / 100);
    EXPECT_EQ(schedule.At(warmup - 1), 3e-3f) << steps;
    EXPECT_EQ(schedule.At(steps - 1), 3e-3f * 0.1f) << steps;
    EXPECT_EQ(schedule.At(steps), 3e-3f * 0.1f) << steps;
    EXPECT_EQ(schedule.At(10 * steps), 3e-3f * 0.1f) << steps;
  }
  EXPECT_EQ(CosineSchedule(3e-3f, 0.1f, 1).At(0), 3e-3f);
}

TEST(CosineScheduleTest, RisesInALineThenFalls) {
  const CosineSchedule schedule(1.0f, 0.25f, 1000);  // Ten steps of warm-up.
  for (int64_t n = 0; n < 10; ++n) {
    EXPECT_EQ(schedule.At(n), static_cast<float>(static_cast<double>(n + 1) / 10));
  }
  for (int64_t n = 10; n < 1000; ++n) EXPECT_LT(schedule.At(n), schedule.At(n - 1)) << n;
  // The middle of the 990 falling steps, and a third of them: cos(pi / 3) = 1 / 2.
  EXPECT_FLOAT_EQ(schedule.At(9 + 495), 0.625f);
  EXPECT_FLOAT_EQ(schedule.At(9 + 330), 0.25f + 0.75f * 0.75f);
}

TEST(CosineScheduleTest, AShareOfOneIsConstant) {
  const CosineSchedule schedule(0.02f, 1.0f, 50);
  for (int64_t n = 0; n < 60; ++n) EXPECT_EQ(schedule.At(n), 0.02f);
}

}  // namespace
}  // namespace k3::train
