#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/session.h"
#include "sys/file.h"

namespace k3 {
namespace {

const std::string& ModelDir() {
  static const std::string dir = std::string(K3_SOURCE_DIR) + "/models/kjv";
  return dir;
}

std::string ReadModelFile(const std::string& name) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const Result<std::string> text = ReadWholeFile(*files, ModelDir() + "/" + name, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : std::string();
}

class PerplexityTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Engine>> opened = Engine::Open(ModelDir(), {});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    engine_ = std::move(*opened);
    const Result<std::vector<int32_t>> ids =
        engine_->tokenizer().Encode(ReadModelFile("heldout.txt"));
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    ids_ = *ids;
  }

  std::span<const int32_t> Ids(size_t count) const { return std::span(ids_).first(count); }

  /// The loss of each window, one token at a time.
  std::vector<double> Plainly(std::span<const int32_t> ids, size_t context) {
    std::vector<double> losses;
    std::vector<float> logits(static_cast<size_t>(engine_->config().vocab_size));
    for (size_t start = 0; start + 1 < ids.size(); start += context) {
      const size_t end = std::min(start + context, ids.size());
      Session session(*engine_);
      double sum = 0;
      for (size_t i = start; i + 1 < end; ++i) {
        EXPECT_TRUE(session.Prefill(ids.subspan(i, 1), logits).ok());
        sum += NegativeLogLikelihood(logits, ids[i + 1]);
      }
      losses.push_back(sum / static_cast<double>(end - start - 1));
    }
    return losses;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
};

TEST(NegativeLogLikelihoodTest, IsMinusTheLogOfTheSoftmax) {
  const std::vector<float> flat(1000, 3.5f);
  EXPECT_NEAR(NegativeLogLikelihood(flat, 17), std::log(1000.0), 1e-12);
  const std::vector<float> two = {0.0f, std::log(3.0f)};
  EXPECT_NEAR(NegativeLogLikelihood(two, 0), std::log(4.0), 1e-7);
  EXPECT_NEAR(NegativeLogLikelihood(two, 1), std::log(4.0 / 3.0), 1e-7);
}

TEST(NegativeLogLikelihoodTest, LargeLogitsNeitherOverflowNorVanish) {
  const std::vector<float> large = {3e38f, 0.0f, -3e38f};
  EXPECT_EQ(NegativeLogLikelihood(large, 0), 0.0);
  EXPECT_NEAR(NegativeLogLikelihood(large, 1), 3e38, 1e32);
}

TEST(NegativeLogLikelihoodTest, WhatIsNoNumberStaysVisible) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(NegativeLogLikelihood(std::vector<float>{0.0f, nan}, 0)));
  EXPECT_TRUE(std::isnan(NegativeLogLikelihood(std::vector<float>{nan, 0.0f}, 1)));
  EXPECT_TRUE(std::isnan(NegativeLogLikelihood(std::vector<float>{0.0f, infinity}, 0)));
}

TEST_F(PerplexityTest, TheFirstWindowsAreThoseOfTheReference) {
  const nlohmann::json reference = nlohmann::json::parse(ReadModelFile("reference.json"));
  const Result<PerplexityResult> result = MeasurePerplexity(*engine_, Ids(1024), {});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_EQ(result->window_nats_per_token.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    // The oracle computes in float64 and the engine in float32: they agree to about 1e-6.
    EXPECT_NEAR(result->window_nats_per_token[i], reference["per_window"][i].get<double>(), 1e-5);
  }
  EXPECT_EQ(result->predictions_count, 1022);
  EXPECT_NEAR(result->perplexity(), std::exp(result->nats_sum / 1022), 1e-9);
}

TEST_F(PerplexityTest, WindowsStartAfreshAndAShortLastOneCounts) {
  PerplexityOptions options;
  options.context = 16;
  const Result<PerplexityResult> result = MeasurePerplexity(*engine_, Ids(40), options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->predictions_count, 15 + 15 + 7);
  EXPECT_EQ(result->window_nats_per_token, Plainly(Ids(40), 16));
}

TEST_F(PerplexityTest, ALastWindowOfOneTokenPredictsNothing) {
  PerplexityOptions options;
  options.context = 16;
  const Result<PerplexityResult> result = MeasurePerplexity(*engine_, Ids(33), options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->window_nats_per_token.size(), 2u);
  EXPECT_EQ(result->predictions_count, 30);
}

TEST_F(PerplexityTest, NoBitDependsOnTheChunk) {
  PerplexityOptions options;
  options.context = 48;
  const Result<PerplexityResult> whole = MeasurePerplexity(*engine_, Ids(100), options);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  for (const int64_t chunk : {1, 7, 16}) {
    options.prefill_chunk = chunk;
    const Result<PerplexityResult> cut = MeasurePerplexity(*engine_, Ids(100), options);
    ASSERT_TRUE(cut.ok()) << cut.status().ToString();
    EXPECT_EQ(cut->nats_sum, whole->nats_sum) << "chunk " << chunk;
  }
}

TEST_F(PerplexityTest, ProgressEndsAtTheTotal) {
  PerplexityOptions options;
  options.context = 16;
  options.prefill_chunk = 4;
  int64_t last = 0;
  int64_t announced = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    announced = total;
  };
  ASSERT_TRUE(MeasurePerplexity(*engine_, Ids(40), options).ok());
  EXPECT_EQ(last, announced);
  EXPECT_EQ(announced, 37);
}

TEST_F(PerplexityTest, BadRequestsAreRefused) {
  const auto refused = [&](std::span<const int32_t> ids, int64_t context) {
    PerplexityOptions options;
    options.context = context;
    const Result<PerplexityResult> result = MeasurePerplexity(*engine_, ids, options);
    return result.ok() ? StatusCode::kOk : result.status().code();
  };
  const std::vector<int32_t> outside = {1, 2048};
  EXPECT_EQ(refused(Ids(1), 512), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(Ids(0), 512), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(Ids(9), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(Ids(9), int64_t{1} << 40), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(outside, 512), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace k3
