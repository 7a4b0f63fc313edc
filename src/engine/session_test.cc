#include "engine/session.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace k3 {
namespace {

class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Engine>> engine =
        Engine::Open(K3_SOURCE_DIR "/models/kjv", {.threads = 2, .target = {}});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  std::vector<int32_t> Tokens(int64_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 1900));
    return tokens;
  }

  std::vector<float> Logits() const {
    return std::vector<float>(static_cast<size_t>(engine_->config().vocab_size));
  }

  /// The logits after `tokens` in a new session.
  std::vector<float> Cold(std::span<const int32_t> tokens) {
    Session session(*engine_);
    std::vector<float> logits = Logits();
    EXPECT_TRUE(session.Prefill(tokens, logits).ok());
    return logits;
  }

  /// Goes on in `session` with what `tokens` have new; the logits after them.
  std::vector<float> Warm(Session& session, std::span<const int32_t> tokens, int64_t expect_kept) {
    const int64_t kept = session.Reuse(tokens);
    EXPECT_EQ(kept, expect_kept);
    std::vector<float> logits = Logits();
    EXPECT_TRUE(session.Prefill(tokens.subspan(static_cast<size_t>(kept)), logits).ok());
    EXPECT_EQ(std::vector<int32_t>(session.tokens().begin(), session.tokens().end()),
              std::vector<int32_t>(tokens.begin(), tokens.end()));
    return logits;
  }

  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> Join(std::span<const int32_t> first, std::span<const int32_t> second) {
  std::vector<int32_t> joined(first.begin(), first.end());
  joined.insert(joined.end(), second.begin(), second.end());
  return joined;
}

TEST_F(SessionTest, GoesOnAfterGeneratedTokensWithTheBitsOfANewSession) {
  // Lengths around the 16-token chunk and the 256-token page.
  for (const int64_t length : {1, 15, 16, 17, 40, 255, 256, 257, 300}) {
    const std::vector<int32_t> prompt = Tokens(length, 1);
    const std::vector<int32_t> answer = Tokens(23, 2);
    Session session(*engine_, Session::Boundaries::kKept);
    std::vector<float> logits = Logits();
    ASSERT_TRUE(session.Prefill(prompt, logits).ok());
    for (const int32_t token : answer) ASSERT_TRUE(session.Decode(token, logits).ok());
    const std::vector<int32_t> next = Join(Join(prompt, answer), Tokens(9, 3));
    EXPECT_EQ(Warm(session, next, length), Cold(next)) << length;
    // What was not what the session had generated goes on from the prompt all the same.
    for (const int32_t token : answer) ASSERT_TRUE(session.Decode(token, logits).ok());
    const std::vector<int32_t> other = Join(next, Tokens(5, 4));
    EXPECT_EQ(Warm(session, other, std::ssize(next)), Cold(other)) << length;
  }
}

TEST_F(SessionTest, ComesBackToAnEarlierBoundary) {
  const std::vector<int32_t> history = Tokens(50, 1);
  const std::vector<int32_t> question = Join(history, Tokens(20, 2));
  Session session(*engine_, Session::Boundaries::kKept);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(session.Prefill(history, {}).ok());
  session.MarkBoundary();
  const std::vector<float> first = Warm(session, question, 50);
  ASSERT_TRUE(session.Decode(7, logits).ok());
  // The same prompt again: its own end is no proper prefix.
  EXPECT_EQ(Warm(session, question, 50), first);
  EXPECT_EQ(first, Cold(question));
  ASSERT_TRUE(session.Decode(7, logits).ok());
  // Another question behind the same history, and a history that differs at once.
  const std::vector<int32_t> second = Join(history, Tokens(33, 5));
  EXPECT_EQ(Warm(session, second, 50), Cold(second));
  const std::vector<int32_t> stranger = Tokens(30, 6);
  EXPECT_EQ(Warm(session, stranger, 0), Cold(stranger));
}

TEST_F(SessionTest, KeepsTheLastBoundariesAlone) {
  Session session(*engine_, Session::Boundaries::kKept);
  std::vector<int32_t> tokens;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    tokens = Join(tokens, Tokens(20, turn));
    Warm(session, tokens, std::ssize(tokens) - 20);
    session.MarkBoundary();
    session.MarkBoundary();
  }
  const auto prefix = [&](size_t count) { return std::span(tokens).first(count); };
  EXPECT_TRUE(session.Holds(tokens));
  EXPECT_FALSE(session.Holds(prefix(99)));
  const std::vector<int32_t> late = Join(prefix(65), Tokens(3, 9));
  EXPECT_EQ(Warm(session, late, 60), Cold(late));
  const std::vector<int32_t> early = Join(prefix(45), Tokens(3, 9));
  EXPECT_EQ(Warm(session, early, 0), Cold(early));
}

TEST_F(SessionTest, AnUnbrokenPromptIsReusedWithoutBoundaries) {
  const std::vector<int32_t> prompt = Tokens(30, 1);
  const std::vector<int32_t> longer = Join(prompt, Tokens(4, 2));
  Session session(*engine_);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(session.Prefill(prompt, logits).ok());
  EXPECT_EQ(Warm(session, longer, 30), Cold(longer));
  ASSERT_TRUE(session.Decode(3, logits).ok());
  EXPECT_EQ(session.Reuse(Join(longer, Tokens(1, 3))), 0);
  EXPECT_EQ(session.length(), 0);
  EXPECT_EQ(session.Reuse({}), 0);
}

TEST_F(SessionTest, ATokenInPrefillFormBehindADecodedOneIsNotReused) {
  const std::vector<int32_t> prompt = Tokens(30, 1);
  Session session(*engine_, Session::Boundaries::kKept);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(session.Prefill(prompt, logits).ok());
  ASSERT_TRUE(session.Decode(3, logits).ok());
  ASSERT_TRUE(session.Prefill(Tokens(5, 2), logits).ok());
  session.MarkBoundary();
  const std::vector<int32_t> next = Join(session.tokens(), Tokens(2, 3));
  EXPECT_EQ(Warm(session, next, 30), Cold(next));
}

}  // namespace
}  // namespace k3
