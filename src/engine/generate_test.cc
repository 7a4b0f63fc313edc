#include "engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "sys/file.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"

namespace k3 {
namespace {

constexpr int64_t kReferenceTokens = 40;

/// Keeps what it sees and ends the run after a number of tokens or of prompt chunks.
class Recorder : public TokenSink {
 public:
  bool OnPrefillProgress(int64_t done, int64_t total) override {
    progress.emplace_back(done, total);
    return std::ssize(progress) < chunks_max;
  }
  SinkVerdict OnToken(const SampledToken& token) override {
    ids.push_back(token.id);
    log_probs.push_back(token.log_prob);
    top.push_back(token.top);
    return std::ssize(ids) < tokens_max ? SinkVerdict::kContinue : last_verdict;
  }

  int64_t chunks_max = std::numeric_limits<int64_t>::max();
  int64_t tokens_max = std::numeric_limits<int64_t>::max();
  SinkVerdict last_verdict = SinkVerdict::kCancel;
  std::vector<std::pair<int64_t, int64_t>> progress;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<std::vector<TokenLogProb>> top;
};

/// Makes text of tokens and ends the run at a stop string.
class TextSink : public TokenSink {
 public:
  TextSink(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(tokenizer), matcher_(*StopMatcher::Create(stops)) {}

  SinkVerdict OnToken(const SampledToken& token) override {
    ++tokens;
    text += utf8_.Feed(matcher_.Feed(tokenizer_.TokenBytes(token.id)));
    return matcher_.matched() ? SinkVerdict::kStop : SinkVerdict::kContinue;
  }
  void Finish() {
    text += utf8_.Feed(matcher_.Finish());
    text += utf8_.Finish();
  }

  int64_t tokens = 0;
  std::string text;

 private:
  const Tokenizer& tokenizer_;
  StopMatcher matcher_;
  Utf8Stream utf8_;
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

TEST_F(GenerateTest, TheSinkMayCancelOrStopAtAToken) {
  for (const SinkVerdict verdict : {SinkVerdict::kCancel, SinkVerdict::kStop}) {
    for (const int64_t tokens_max : {2, 10}) {
      Session session(*engine_);
      Recorder sink;
      sink.tokens_max = 2;
      sink.last_verdict = verdict;
      const Result<GenerateResult> result = Generate(session, prompt_, Greedy(tokens_max), sink);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->finish_reason,
                verdict == SinkVerdict::kStop ? FinishReason::kStop : FinishReason::kCancelled);
      EXPECT_EQ(result->stop_id, std::nullopt);
      EXPECT_EQ(result->generated_tokens, 2);
      EXPECT_EQ(sink.ids.size(), 2u);
      // The token that ended the run was not run itself.
      EXPECT_EQ(result->decode_passes, 1);
      EXPECT_EQ(session.length(), std::ssize(prompt_) + 1);
    }
  }
}

// The greedy text cut at a stop string that spans three tokens and begins and ends inside of two.
TEST_F(GenerateTest, AStopStringMaySpanTokens) {
  const Tokenizer& tokenizer = engine_->tokenizer();
  const std::vector<int32_t> three(greedy_.begin() + 6, greedy_.begin() + 9);
  const std::string spanned = *tokenizer.Decode(three);
  const std::string text = *tokenizer.Decode(greedy_);
  for (const std::string& token : {std::string(tokenizer.TokenBytes(three.front())),
                                   std::string(tokenizer.TokenBytes(three.back()))}) {
    ASSERT_GT(token.size(), 1u) << "choose other tokens";
  }
  const std::string stop = spanned.substr(1, spanned.size() - 2);
  ASSERT_EQ(text.find(stop), tokenizer.Decode(std::span(greedy_).first(6))->size() + 1);
  TextSink sink(tokenizer, {"nowhere in it", stop});
  Session session(*engine_);
  const Result<GenerateResult> result = Generate(session, prompt_, Greedy(kReferenceTokens), sink);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  sink.Finish();
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(sink.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(sink.tokens, 9);
  EXPECT_EQ(session.length(), std::ssize(prompt_) + 8);
}

// Biases that fall and a penalty that takes a drawn token's bias away make any tokens come in turn.
TEST_F(GenerateTest, AStopStringMayBeHalfAnEmoji) {
  const std::string emoji = "\xF0\x9F\x98\x80";
  const std::vector<int32_t> ids = *engine_->tokenizer().Encode(emoji);
  ASSERT_EQ(ids.size(), 4u);
  GenerateOptions options = Greedy(4);
  options.sampling.repetition_penalty = 1e6f;
  for (size_t i = 0; i < ids.size(); ++i) {
    options.sampling.logit_bias.push_back({ids[i], 100.0f - 20.0f * static_cast<float>(i)});
  }
  const std::tuple<std::string, std::string, int64_t> cases[] = {
      {"none", emoji, 4},
      {"\xF0\x9F", "", 2},
      {"\x98\x80", "\xEF\xBF\xBD", 4},
  };
  for (const auto& [stop, text, tokens] : cases) {
    TextSink sink(engine_->tokenizer(), {stop});
    Session session(*engine_);
    ASSERT_TRUE(Generate(session, prompt_, options, sink).ok());
    sink.Finish();
    EXPECT_EQ(sink.text, text);
    EXPECT_EQ(sink.tokens, tokens);
  }
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

// Every way to the same ids gives the same answer: all at once, a session that went on, and one
// that came back to the end of its prompt.
TEST_F(GenerateTest, AContinuedSessionDrawsAsAColdOne) {
  const std::span<const int32_t> turn(greedy_);
  std::vector<int32_t> all = prompt_;
  all.insert(all.end(), turn.begin(), turn.end());
  GenerateOptions options;
  options.sampling.repetition_penalty = 1.5f;
  options.sampling.presence_penalty = 0.5f;
  options.sampling.frequency_penalty = 0.5f;
  options.sampling.top_log_probs = 3;
  options.sampling.seed = 5;
  options.max_tokens = 16;
  Recorder cold;
  Session cold_session(*engine_);
  ASSERT_TRUE(Generate(cold_session, all, options, cold).ok());

  Recorder continued;
  Session session(*engine_, Session::Boundaries::kKept);
  ASSERT_TRUE(session.Prefill(prompt_, {}).ok());
  ASSERT_TRUE(Generate(session, turn, options, continued).ok());
  EXPECT_EQ(continued.ids, cold.ids);
  EXPECT_EQ(continued.log_probs, cold.log_probs);

  Recorder again;
  all.push_back(cold.ids[0]);
  const int64_t kept = session.Reuse(all);
  ASSERT_EQ(kept, std::ssize(all) - 1);
  ASSERT_TRUE(
      Generate(session, std::span(all).subspan(static_cast<size_t>(kept)), options, again).ok());
  Recorder cold_again;
  Session another(*engine_);
  ASSERT_TRUE(Generate(another, all, options, cold_again).ok());
  EXPECT_EQ(again.ids, cold_again.ids);
  EXPECT_EQ(again.log_probs, cold_again.log_probs);

  // The earlier tokens matter, or the above would show nothing.
  Recorder unpenalised;
  options.sampling.repetition_penalty = 1.0f;
  Session third(*engine_);
  ASSERT_TRUE(Generate(third, all, options, unpenalised).ok());
  EXPECT_NE(unpenalised.ids, cold_again.ids);
}

TEST_F(GenerateTest, APenaltyOfTheFirstTurnIsLaidOnWhatItHolds) {
  GenerateOptions options = Greedy(30);
  options.sampling.repetition_penalty = 1e6f;
  Session session(*engine_);
  ASSERT_TRUE(session.Prefill(prompt_, {}).ok());
  Recorder sink;
  ASSERT_TRUE(Generate(session, std::span(greedy_).first(10), options, sink).ok());
  std::vector<int32_t> seen(prompt_);
  seen.insert(seen.end(), greedy_.begin(), greedy_.begin() + 10);
  for (const int32_t id : sink.ids) {
    EXPECT_EQ(std::ranges::count(seen, id), 0) << id;
    seen.push_back(id);
  }
}

TEST_F(GenerateTest, TheTopListHoldsTheGreedyToken) {
  GenerateOptions options = Greedy(5);
  options.sampling.top_log_probs = 4;
  Session session(*engine_);
  Recorder sink;
  ASSERT_TRUE(Generate(session, prompt_, options, sink).ok());
  for (size_t i = 0; i < sink.ids.size(); ++i) {
    ASSERT_EQ(sink.top[i].size(), 4u);
    EXPECT_EQ(sink.top[i][0].id, sink.ids[i]);
    EXPECT_EQ(sink.top[i][0].log_prob, sink.log_probs[i]);
  }
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
  GenerateOptions biased = Greedy(1);
  biased.sampling.logit_bias = {{2047, 1.0f}, {2048, 1.0f}};
  ExpectRefused(prompt_, biased, "logit_bias names token 2048, expected an id in [0, 2048)");
  biased.sampling.logit_bias = {{5, 101.0f}};
  ExpectRefused(prompt_, biased, "logit_bias of token 5 is 101");
}

}  // namespace
}  // namespace k3
