#include "train/balance_simulation.h"

#include <gtest/gtest.h>

namespace k3::train {
namespace {

std::vector<BalanceCurve> Simulate(const BalanceSimulationOptions& options, int threads = 2) {
  ThreadPool pool(threads);
  Result<std::vector<BalanceCurve>> curves = SimulateBalancing(options, pool);
  EXPECT_TRUE(curves.ok()) << curves.status().ToString();
  return std::move(*curves);
}

TEST(BalanceSimulationTest, QuantilesBalanceInAFewStepsAndSignsDoNot) {
  const std::vector<BalanceCurve> curves =
      Simulate({.experts = 128, .active = 8, .tokens = 2048, .steps = 5});
  ASSERT_EQ(curves.size(), 6u);
  EXPECT_EQ(curves[0].method, "none");
  EXPECT_EQ(curves[1].method, "sign_0.001");
  EXPECT_EQ(curves[4].method, "qb_exact");
  EXPECT_EQ(curves[5].method, "qb_histogram");
  for (const BalanceCurve& curve : curves) {
    ASSERT_EQ(curve.max_violation.size(), 5u);
    // Before the first update all are the same router.
    EXPECT_EQ(curve.max_violation[0], curves[0].max_violation[0]);
    EXPECT_GT(curve.max_violation[0], 4);
  }
  EXPECT_GT(curves[0].max_violation[4], 4);
  EXPECT_GT(curves[1].max_violation[4], 4);
  for (const size_t quantile : {4, 5}) {
    EXPECT_LT(curves[quantile].max_violation[2], 0.6);
    EXPECT_LT(curves[quantile].max_violation[4], 0.4);
    EXPECT_EQ(curves[quantile].dead_experts[4], 0);
  }
  EXPECT_GT(curves[0].dead_experts[4], 0);
}

TEST(BalanceSimulationTest, DependsOnTheSeedAndNotOnThreads) {
  const BalanceSimulationOptions options{
      .experts = 32, .active = 4, .tokens = 300, .steps = 3, .seed = 5};
  const std::vector<BalanceCurve> two = Simulate(options);
  const std::vector<BalanceCurve> three = Simulate(options, 3);
  const std::vector<BalanceCurve> other =
      Simulate({.experts = 32, .active = 4, .tokens = 300, .steps = 3, .seed = 6});
  for (size_t m = 0; m < two.size(); ++m) {
    EXPECT_EQ(two[m].max_violation, three[m].max_violation);
    EXPECT_NE(two[m].max_violation, other[m].max_violation);
  }
}

TEST(BalanceSimulationTest, RefusesWhatCannotBe) {
  ThreadPool pool(1);
  const auto message = [&](const BalanceSimulationOptions& options) {
    return SimulateBalancing(options, pool).status().ToString();
  };
  EXPECT_EQ(message({.experts = 1}), "InvalidArgument: experts: expected 2 to 65536, found 1");
  EXPECT_EQ(message({.experts = 8, .active = 8}),
            "InvalidArgument: active: expected 1 to 7, found 8");
  EXPECT_EQ(message({.active = 0}), "InvalidArgument: active: expected 1 to 895, found 0");
  EXPECT_NE(message({.tokens = 0}).find("tokens: expected 1 to"), std::string::npos);
  EXPECT_NE(message({.steps = 0}).find("steps: expected 1 to"), std::string::npos);
  EXPECT_NE(message({.experts = 65536, .tokens = 1 << 20}).find("tokens x experts: expected at"),
            std::string::npos);
}

}  // namespace
}  // namespace k3::train
