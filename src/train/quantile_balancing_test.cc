#include "train/quantile_balancing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace k3::train {
namespace {

/// Scores of a router that prefers some experts.
std::vector<float> SkewedScores(int64_t tokens, int64_t experts, uint64_t seed) {
  Random preference(seed, 0);
  std::vector<float> favour(static_cast<size_t>(experts));
  for (float& value : favour) value = preference.NextNormal();
  Random random(seed, 1);
  std::vector<float> scores(static_cast<size_t>(tokens * experts));
  for (size_t i = 0; i < scores.size(); ++i) {
    const float logit = favour[i % favour.size()] + random.NextNormal();
    scores[i] = 1 / (1 + std::exp(-logit));
  }
  return scores;
}

std::vector<float> RandomBias(int64_t experts, uint64_t seed) {
  Random random(seed, 2);
  std::vector<float> bias(static_cast<size_t>(experts));
  for (float& value : bias) value = 0.2f * random.NextNormal();
  return bias;
}

/// What each token requires of an expert's bias, ascending.
std::vector<float> Required(std::span<const float> scores, std::span<const float> cutoffs,
                            size_t expert, size_t experts) {
  std::vector<float> required;
  for (size_t t = 0; t < cutoffs.size(); ++t) {
    required.push_back(cutoffs[t] - scores[t * experts + expert]);
  }
  std::ranges::sort(required);
  return required;
}

TEST(QuantileBalancingTest, RoutesToTheLargestSums) {
  const std::vector<float> scores = {0.5f, 0.9f, 0.5f, 0.1f, 0.2f, 0.2f, 0.2f, 0.2f};
  const std::vector<float> bias = {0.0f, -0.5f, 0.0f, 0.5f};
  const Routing routing = Route(scores, bias, 2);
  // 0.5, 0.4, 0.5, 0.6: the fourth, and the first of two equal ones. Then 0.2, -0.3, 0.2, 0.7.
  EXPECT_EQ(routing.chosen, (std::vector<int32_t>{0, 3, 0, 3}));
  EXPECT_FLOAT_EQ(routing.cutoffs[0], 0.5f);
  EXPECT_FLOAT_EQ(routing.cutoffs[1], 0.2f);
  EXPECT_EQ(CountLoads(routing.chosen, 4), (std::vector<int64_t>{2, 0, 0, 2}));
  EXPECT_DOUBLE_EQ(MaxViolation(CountLoads(routing.chosen, 4)), 1.0);
}

TEST(QuantileBalancingTest, TheExactBiasGivesEachExpertItsShareAtTheseCutoffs) {
  for (const auto& [tokens, experts, active] :
       {std::tuple{640, 32, 4}, std::tuple{333, 24, 5}, std::tuple{1, 8, 2}}) {
    const std::vector<float> scores = SkewedScores(tokens, experts, 3);
    const std::vector<float> bias = RandomBias(experts, 3);
    const std::vector<float> cutoffs = Route(scores, bias, active).cutoffs;
    const std::vector<float> solved = ExactQuantileBias(scores, cutoffs, bias, active);
    const int64_t share = int64_t{tokens} * active / experts;
    for (size_t j = 0; j < solved.size(); ++j) {
      const std::vector<float> required = Required(scores, cutoffs, j, bias.size());
      EXPECT_EQ(solved[j], required[static_cast<size_t>(share)]);
      // So many tokens choose the expert; more only where several require just the same.
      EXPECT_LE(std::ranges::lower_bound(required, solved[j]) - required.begin(), share);
      EXPECT_GT(std::ranges::upper_bound(required, solved[j]) - required.begin(), share);
    }
  }
}

TEST(QuantileBalancingTest, TheHistogramIsWithinOneBin) {
  for (const int64_t bins : {10, 200, 1000}) {
    for (const auto& [tokens, experts, active] :
         {std::tuple{640, 32, 4}, std::tuple{333, 24, 5}, std::tuple{7, 8, 2}}) {
      const std::vector<float> scores = SkewedScores(tokens, experts, 5);
      const std::vector<float> bias = RandomBias(experts, 5);
      QuantileHistogram histogram(bias, active, bins);
      histogram.Add(scores);
      const std::vector<float> solved = histogram.Solve();
      const std::vector<float> cutoffs = Route(scores, bias, active).cutoffs;
      const double share = static_cast<double>(tokens) * active / experts;
      const auto rank = static_cast<size_t>(std::ceil(share));
      for (size_t j = 0; j < solved.size(); ++j) {
        const std::vector<float> required = Required(scores, cutoffs, j, bias.size());
        EXPECT_NEAR(solved[j], required[rank - 1], histogram.bin_width() * 1.0001);
      }
    }
  }
}

TEST(QuantileBalancingTest, AnySplitCountsAlike) {
  const int64_t experts = 48;
  const std::vector<float> scores = SkewedScores(500, experts, 7);
  const std::vector<float> bias = RandomBias(experts, 7);
  QuantileHistogram whole(bias, 6);
  whole.Add(scores);
  for (const int64_t part : {1, 7, 100, 499}) {
    QuantileHistogram sum(bias, 6);
    for (int64_t at = 0; at < 500; at += part) {
      QuantileHistogram rank(bias, 6);
      const int64_t count = std::min<int64_t>(part, 500 - at);
      rank.Add(std::span(scores).subspan(static_cast<size_t>(at * experts),
                                         static_cast<size_t>(count * experts)));
      sum.Merge(rank);
    }
    EXPECT_TRUE(std::ranges::equal(sum.counts(), whole.counts()));
    EXPECT_EQ(sum.Solve(), whole.Solve());
  }
}

TEST(QuantileBalancingTest, EveryPairIsCountedOnce) {
  const std::vector<float> scores = SkewedScores(100, 16, 9);
  QuantileHistogram histogram(RandomBias(16, 9), 3, 50);
  histogram.Add(scores);
  for (int64_t j = 0; j < 16; ++j) {
    const auto counts = histogram.counts().subspan(static_cast<size_t>(j * 50), 50);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 100);
  }
  const QuantileHistogram empty(RandomBias(16, 9), 3);
  EXPECT_EQ(empty.Solve(), RandomBias(16, 9));
}

TEST(QuantileBalancingTest, BalancesWithinAFewSteps) {
  const int64_t experts = 64;
  std::vector<float> bias(64, 0.0f);
  std::vector<double> violations;
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<float> scores = SkewedScores(4096, experts, 1);
    // The same preferences, fresh tokens.
    Random random(step, 9);
    for (float& score : scores) score = std::clamp(score + 0.1f * random.NextNormal(), 0.0f, 1.0f);
    violations.push_back(MaxViolation(CountLoads(Route(scores, bias, 4).chosen, experts)));
    QuantileHistogram histogram(bias, 4);
    histogram.Add(scores);
    bias = Centred(histogram.Solve());
    EXPECT_NEAR(std::accumulate(bias.begin(), bias.end(), 0.0), 0, 1e-4);
  }
  EXPECT_GT(violations[0], 2.5);
  EXPECT_LT(violations[2], 0.6);
  EXPECT_LT(violations[4], 0.35);
}

TEST(QuantileBalancingTest, TheSignRuleMovesByItsStep) {
  const std::vector<int64_t> loads = {10, 0, 5};
  EXPECT_EQ(SignRuleBias(loads, std::vector<float>{1, 1, 1}, 0.25f),
            (std::vector<float>{0.75f, 1.25f, 1}));
}

}  // namespace
}  // namespace k3::train
