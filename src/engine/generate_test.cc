#include "engine/generate.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "sys/file.h"

namespace k3 {
namespace {

constexpr int64_t kReferenceTokens = 40;

/// Keeps what it sees and cancels after a number of tokens or of prompt chunks.
class Recorder : public TokenSink {
 public:
  bool OnPrefillProgress(int64_t done, int64_t total) override {
    progress.emplace_back(done, total);
    return std::ssize(progress) < chunks_max;
  }
  bool OnToken(const SampledToken& token) override {
    ids.push_back(token.id);
    log_probs.push_back(token.log_prob);
    return std::ssize(ids) < tokens_max;
  }

  int64_t chunks_max = std::numeric_limits<int64_t>::max();
  int64_t tokens_max = std::numeric_limits<int64_t>::max();
  std::vector<std::pair<int64_t, int64_t>> progress;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

class GenerateTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = std::string(K3_SOURCE_DIR) + "/models/kjv";
    Result<std::unique_ptr<Engine>> opened = Engine::Open(dir, {});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    engine_ = std::move(*opened);
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    const Result<std::string> text = ReadWholeFile(*files, dir + "/reference.json", 1 << 20);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    const nlohmann::json reference = nlohmann::json::parse(*text);
    prompt_ = reference["prompt_ids"].get<std::vector<int32_t>>();
    greedy_ = reference["greedy_40"].get<std::vector<int32_t>>();
  }

  static GenerateOptions Greedy(int64_t max_tokens) {
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = max_tokens;
    return options;
  }

  void ExpectRefused(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                     const std::string& words) {
    Session session(*engine_);
    Recorder sink;
    const Result<GenerateResult> result = Generate(session, prompt, options, sink);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(words), std::string::npos)
        << result.status().message();
    EXPECT_EQ(session.length(), 0);
    EXPECT_TRUE(sink.ids.empty());
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> greedy_;
};

TEST_F(GenerateTest, GreedyTokensAreThoseOfTheReference) {
  Session session(*engine_);
  Recorder sink;
  const Result<GenerateResult> result = Generate(session, prompt_, Greedy(kReferenceTokens), sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(sink.ids, greedy_);
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(result->prompt_tokens, std::ssize(prompt_));
  EXPECT_EQ(result->generated_tokens, kReferenceTokens);
  for (const float log_prob : sink.log_probs) EXPECT_LE(log_prob, 0);
}

TEST_F(GenerateTest, TheLastTokenNeedsNoPass) {
  Session session(*engine_);
  Recorder sink;
  const Result<GenerateResult> result = Generate(session, prompt_, Greedy(3), sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(session.length(), std::ssize(prompt_) + 2);
  EXPECT_EQ(result->decode_passes, 2);
}

TEST_F(GenerateTest, AStopIdEndsTheRunAndIsNotPassedOn) {
  GenerateOptions options = Greedy(kReferenceTokens);
  options.stop_ids = {2047, greedy_[2]};
  Session session(*engine_);
  Recorder sink;
  const Result<GenerateResult> result = Generate(session, prompt_, options, sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(result->stop_id, greedy_[2]);
  EXPECT_EQ(sink.ids, std::vector<int32_t>(greedy_.begin(), greedy_.begin() + 2));
}

TEST_F(GenerateTest, TheSinkMayCancelAtAToken) {
  Session session(*engine_);
  Recorder sink;
  sink.tokens_max = 2;
  const Result<GenerateResult> result = Generate(session, prompt_, Greedy(10), sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(sink.ids.size(), 2u);
}

TEST_F(GenerateTest, TheSinkSeesTheChunksOfThePromptAndMayCancelBetweenThem) {
  GenerateOptions options = Greedy(1);
  options.prefill_chunk = 3;
  Recorder whole;
  Session first(*engine_);
  ASSERT_TRUE(Generate(first, prompt_, options, whole).ok());
  EXPECT_EQ(whole.progress, (std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {4, 4}}));

  Recorder cancelling;
  cancelling.chunks_max = 1;
  Session second(*engine_);
  const Result<GenerateResult> result = Generate(second, prompt_, options, cancelling);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(cancelling.ids.empty());
  EXPECT_EQ(second.length(), 3);
}

TEST_F(GenerateTest, DrawsDependOnTheSeedAndNotOnTheChunk) {
  std::vector<Recorder> runs(4);
  const int64_t chunks[] = {1, 3, 512, 512};
  for (size_t i = 0; i < runs.size(); ++i) {
    GenerateOptions options;
    options.sampling.seed = i == 3 ? 8 : 7;
    options.max_tokens = 12;
    options.prefill_chunk = chunks[i];
    Session session(*engine_);
    ASSERT_TRUE(Generate(session, prompt_, options, runs[i]).ok());
  }
  EXPECT_EQ(runs[0].ids, runs[1].ids);
  EXPECT_EQ(runs[0].ids, runs[2].ids);
  EXPECT_EQ(runs[0].log_probs, runs[1].log_probs);
  EXPECT_EQ(runs[0].log_probs, runs[2].log_probs);
  EXPECT_NE(runs[0].ids, runs[3].ids);
}

TEST_F(GenerateTest, NoTokensMeansReadingThePromptOnly) {
  Session session(*engine_);
  Recorder sink;
  const Result<GenerateResult> result = Generate(session, prompt_, Greedy(0), sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(session.length(), std::ssize(prompt_));
  EXPECT_TRUE(sink.ids.empty());
}

TEST_F(GenerateTest, BadRequestsAreRefusedBeforeAnythingRuns) {
  GenerateOptions negative = Greedy(-1);
  GenerateOptions cold = Greedy(1);
  cold.sampling.temperature = -1;
  ExpectRefused({}, Greedy(1), "empty");
  ExpectRefused({5, 2048}, Greedy(1), "prompt token 1: expected an id in [0, 2048), found 2048");
  ExpectRefused({-1}, Greedy(1), "found -1");
  ExpectRefused(prompt_, negative, "max_tokens");
  ExpectRefused(prompt_, cold, "temperature");
}

}  // namespace
}  // namespace k3
