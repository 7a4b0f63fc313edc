#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
#include "sample/exponential.h"

namespace k3 {
namespace {

using Logits = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int64_t> CountDraws(const SamplingOptions& options, const Logits& logits,
                                int64_t draws) {
  Sampler sampler(options);
  std::vector<int64_t> counts(logits.size(), 0);
  for (int64_t i = 0; i < draws; ++i) {
    const Result<SampledToken> token = sampler.Next(logits);
    EXPECT_TRUE(token.ok());
    ++counts[static_cast<size_t>(token->id)];
  }
  return counts;
}

// The ids that are ever drawn.
std::set<int64_t> Drawn(const SamplingOptions& options, const Logits& logits,
                        int64_t draws = 3000) {
  const std::vector<int64_t> counts = CountDraws(options, logits, draws);
  std::set<int64_t> ids;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) ids.insert(static_cast<int64_t>(i));
  }
  return ids;
}

Logits LogsOf(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

double ChiSquare(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto draws = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double sum = 0.0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (probabilities[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    const double expected = draws * probabilities[i];
    sum += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
  }
  return sum;
}

Logits RandomLogits(int64_t count, float spread, uint64_t seed) {
  Random random(seed, 0);
  Logits logits(static_cast<size_t>(count));
  for (float& logit : logits) logit = spread * random.NextNormal();
  return logits;
}

using Ids = std::set<int64_t>;

TEST(ExponentialTest, IsWithinItsBound) {
  EXPECT_EQ(ExpNonPositive(0.0), 1.0);
  EXPECT_EQ(ExpNonPositive(-709.0), 0.0);
  EXPECT_EQ(ExpNonPositive(-std::numeric_limits<double>::infinity()), 0.0);
  for (double x = 0.0; x > -708.0; x -= 0.00317) {
    const double exact = std::exp(x);
    ASSERT_NEAR(ExpNonPositive(x) / exact, 1.0, 2e-15) << x;
  }
}

TEST(SamplingOptionsTest, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(SamplingOptions{}.Validate().ok());
  const auto message = [](const SamplingOptions& options) {
    EXPECT_EQ(options.Validate().code(), StatusCode::kInvalidArgument);
    return options.Validate().message();
  };
  EXPECT_EQ(message({.temperature = -0.5f}),
            "temperature is -0.5, expected a finite number from 0");
  EXPECT_EQ(message({.temperature = kInfinity}),
            "temperature is inf, expected a finite number from 0");
  EXPECT_EQ(message({.temperature = kNaN}), "temperature is nan, expected a finite number from 0");
  EXPECT_EQ(message({.top_k = -1}), "top_k is -1, expected 0 (all tokens) or more");
  EXPECT_EQ(message({.top_p = 0.0f}), "top_p is 0, expected more than 0 and at most 1");
  EXPECT_EQ(message({.top_p = 1.5f}), "top_p is 1.5, expected more than 0 and at most 1");
  EXPECT_EQ(message({.top_p = kNaN}), "top_p is nan, expected more than 0 and at most 1");
  EXPECT_EQ(message({.min_p = -0.1f}), "min_p is -0.1, expected 0 to 1");
  EXPECT_EQ(message({.min_p = 1.1f}), "min_p is 1.1, expected 0 to 1");
}

TEST(SamplerTest, GreedyTakesTheBestAndTheLowerIdOfATie) {
  Sampler sampler({.temperature = 0.0f, .top_k = 3, .top_p = 0.1f});
  EXPECT_EQ(sampler.Next(Logits{1, 3, 2})->id, 1);
  EXPECT_EQ(sampler.Next(Logits{5, 7, 7, 6, 7})->id, 1);
  EXPECT_EQ(sampler.Next(Logits{-0.0f, 0.0f})->id, 0);
  EXPECT_EQ(sampler.Next(Logits{-kInfinity, -1e30f})->id, 1);
  EXPECT_EQ(sampler.steps_count(), 4);
}

TEST(SamplerTest, LogProbIsOfTheRawLogits) {
  const Logits logits = {1.0f, 2.0f, -3.0f, 0.5f};
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  Sampler greedy({.temperature = 0.0f});
  EXPECT_FLOAT_EQ(greedy.Next(logits)->log_prob, static_cast<float>(2.0 - std::log(total)));
  Sampler filtered({.temperature = 0.3f, .top_k = 2, .top_p = 0.9f, .min_p = 0.01f});
  for (int i = 0; i < 50; ++i) {
    const SampledToken token = *filtered.Next(logits);
    const double expected = logits[static_cast<size_t>(token.id)] - std::log(total);
    EXPECT_FLOAT_EQ(token.log_prob, static_cast<float>(expected));
  }
  // One token, and logits whose exponentials would overflow.
  EXPECT_EQ(greedy.Next(Logits{-7.0f})->log_prob, 0.0f);
  EXPECT_EQ(greedy.Next(Logits{3e38f, -3e38f})->log_prob, 0.0f);
  EXPECT_FLOAT_EQ(greedy.Next(Logits{1e30f, 1e30f})->log_prob, -std::log(2.0f));
}

// With 9 degrees of freedom chi-square is above 27.9 once in a thousand seeds; the seeds are fixed.
TEST(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<double> p = {0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.04, 0.03, 0.02, 0.01};
  EXPECT_LT(ChiSquare(CountDraws({.seed = 1}, LogsOf(p), 100'000), p), 27.9);

  std::vector<double> sharp(p.size());
  double total = 0.0;
  for (const double value : p) total += value * value;
  for (size_t i = 0; i < p.size(); ++i) sharp[i] = p[i] * p[i] / total;
  EXPECT_LT(ChiSquare(CountDraws({.temperature = 0.5f, .seed = 2}, LogsOf(p), 100'000), sharp),
            27.9);

  std::vector<double> top4 = {0.4, 0.2 / 0.75, 0.2, 0.1 / 0.75, 0, 0, 0, 0, 0, 0};
  EXPECT_LT(ChiSquare(CountDraws({.top_k = 4, .seed = 3}, LogsOf(p), 100'000), top4), 27.9);
  // 0.3 + 0.2 + 0.15 is below 0.7: the fourth token crosses it.
  EXPECT_LT(ChiSquare(CountDraws({.top_p = 0.7f, .seed = 4}, LogsOf(p), 100'000), top4), 27.9);
  // 0.33 * 0.3 is just below 0.1.
  EXPECT_LT(ChiSquare(CountDraws({.min_p = 0.33f, .seed = 5}, LogsOf(p), 100'000), top4), 27.9);
}

TEST(SamplerTest, TopKKeepsExactlyK) {
  const Logits ties = {1, 2, 2, 2, 0, 2};
  EXPECT_EQ(Drawn({.top_k = 1}, ties), (Ids{1}));
  EXPECT_EQ(Drawn({.top_k = 3}, ties), (Ids{1, 2, 3}));
  EXPECT_EQ(Drawn({.top_k = 5}, ties), (Ids{0, 1, 2, 3, 5}));
  EXPECT_EQ(Drawn({.top_k = 6}, ties).size(), 6u);
  EXPECT_EQ(Drawn({.top_k = INT64_MAX}, ties).size(), 6u);
}

TEST(SamplerTest, TopPKeepsTheTokenThatCrosses) {
  // Weights 1, 1/2, 1/4, 1/4: exact sums, so that the edges are exact as well.
  const float ln2 = std::log(2.0f);
  const Logits flat(8, 0.0f);
  EXPECT_EQ(Drawn({.top_p = 0.5f}, flat), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(Drawn({.top_p = 0.51f}, flat), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(Drawn({.top_p = 1e-6f}, flat), (Ids{0}));
  EXPECT_EQ(Drawn({.top_p = 0.999f}, flat).size(), 8u);
  const Logits halves = {-2 * ln2, 0, -ln2, -2 * ln2};
  EXPECT_EQ(Drawn({.top_p = 0.49f}, halves), (Ids{1}));
  EXPECT_EQ(Drawn({.top_p = 0.51f}, halves), (Ids{1, 2}));
  EXPECT_EQ(Drawn({.top_p = 0.76f}, halves), (Ids{0, 1, 2}));
  EXPECT_EQ(Drawn({.top_p = 0.9f}, halves), (Ids{0, 1, 2, 3}));
  // After top-k the rest is renormalised: of {1, 1/2} the first alone has 2/3.
  EXPECT_EQ(Drawn({.top_k = 2, .top_p = 0.6f}, halves), (Ids{1}));
  EXPECT_EQ(Drawn({.top_k = 2, .top_p = 0.7f}, halves), (Ids{1, 2}));
  // At temperature 1/2 the weights are 1, 1/4, 1/16, 1/16.
  EXPECT_EQ(Drawn({.temperature = 0.5f, .top_p = 0.7f}, halves), (Ids{1}));
}

TEST(SamplerTest, MinPKeepsTheBestAndItsEquals) {
  const Logits logits = {0, 1, 1, -5};
  EXPECT_EQ(Drawn({.min_p = 1.0f}, logits), (Ids{1, 2}));
  EXPECT_EQ(Drawn({.min_p = 0.36f}, logits), (Ids{0, 1, 2}));
  EXPECT_EQ(Drawn({.min_p = 0.37f}, logits), (Ids{1, 2}));
  EXPECT_EQ(Drawn({.top_k = 1, .min_p = 1.0f}, logits), (Ids{1}));
}

TEST(SamplerTest, NeverDrawsMinusInfinity) {
  const Logits masked = {-kInfinity, 0, -kInfinity, 0, -kInfinity};
  EXPECT_EQ(Drawn({}, masked), (Ids{1, 3}));
  EXPECT_EQ(Drawn({.top_k = 4}, masked), (Ids{1, 3}));
  EXPECT_EQ(Drawn({.top_p = 0.9999f}, masked), (Ids{1, 3}));
}

TEST(SamplerTest, ExtremeTemperatures) {
  const Logits logits = {1, 1.0001f, -50};
  EXPECT_EQ(Drawn({.temperature = 1e-45f}, logits), (Ids{1}));
  EXPECT_EQ(Drawn({.temperature = 3e38f}, logits), (Ids{0, 1, 2}));
}

// The filters by sorting everything, against the selection that the sampler uses.
TEST(SamplerTest, FiltersAgreeWithSorting) {
  Random random(77, 0);
  for (int round = 0; round < 60; ++round) {
    const auto count = static_cast<int64_t>(1 + random.NextBelow(6000));
    Logits logits = RandomLogits(count, 0.5f + 3.0f * random.NextFloat(), 100 + round);
    for (float& logit : logits) {
      if (round % 2) logit = std::round(logit * 4) / 4;  // Many ties.
    }
    SamplingOptions options{
        .temperature = 0.5f + random.NextFloat(),
        .top_k = static_cast<int64_t>(random.NextBelow(3) * 700),
        .top_p = random.NextBelow(3) ? 0.05f + 0.94f * random.NextFloat() : 1.0f,
        .min_p = random.NextBelow(2) ? 0.02f * random.NextFloat() : 0.0f,
        .seed = random.NextUint64()};
    std::vector<int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    if (options.top_k > 0 && options.top_k < count) order.resize(options.top_k);
    const auto weight = [&](int64_t id) {
      return std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / options.temperature);
    };
    double total = 0.0;
    for (const int64_t id : order) total += weight(id);
    double sum = 0.0;
    size_t kept = 0;
    while (kept < order.size() && (options.top_p == 1.0f || sum < options.top_p * total)) {
      sum += weight(order[kept++]);
    }
    while (weight(order[kept - 1]) < options.min_p) --kept;
    order.resize(kept);
    const Ids allowed(order.begin(), order.end());

    Sampler sampler(options);
    Ids drawn;
    for (int i = 0; i < 200; ++i) drawn.insert(sampler.Next(logits)->id);
    for (const int64_t id : drawn) ASSERT_TRUE(allowed.contains(id)) << "round " << round;
  }
}

// Selection over many tokens by their bits: all magnitudes, both signs, equals and the undrawable.
TEST(SamplerTest, TopKKeepsExactlyKOfAnySpread) {
  constexpr int64_t kKept = 1100;
  for (const int kind : {0, 1}) {
    Random random(78, static_cast<uint64_t>(kind));
    Logits logits(2600);
    for (float& logit : logits) {
      const int exponent = static_cast<int>(random.NextBelow(250)) - 125;
      const float magnitude = std::ldexp(1.0f + random.NextFloat(), exponent);
      logit = kind == 0 ? 1.0f : random.NextBelow(2) ? magnitude : -magnitude;
      if (kind == 1 && random.NextBelow(2)) logit = -kInfinity;
    }
    std::vector<int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    order.resize(kKept);
    // Hot enough that every kept token is as good as any other.
    EXPECT_EQ(Ids(order.begin(), order.end()),
              Drawn({.temperature = 3e38f, .top_k = kKept}, logits, 12 * kKept));
  }
}

TEST(SamplerTest, ATokenIsAFunctionOfSeedStepAndLogits) {
  const Logits logits = RandomLogits(1000, 1.0f, 4);
  const SamplingOptions options{.seed = 42};
  Sampler sampler(options);
  std::vector<int32_t> ids(30);
  for (int32_t& id : ids) id = sampler.Next(logits)->id;
  // Whatever the other steps saw, step 20 is the same; a failed call is no step.
  Sampler other(options);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(other.Next(Logits{0, 1, 2}).ok());
  EXPECT_FALSE(other.Next(Logits{kNaN}).ok());
  Sampler copy = other;
  EXPECT_EQ(other.Next(logits)->id, ids[20]);
  EXPECT_EQ(copy.Next(logits)->id, ids[20]);
  // Filters that keep everything change nothing.
  Sampler filtered({.top_k = 1000, .top_p = 1.0f, .min_p = 1e-30f, .seed = 42});
  for (const int32_t id : ids) EXPECT_EQ(filtered.Next(logits)->id, id);
  Sampler reseeded({.seed = 43});
  std::vector<int32_t> others(30);
  for (int32_t& id : others) id = reseeded.Next(logits)->id;
  EXPECT_NE(others, ids);
}

TEST(SamplerTest, RefusesBrokenLogits) {
  Sampler sampler({});
  EXPECT_EQ(sampler.Next({}).status().code(), StatusCode::kInvalidArgument);
  const Status nan = sampler.Next(Logits{1, 2, kNaN}).status();
  EXPECT_EQ(nan.code(), StatusCode::kInternal);
  EXPECT_EQ(nan.message(),
            "logit 2 of 3 is nan, expected a number below infinity: the weights or a kernel are "
            "broken");
  EXPECT_EQ(sampler.Next(Logits{kNaN, 1}).status().code(), StatusCode::kInternal);
  EXPECT_TRUE(sampler.Next(Logits{kInfinity, 1}).status().message().starts_with("logit 0 of 2"));
  EXPECT_EQ(sampler.Next(Logits{-kInfinity, -kInfinity}).status().message(),
            "all 2 logits are -infinity: no token can be drawn");
  Sampler greedy({.temperature = 0.0f});
  EXPECT_FALSE(greedy.Next(Logits{1, kNaN}).ok());
  EXPECT_EQ(sampler.steps_count(), 0);
}

TEST(SamplerTest, AMaskLeavesOutWhatItDoesNotAllow) {
  const Logits logits = LogsOf({0.5, 0.25, 0.125, 0.125});
  const std::vector<uint32_t> mask = {0b1110};
  Sampler greedy({.temperature = 0.0f, .top_log_probs = 2});
  const Result<SampledToken> best = greedy.Next(logits, mask);
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best->id, 1);
  // Log-probabilities stay those of the raw logits; one rounding to float each.
  EXPECT_NEAR(best->log_prob, std::log(0.25), 1e-6);
  ASSERT_EQ(best->top.size(), 2u);
  EXPECT_EQ(best->top[0].id, 0);
  EXPECT_NEAR(best->top[0].log_prob, std::log(0.5), 1e-6);

  for (const SamplingOptions& options :
       std::vector<SamplingOptions>{{},
                                    {.temperature = 0.7f},
                                    {.top_p = 0.99f},
                                    {.min_p = 0.01f},
                                    {.repetition_penalty = 1.2f, .logit_bias = {{0, 50.0f}}}}) {
    Sampler sampler(options);
    Ids drawn;
    for (int i = 0; i < 500; ++i) {
      const Result<SampledToken> token = sampler.Next(logits, mask);
      ASSERT_TRUE(token.ok());
      drawn.insert(token->id);
    }
    EXPECT_EQ(drawn, (Ids{1, 2, 3}));
  }
  // Top-k is of what the mask leaves.
  Sampler two({.top_k = 2});
  Ids drawn;
  for (int i = 0; i < 500; ++i) drawn.insert(two.Next(logits, mask)->id);
  EXPECT_EQ(drawn, (Ids{1, 2}));
}

TEST(SamplerTest, AMaskOfEverythingChangesNothing) {
  const Logits logits = RandomLogits(100, 3.0f, 12);
  const std::vector<uint32_t> all(4, ~0u);
  for (const SamplingOptions& options :
       std::vector<SamplingOptions>{{}, {.temperature = 0.6f, .top_k = 5}, {.top_p = 0.9f}}) {
    Sampler plain(options);
    Sampler masked(options);
    for (int i = 0; i < 100; ++i) {
      const SampledToken a = *plain.Next(logits);
      const SampledToken b = *masked.Next(logits, all);
      EXPECT_EQ(a.id, b.id);
      EXPECT_EQ(a.log_prob, b.log_prob);
    }
  }
}

TEST(SamplerTest, RefusesMasksThatLeaveNothing) {
  Sampler sampler({});
  const std::vector<uint32_t> first = {1};
  EXPECT_EQ(sampler.Next(Logits{-kInfinity, 1}, first).status().message(),
            "the grammar's mask leaves no token that can be drawn: all it allows have a logit of "
            "-infinity");
  EXPECT_EQ(sampler.Next(Logits{-kInfinity, 1}, first).status().code(), StatusCode::kInternal);
  const std::vector<uint32_t> two = {1, 1};
  EXPECT_EQ(sampler.Next(Logits{0, 1}, two).status().message(),
            "a mask of 2 words for 2 logits, expected 1");
  EXPECT_EQ(sampler.steps_count(), 0);
  EXPECT_EQ(sampler.Next(Logits{0, 1}, first)->id, 0);
}

// Prints the time a token at the release's vocabulary; the bound only catches a full sort that has
// become quadratic, not a busy machine.
TEST(SamplerTest, PrintsTimeATokenAtFullVocabulary) {
  constexpr int64_t kVocabulary = 163'840;
  // Peaked as a trained model's logits are, and as flat as random weights give.
  const Logits peaked = RandomLogits(kVocabulary, 3.0f, 8);
  const Logits flat = RandomLogits(kVocabulary, 0.02f, 9);
  const std::pair<const char*, SamplingOptions> cases[] = {
      {"greedy", {.temperature = 0.0f}},
      {"plain", {}},
      {"temperature", {.temperature = 0.6f}},
      {"top-k 50", {.temperature = 0.6f, .top_k = 50}},
      {"top-k 50, top-p", {.temperature = 0.6f, .top_k = 50, .top_p = 0.95f}},
      {"top-k 20000", {.temperature = 0.6f, .top_k = 20'000}},
      {"top-p 0.95", {.temperature = 0.6f, .top_p = 0.95f}},
      {"min-p", {.temperature = 0.6f, .min_p = 0.05f}},
      {"penalties", {.repetition_penalty = 1.1f, .presence_penalty = 0.5f}},
      {"top 20 reported", {.top_log_probs = 20}},
  };
  std::vector<int32_t> prompt(100'000);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (const auto& [name, options] : cases) {
    for (const Logits* logits : {&peaked, &flat}) {
      Sampler sampler(options);
      sampler.See(prompt);
      double best = 1e9;
      for (int i = 0; i < 10; ++i) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(sampler.Next(*logits).ok());
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        best = std::min(best, took.count());
      }
      EXPECT_LT(best, 0.5) << name;
      std::printf("%-16s %s: %.2f ms\n", name, logits == &peaked ? "peaked" : "flat  ", best * 1e3);
    }
  }
}

}  // namespace
}  // namespace k3
