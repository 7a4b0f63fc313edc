#include "engine/pass_planner.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"

namespace k3 {
namespace {

constexpr PassBudget kUnknownSpeed{.chunk_tokens_max = 512};

TEST(PassPlanner, OnePromptTakesAWholeChunk) {
  const PrefillDemand demand{.tokens = 10'000, .request_class = RequestClass::kLong};
  EXPECT_EQ(PlanPrefill({&demand, 1}, 0, kUnknownSpeed), (std::vector<int64_t>{512}));
}

TEST(PassPlanner, ShortPromptsComeBeforeLongOnesButDoNotStarveThem) {
  const std::vector<PrefillDemand> demands = {
      {.tokens = 30'000, .request_class = RequestClass::kLong},
      {.tokens = 4'000, .request_class = RequestClass::kShort}};
  EXPECT_EQ(PlanPrefill(demands, 0, kUnknownSpeed), (std::vector<int64_t>{128, 384}));
}

TEST(PassPlanner, WhatAClassLeavesGoesToTheOther) {
  const std::vector<PrefillDemand> few_short = {
      {.tokens = 30'000, .request_class = RequestClass::kLong},
      {.tokens = 12, .request_class = RequestClass::kShort}};
  EXPECT_EQ(PlanPrefill(few_short, 0, kUnknownSpeed), (std::vector<int64_t>{500, 12}));
  const std::vector<PrefillDemand> few_long = {
      {.tokens = 10, .request_class = RequestClass::kLong},
      {.tokens = 4'000, .request_class = RequestClass::kShort}};
  EXPECT_EQ(PlanPrefill(few_long, 0, kUnknownSpeed), (std::vector<int64_t>{10, 502}));
}

TEST(PassPlanner, InAClassWhoeverWaitedLongestComesFirst) {
  const std::vector<PrefillDemand> demands = {
      {.tokens = 600, .request_class = RequestClass::kShort, .last_served = 7},
      {.tokens = 600, .request_class = RequestClass::kShort, .last_served = 3}};
  EXPECT_EQ(PlanPrefill(demands, 0, kUnknownSpeed), (std::vector<int64_t>{0, 512}));
}

TEST(PassPlanner, BackgroundWaitsForEverybodyElse) {
  const std::vector<PrefillDemand> demands = {
      {.tokens = 600, .request_class = RequestClass::kBackground},
      {.tokens = 5, .request_class = RequestClass::kShort}};
  EXPECT_EQ(PlanPrefill(demands, 0, kUnknownSpeed), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(PlanPrefill(std::span(demands).first(1), 0, kUnknownSpeed),
            (std::vector<int64_t>{512}));
}

TEST(PassPlanner, WhileSomebodyDecodesAPassStaysShort) {
  const PassBudget budget{
      .chunk_tokens_max = 512, .pass_seconds_max = 0.1, .prefill_tokens_per_second = 1000};
  EXPECT_EQ(PrefillBudget(1, budget), 100);
  EXPECT_EQ(PrefillBudget(0, budget), 512);
  PassBudget slow = budget;
  slow.prefill_tokens_per_second = 3;
  EXPECT_EQ(PrefillBudget(1, slow), kBudgetTokensMin);
  PassBudget fast = budget;
  fast.prefill_tokens_per_second = 1e6;
  EXPECT_EQ(PrefillBudget(1, fast), 512);
}

// Whatever the demands: never beyond the budget or a demand, never idle while there is work, and
// everybody but the background gets there in the end.
TEST(PassPlanner, RandomDemandsAreServedWithinTheBudgetAndAllFinish) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, 0);
    std::vector<PrefillDemand> demands(1 + random.NextBelow(12));
    for (PrefillDemand& demand : demands) {
      demand.tokens = 1 + static_cast<int64_t>(random.NextBelow(3000));
      demand.request_class = static_cast<RequestClass>(random.NextBelow(3));
    }
    const int64_t total = std::accumulate(
        demands.begin(), demands.end(), int64_t{0},
        [](int64_t sum, const PrefillDemand& demand) { return sum + demand.tokens; });
    int64_t served = 0;
    for (uint64_t pass = 1; served < total; ++pass) {
      ASSERT_LT(pass, 10'000u) << "seed " << seed;
      const std::vector<int64_t> plan = PlanPrefill(demands, 0, kUnknownSpeed);
      int64_t tokens = 0;
      for (size_t i = 0; i < plan.size(); ++i) {
        ASSERT_GE(plan[i], 0);
        ASSERT_LE(plan[i], demands[i].tokens);
        if (plan[i] > 0) demands[i].last_served = pass;
        demands[i].tokens -= plan[i];
        tokens += plan[i];
      }
      ASSERT_GT(tokens, 0) << "seed " << seed;
      ASSERT_LE(tokens, 512) << "seed " << seed;
      served += tokens;
    }
  }
}

}  // namespace
}  // namespace k3
