#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace k3 {
namespace {

// Known answers of Philox4x32-10 from the Random123 distribution.
TEST(RandomTest, PhiloxKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomTest, SeekReplays) {
  Random a(7, 3);
  for (int i = 0; i < 13; ++i) a.NextUint32();
  Random b(7, 3);
  b.Seek(13);
  EXPECT_EQ(a.NextUint32(), b.NextUint32());
  Random other(7, 4);
  other.Seek(14);
  EXPECT_NE(a.NextUint32(), other.NextUint32());
}

TEST(RandomTest, NormalHasUnitMoments) {
  Random random(1, 0);
  double sum = 0, squares = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.NextNormal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);      // 6 standard errors of the mean
  EXPECT_NEAR(squares / kCount, 1, 0.03);  // 6 standard errors of the second moment
}

TEST(RandomTest, BelowStaysBelow) {
  Random random(2, 0);
  int counts[7] = {};
  for (int i = 0; i < 7000; ++i) ++counts[random.NextBelow(7)];
  for (int count : counts) EXPECT_NEAR(count, 1000, 200);
}

}  // namespace
}  // namespace k3
