#include "sample/vector_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/random.h"
#include "sample/exponential.h"
#include "sample/sampler.h"
#include "sample/token_constraint.h"

namespace k3 {
namespace {

using Logits = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// With many equals, both zeros and some -infinity: below 0 and anywhere in front of the best.
Logits MixedLogits(int64_t count, uint64_t seed) {
  Random random(seed, 0);
  Logits logits(static_cast<size_t>(count));
  for (float& logit : logits) {
    logit = 3.0f * random.NextNormal();
    if (random.NextBelow(2) == 0) logit = std::round(logit);
    if (random.NextBelow(8) == 0) logit = -kInfinity;
  }
  logits[random.NextBelow(logits.size())] = 1.5f;
  return logits;
}

// Around the borders of vectors, of groups of them and of blocks.
std::vector<int64_t> Counts() {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= 130; ++count) counts.push_back(count);
  for (const int64_t count : {255, 256, 257, 1023, 1024, 1025, 4103}) counts.push_back(count);
  return counts;
}

TEST(VectorPassesTest, ExponentialsAndTheirSumsAreThoseOfAPlainLoopToTheBit) {
  for (const VectorPasses& passes : VectorPassesTargets()) {
    for (const int64_t count : Counts()) {
      const Logits x = MixedLogits(count, 1);
      const float x_max = *std::ranges::max_element(x);
      for (const double scale : {1.0, 1.0 / 0.7f, 1e-30, 1e30}) {
        std::vector<double> weights(x.size());
        std::vector<double> sums(static_cast<size_t>(SumBlocksCount(count)));
        const double total = passes.exp_differences(x, x_max, scale, weights.data(), sums.data());
        double sum = 0.0;
        for (size_t i = 0; i < x.size(); ++i) {
          if (i % kSumBlock == 0) {
            ASSERT_EQ(sums[i / kSumBlock], sum) << i << " of " << count;
          }
          const double weight = ExpNonPositive((static_cast<double>(x[i]) - x_max) * scale);
          ASSERT_EQ(std::bit_cast<uint64_t>(weights[i]), std::bit_cast<uint64_t>(weight))
              << i << " of " << count;
          sum += weight;
        }
        ASSERT_EQ(total, sum) << count;
      }
    }
  }
}

TEST(VectorPassesTest, TheGreatestIsFoundAndNothingBadIsMissed) {
  for (const VectorPasses& passes : VectorPassesTargets()) {
    for (const int64_t count : Counts()) {
      Logits x = MixedLogits(count, 2);
      ASSERT_EQ(passes.greatest(x), *std::ranges::max_element(x)) << count;
      const std::vector<size_t> places = {0, x.size() / 2, x.size() - 1};
      for (const size_t place : places) {
        for (const float bad : {kNaN, -kNaN, kInfinity}) {
          Logits broken = x;
          broken[place] = bad;
          ASSERT_EQ(passes.greatest(broken), kInfinity) << place << " of " << count;
        }
      }
      std::ranges::fill(x, -kInfinity);
      ASSERT_EQ(passes.greatest(x), -kInfinity) << count;
    }
  }
}

TEST(VectorPassesTest, KeysAreListedAndKeptInOrder) {
  for (const VectorPasses& passes : VectorPassesTargets()) {
    for (const int64_t count : Counts()) {
      const Logits x = MixedLogits(count, 3);
      std::vector<double> weights(x.size());
      for (size_t i = 0; i < x.size(); ++i) weights[i] = std::exp(std::min(x[i], 0.0f));
      std::vector<uint64_t> expected;
      for (int64_t i = 0; i < count; ++i) {
        if (weights[i] >= 0.1) expected.push_back(OrderKey(x[i], i));
      }
      std::vector<uint64_t> keys(x.size());
      keys.resize(static_cast<size_t>(passes.list_heavy(x, weights.data(), 0.1, keys.data())));
      ASSERT_EQ(keys, expected) << count;

      const auto [least, greatest] = std::ranges::minmax(keys);
      ASSERT_EQ(passes.min_max(keys), std::pair(least, greatest)) << count;
      for (const int shift : {0, 30, 50}) {
        const uint64_t bucket = (keys[keys.size() / 2] - least) >> shift;
        std::vector<uint64_t> kept = keys;
        kept.resize(static_cast<size_t>(passes.keep_bucket(kept, least, shift, bucket)));
        std::vector<uint64_t> left = keys;
        std::erase_if(left,
                      [&, from = least](uint64_t k) { return (k - from) >> shift != bucket; });
        ASSERT_EQ(kept, left) << count << ", shift " << shift;
      }
    }
  }
}

TEST(VectorPassesTest, WeightsBelowEitherBoundBecomeZero) {
  for (const VectorPasses& passes : VectorPassesTargets()) {
    for (const int64_t count : Counts()) {
      const Logits x = MixedLogits(count, 4);
      for (const auto& [least, least_weight] :
           {std::pair(-kInfinity, 0.0), {1.0f, 0.0}, {-kInfinity, 0.3}, {0.0f, 2.0}, {9e9f, 0.0}}) {
        std::vector<double> weights(x.size());
        for (size_t i = 0; i < x.size(); ++i) weights[i] = std::exp(std::min(x[i], 0.0f));
        std::vector<double> expected = weights;
        bool any = false;
        for (size_t i = 0; i < x.size(); ++i) {
          const bool kept = x[i] >= least && weights[i] >= least_weight;
          if (!kept) expected[i] = 0.0;
          any |= kept;
        }
        ASSERT_EQ(passes.zero_below(x, least, least_weight, weights.data()), any) << count;
        ASSERT_EQ(weights, expected) << count;
      }
    }
  }
}

// Next() in plain loops, for up to 512 logits and not for top-k with top-p together: there the
// order in which the sampler adds is that of the selection.
SampledToken PlainNext(const SamplingOptions& options, uint64_t step, const Logits& raw,
                       const std::vector<uint32_t>& mask) {
  const auto best_of = [](const Logits& x) { return std::ranges::max_element(x) - x.begin(); };
  Logits logits = raw;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (!mask.empty() && (mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = -kInfinity;
  }
  const auto weights_of = [](const Logits& x, float max, double scale) {
    std::vector<double> weights;
    for (const float v : x) weights.push_back(ExpNonPositive((double{v} - max) * scale));
    return weights;
  };
  const auto sum_of = [](const std::vector<double>& weights) {
    double sum = 0.0;
    for (const double weight : weights) sum += weight;
    return sum;
  };
  const float raw_max = raw[best_of(raw)];
  const double log_total = std::log(sum_of(weights_of(raw, raw_max, 1.0)));
  int64_t drawn = best_of(logits);
  if (!options.greedy()) {
    std::vector<double> weights = weights_of(logits, logits[drawn], 1.0 / options.temperature);
    std::vector<int64_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::ranges::sort(order, {}, [&](int64_t id) { return OrderKey(logits[id], id); });
    size_t kept = order.size();
    if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
    if (options.top_p < 1.0f) {
      const double target = options.top_p * sum_of(weights);
      double sum = 0.0;
      for (kept = 0; kept < order.size() && sum < target; ++kept) sum += weights[order[kept]];
    }
    for (size_t i = kept; i < order.size(); ++i) weights[order[i]] = 0.0;
    for (double& weight : weights) weight = weight < options.min_p ? 0.0 : weight;
    const double target = Random(options.seed, step).NextDouble() * sum_of(weights);
    double sum = 0.0;
    for (drawn = 0; sum + weights[drawn] <= target; ++drawn) sum += weights[drawn];
  }
  return {.id = static_cast<int32_t>(drawn),
          .log_prob = static_cast<float>(double{raw[drawn]} - raw_max - log_total)};
}

TEST(VectorPassesTest, DrawsAreThoseOfPlainLoops) {
  const std::vector<SamplingOptions> cases = {{.temperature = 0.0f},
                                              {},
                                              {.temperature = 0.7f},
                                              {.top_p = 0.9f},
                                              {.temperature = 2.0f, .top_p = 0.99f},
                                              {.min_p = 0.05f},
                                              {.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.01f},
                                              {.top_k = 20},
                                              {.temperature = 3.0f, .top_k = 64, .min_p = 0.1f}};
  for (const int64_t count :
       {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 300, 511, 512}) {
    Random random(5, static_cast<uint64_t>(count));
    std::vector<uint32_t> mask(MaskWordsCount(count));
    for (SamplingOptions options : cases) {
      options.seed = random.NextUint64();
      for (const bool masked : {false, true}) {
        Sampler sampler(options);
        for (uint64_t step = 0; step < 20; ++step) {
          const Logits logits = MixedLogits(count, random.NextUint64());
          for (uint32_t& word : mask) word = random.NextUint32();
          const auto best = std::ranges::max_element(logits) - logits.begin();
          mask[best / 32] |= 1u << (best % 32);
          const SampledToken expected =
              PlainNext(options, step, logits, masked ? mask : std::vector<uint32_t>());
          const Result<SampledToken> token =
              masked ? sampler.Next(logits, mask) : sampler.Next(logits);
          ASSERT_TRUE(token.ok()) << token.status().message();
          ASSERT_EQ(token->id, expected.id) << count << " logits, step " << step;
          ASSERT_EQ(token->log_prob, expected.log_prob) << count << " logits, step " << step;
        }
      }
    }
  }
}

TEST(VectorPassesTest, TheBestAndTheFirstBadLogitAreFoundInAnyBlock) {
  Sampler greedy({.temperature = 0.0f});
  const int64_t count = 3000;
  for (const int64_t place : {0, 15, 16, 63, 64, 1023, 1024, 1025, 2047, 2048, 2999}) {
    // All others cannot be drawn, or are worse; equals behind it do not count.
    for (const float other : {-kInfinity, -1.0f}) {
      Logits logits(count, other);
      logits[place] = -0.0f;
      EXPECT_EQ(greedy.Next(logits)->id, place);
      for (int64_t i = place + 1; i < count; i += 500) logits[i] = 0.0f;
      EXPECT_EQ(greedy.Next(logits)->id, place);
      // A bad one is named though a better one stands before it, and only the first is.
      logits[count - 1] = kInfinity;
      logits[place] = kNaN;
      EXPECT_TRUE(greedy.Next(logits).status().message().starts_with(
          "logit " + std::to_string(place) + " of 3000 is nan"));
      logits[place] = 5.0f;
      if (place == count - 1) continue;
      EXPECT_TRUE(greedy.Next(logits).status().message().starts_with("logit 2999 of 3000 is inf"));
    }
  }
  EXPECT_EQ(greedy.Next(Logits(count, -kInfinity)).status().message(),
            "all 3000 logits are -infinity: no token can be drawn");
}

}  // namespace
}  // namespace k3
