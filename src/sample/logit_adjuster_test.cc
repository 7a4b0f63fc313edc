// Biases, penalties and reported alternatives: the adjuster against a naive reference, and what the
// sampler makes of it.

#include "sample/logit_adjuster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "sample/sampler.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;
using Logits = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

/// What the options say, token by token over the whole vocabulary.
Logits AdjustNaively(const SamplingOptions& options, const Logits& raw, const Ids& prompt,
                     const Ids& generated) {
  Logits adjusted = raw;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == -kInfinity) continue;
    const auto id = static_cast<int32_t>(i);
    float& logit = adjusted[i];
    for (const LogitBias& entry : options.logit_bias) {
      if (entry.id == id) logit += entry.bias;
    }
    const auto count = std::ranges::count(generated, id);
    if (count > 0 || std::ranges::count(prompt, id) > 0) {
      if (logit > 0) {
        logit /= options.repetition_penalty;
      } else {
        logit *= options.repetition_penalty;
      }
    }
    logit -= options.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= options.presence_penalty;
  }
  return adjusted;
}

Logits RandomLogits(Random& random, size_t count) {
  Logits logits(count);
  for (float& logit : logits) {
    const uint64_t kind = random.NextBelow(10);
    logit = kind == 0 ? 0.0f : kind == 1 ? -0.0f : kind == 2 ? -kInfinity : 4 * random.NextNormal();
  }
  logits[random.NextBelow(count)] = 1.0f;  // Something can be drawn.
  return logits;
}

SamplingOptions RandomAdjustments(Random& random, size_t vocabulary) {
  SamplingOptions options;
  if (random.NextBelow(2)) options.repetition_penalty = 0.5f + random.NextFloat();
  if (random.NextBelow(2)) options.presence_penalty = 4 * random.NextFloat() - 2;
  if (random.NextBelow(2)) options.frequency_penalty = 4 * random.NextFloat() - 2;
  std::set<int32_t> biased;
  for (uint64_t i = random.NextBelow(5); i > 0; --i) {
    const auto id = static_cast<int32_t>(random.NextBelow(vocabulary));
    if (!biased.insert(id).second) continue;
    options.logit_bias.push_back({id, 200 * random.NextFloat() - 100});
  }
  return options;
}

Ids RandomIds(Random& random, size_t vocabulary, uint64_t count) {
  Ids ids;
  for (uint64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.NextBelow(vocabulary)));
  }
  return ids;
}

std::vector<double> LogSoftmax(const Logits& logits) {
  const double best = *std::ranges::max_element(logits);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - best);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - best - std::log(total));
  return result;
}

void ExpectSameBits(std::span<const float> found, std::span<const float> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i] + 0.0f), std::bit_cast<uint32_t>(expected[i] + 0.0f))
        << "id " << i << ": " << found[i] << " for " << expected[i];
  }
}

TEST(LogitAdjusterTest, AgreesWithTheNaiveReference) {
  Random random(11, 0);
  for (int round = 0; round < 300; ++round) {
    const size_t vocabulary = 1 + random.NextBelow(40);
    const SamplingOptions options = RandomAdjustments(random, vocabulary);
    ASSERT_TRUE(options.Validate().ok());
    ASSERT_TRUE(options.ValidateFor(static_cast<int64_t>(vocabulary)).ok());
    LogitAdjuster adjuster(options);
    Ids prompt;
    Ids generated;
    for (int step = 0; step < 3; ++step) {
      const Ids more = RandomIds(random, vocabulary, random.NextBelow(8));
      adjuster.See(more);
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
    for (int step = 0; step < 20; ++step) {
      const Logits logits = RandomLogits(random, vocabulary);
      ExpectSameBits(*adjuster.Adjust(logits), AdjustNaively(options, logits, prompt, generated));
      generated.push_back(static_cast<int32_t>(random.NextBelow(vocabulary)));
      adjuster.Count(generated.back());
    }
  }
}

TEST(LogitAdjusterTest, TakesTheOrderBiasRepetitionCounts) {
  LogitAdjuster adjuster({.repetition_penalty = 2.0f,
                          .presence_penalty = 0.5f,
                          .frequency_penalty = 0.25f,
                          .logit_bias = {{0, 3.0f}, {3, -1.0f}}});
  adjuster.See(Ids{0, 1});
  for (const int32_t id : {0, 0, 2}) adjuster.Count(id);
  // (1 + 3) / 2 - 2 * 0.25 - 0.5, -1 * 2, 6 / 2 - 0.25 - 0.5, 0 - 1 and an untouched one.
  ExpectSameBits(*adjuster.Adjust(Logits{1, -1, 6, 0, 7}), Logits{1, -2, 2.25f, -1, 7});
}

TEST(LogitAdjusterTest, ReturnsTheLogitsThemselvesWhenNothingIsAsked) {
  LogitAdjuster off({.temperature = 0.3f, .top_k = 4});
  off.See(Ids{1, 2, 2});
  off.Count(1);
  const Logits logits = {3, 2, 1};
  EXPECT_EQ(off.Adjust(logits)->data(), logits.data());
  // Counts are of the answer: a prompt alone changes nothing.
  LogitAdjuster counting({.presence_penalty = 1.0f});
  counting.See(Ids{0, 1});
  EXPECT_EQ(counting.Adjust(logits)->data(), logits.data());
  counting.Count(1);
  ExpectSameBits(*counting.Adjust(logits), Logits{3, 1, 1});
}

TEST(LogitAdjusterTest, KeepsMinusInfinityAndLeavesTheRestFinite) {
  LogitAdjuster strong({.repetition_penalty = 1e-30f, .logit_bias = {{0, 100.0f}, {1, 100.0f}}});
  strong.See(Ids{0, 1, 2, 3});
  ExpectSameBits(*strong.Adjust(Logits{-kInfinity, 1e30f, -1, 3e38f}),
                 Logits{-kInfinity, kMax, -1e-30f, kMax});
  LogitAdjuster weak({.repetition_penalty = 1e30f});
  weak.See(Ids{0, 1});
  ExpectSameBits(*weak.Adjust(Logits{-1e30f, -kInfinity}), Logits{-kMax, -kInfinity});
}

TEST(LogitAdjusterTest, RefusesTokensWithoutALogit) {
  LogitAdjuster biased({.logit_bias = {{3, 1.0f}}});
  EXPECT_EQ(biased.Adjust(Logits{1, 2, 3}).status().message(),
            "token 3 was seen or is biased, expected ids in [0, 3)");
  EXPECT_TRUE(biased.Adjust(Logits{1, 2, 3, 4}).ok());
  LogitAdjuster seen({.repetition_penalty = 2.0f});
  seen.See(Ids{0, 7});
  EXPECT_EQ(seen.Adjust(Logits{1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(SamplingOptionsTest, NamesWhatIsWrongWithAnAdjustment) {
  const auto message = [](const SamplingOptions& options) {
    EXPECT_EQ(options.Validate().code(), StatusCode::kInvalidArgument);
    return options.Validate().message();
  };
  const std::pair<float, const char*> bad[] = {
      {0.0f, "0"}, {-1.0f, "-1"}, {kInfinity, "inf"}, {kNaN, "nan"}};
  for (const auto& [penalty, name] : bad) {
    EXPECT_EQ(message({.repetition_penalty = penalty}),
              std::string("repetition_penalty is ") + name + ", expected a finite number above 0");
  }
  EXPECT_EQ(message({.presence_penalty = 2.5f}), "presence_penalty is 2.5, expected -2 to 2");
  EXPECT_EQ(message({.presence_penalty = kNaN}), "presence_penalty is nan, expected -2 to 2");
  EXPECT_EQ(message({.frequency_penalty = -3}), "frequency_penalty is -3, expected -2 to 2");
  EXPECT_EQ(message({.logit_bias = {{4, 100.5f}}}),
            "logit_bias of token 4 is 100.5, expected -100 to 100");
  EXPECT_EQ(message({.logit_bias = {{4, kNaN}}}),
            "logit_bias of token 4 is nan, expected -100 to 100");
  EXPECT_EQ(message({.logit_bias = {{-1, 0}}}), "logit_bias names token -1, expected an id from 0");
  EXPECT_EQ(message({.logit_bias = {{9, 1}, {4, 1}, {9, 2}}}),
            "logit_bias names token 9 more than once, expected one bias an id");
  EXPECT_EQ(message({.top_log_probs = 21}), "top_log_probs is 21, expected 0 to 20");
  EXPECT_EQ(message({.top_log_probs = -1}), "top_log_probs is -1, expected 0 to 20");
  const SamplingOptions extreme{.repetition_penalty = 1e-30f,
                                .presence_penalty = -2,
                                .frequency_penalty = 2,
                                .logit_bias = {{0, -100}, {5, 100}},
                                .top_log_probs = 20};
  EXPECT_TRUE(extreme.Validate().ok());
  EXPECT_EQ((SamplingOptions{.logit_bias = {{5, 1}}}.ValidateFor(5).message()),
            "logit_bias names token 5, expected an id in [0, 5)");
  EXPECT_TRUE((SamplingOptions{.logit_bias = {{4, 1}}}.ValidateFor(5).ok()));
}

// Greedy and drawn tokens of a sampler with adjustments are those of a plain one on the adjusted
// logits; log-probabilities stay those of the raw ones.
TEST(SamplerAdjustmentTest, DrawsFromTheAdjustedAndReportsTheRaw) {
  Random random(12, 0);
  for (int round = 0; round < 200; ++round) {
    const size_t vocabulary = 2 + random.NextBelow(60);
    SamplingOptions options = RandomAdjustments(random, vocabulary);
    options.temperature = round % 3 ? 0.5f + random.NextFloat() : static_cast<float>(round % 2);
    options.top_k = static_cast<int64_t>(random.NextBelow(3) * 5);
    options.top_p = random.NextBelow(2) ? 0.7f : 1.0f;
    options.min_p = random.NextBelow(2) ? 0.05f : 0.0f;
    options.seed = random.NextUint64();
    SamplingOptions plain = options;
    plain.repetition_penalty = 1.0f;
    plain.presence_penalty = plain.frequency_penalty = 0.0f;
    plain.logit_bias.clear();

    const Ids prompt = RandomIds(random, vocabulary, random.NextBelow(6));
    Sampler sampler(options);
    sampler.See(std::span(prompt).first(prompt.size() / 2));
    sampler.See(std::span(prompt).subspan(prompt.size() / 2));
    Sampler reference(plain);
    Ids generated;
    for (int step = 0; step < 25; ++step) {
      const Logits logits = RandomLogits(random, vocabulary);
      const SampledToken token = *sampler.Next(logits);
      ASSERT_EQ(token.id, reference.Next(AdjustNaively(options, logits, prompt, generated))->id);
      ASSERT_NEAR(token.log_prob, LogSoftmax(logits)[static_cast<size_t>(token.id)], 1e-6);
      generated.push_back(token.id);
    }
  }
}

TEST(SamplerAdjustmentTest, CountsWhatItDraws) {
  const Logits logits = {2.0f, 1.5f, 1.0f};
  Sampler presence({.temperature = 0, .presence_penalty = 0.75f});
  Sampler frequency({.temperature = 0, .frequency_penalty = 0.75f});
  Sampler repetition({.temperature = 0, .repetition_penalty = 1.6f});
  // The same prompt counts for the repetition penalty alone.
  for (Sampler* sampler : {&presence, &frequency, &repetition}) sampler->See(Ids{1, 1, 1});
  Ids by_presence;
  Ids by_frequency;
  Ids by_repetition;
  for (int i = 0; i < 5; ++i) {
    by_presence.push_back(presence.Next(logits)->id);
    by_frequency.push_back(frequency.Next(logits)->id);
    by_repetition.push_back(repetition.Next(logits)->id);
  }
  EXPECT_EQ(by_presence, (Ids{0, 1, 0, 0, 0}));
  EXPECT_EQ(by_frequency, (Ids{0, 1, 0, 2, 1}));
  EXPECT_EQ(by_repetition, (Ids{0, 0, 0, 0, 0}));  // 1.25, 0.94 and 1.0 from the second on
}

TEST(SamplerAdjustmentTest, AFailureCountsNothing) {
  Sampler sampler({.temperature = 0, .presence_penalty = 1.0f});
  EXPECT_FALSE(sampler.Next(Logits{kNaN, 0}).ok());
  EXPECT_EQ(sampler.Next(Logits{0, 0.5f})->id, 1);
  EXPECT_EQ(sampler.Next(Logits{kInfinity, 0}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(sampler.Next(Logits{1.0f}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler.Next(Logits{0, 0.5f})->id, 0);
  EXPECT_EQ(sampler.steps_count(), 2);
}

TEST(SamplerAdjustmentTest, ABiasForcesAndBansButNotTheUndrawable) {
  Sampler forced({.logit_bias = {{2, 100.0f}}});
  Sampler masked({.logit_bias = {{2, 100.0f}, {0, -100.0f}}});
  for (int i = 0; i < 50; ++i) {
    const SampledToken token = *forced.Next(Logits{3, 2, -4});
    EXPECT_EQ(token.id, 2);
    EXPECT_NEAR(token.log_prob, LogSoftmax({3, 2, -4})[2], 1e-6);
    EXPECT_EQ(masked.Next(Logits{3, 2, -kInfinity})->id, 1);
  }
}

TEST(SamplerAdjustmentTest, ATokenIsAFunctionOfSeedStepLogitsAndTokensSeen) {
  Random random(13, 0);
  const Logits logits = RandomLogits(random, 500);
  const SamplingOptions options{.repetition_penalty = 1.3f,
                                .presence_penalty = 0.4f,
                                .frequency_penalty = 0.2f,
                                .logit_bias = {{7, 5.0f}},
                                .seed = 42};
  Sampler first(options);
  Sampler second(options);
  first.See(Ids{4, 5, 4, 9});
  second.See(Ids{9});  // The same set in another order.
  second.See(Ids{5, 4});
  Ids ids(40);
  for (int32_t& id : ids) id = first.Next(logits)->id;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(second.Next(logits)->id, ids[static_cast<size_t>(i)]);
  Sampler copy = second;
  for (int i = 20; i < 40; ++i) {
    EXPECT_EQ(second.Next(logits)->id, ids[static_cast<size_t>(i)]);
    EXPECT_EQ(copy.Next(logits)->id, ids[static_cast<size_t>(i)]);
  }
}

Ids TopIds(const SampledToken& token) {
  Ids ids;
  std::ranges::transform(token.top, std::back_inserter(ids), &TokenLogProb::id);
  return ids;
}

TEST(SamplerAdjustmentTest, TheTopListIsOrderedAndOfTheRawLogits) {
  Sampler three({.temperature = 0, .logit_bias = {{4, 100.0f}}, .top_log_probs = 3});
  EXPECT_EQ(TopIds(*three.Next(Logits{1, 3, 3, 2, 0, 3})), (Ids{1, 2, 5}));
  EXPECT_EQ(TopIds(*three.Next(Logits{0, -0.0f, 0, 0, -1})), (Ids{0, 1, 2}));
  EXPECT_EQ(TopIds(*three.Next(Logits{1, -kInfinity, 2, -kInfinity, -kInfinity})), (Ids{2, 0}));
  Sampler twenty({.top_log_probs = 20});
  EXPECT_EQ(TopIds(*twenty.Next(Logits{1, 2})), (Ids{1, 0}));
  Sampler none({});
  EXPECT_TRUE(none.Next(Logits{1, 2})->top.empty());
}

TEST(SamplerAdjustmentTest, TheTopListAgreesWithSortingAndChangesNoDraw) {
  Random random(14, 0);
  for (int round = 0; round < 60; ++round) {
    Logits logits = RandomLogits(random, 1 + random.NextBelow(3000));
    for (float& logit : logits) {
      if (round % 2) logit = std::round(logit * 2) / 2;  // Many ties.
    }
    SamplingOptions options{.top_p = round % 4 ? 0.9f : 1.0f,
                            .repetition_penalty = 1.1f,
                            .top_log_probs = static_cast<int64_t>(1 + random.NextBelow(20)),
                            .seed = random.NextUint64()};
    Ids order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    std::erase_if(order, [&](int32_t id) { return logits[id] == -kInfinity; });
    order.resize(std::min(order.size(), static_cast<size_t>(options.top_log_probs)));
    const std::vector<double> expected = LogSoftmax(logits);

    Sampler sampler(options);
    options.top_log_probs = 0;
    Sampler plain(options);
    for (int step = 0; step < 5; ++step) {
      const SampledToken token = *sampler.Next(logits);
      const SampledToken other = *plain.Next(logits);
      ASSERT_EQ(token.id, other.id);
      ASSERT_EQ(std::bit_cast<uint32_t>(token.log_prob), std::bit_cast<uint32_t>(other.log_prob));
      ASSERT_EQ(TopIds(token), order);
      for (const TokenLogProb& entry : token.top) {
        ASSERT_NEAR(entry.log_prob, expected[static_cast<size_t>(entry.id)], 1e-6);
        if (entry.id == token.id) {
          ASSERT_EQ(entry.log_prob, token.log_prob);
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3
