#include "engine/chat.h"

#include <gtest/gtest.h>

#include <memory>

namespace k3 {
namespace {

/// Takes everything, or cancels after some calls.
class Sink : public ChatSink {
 public:
  bool OnPrefillProgress(int64_t done, int64_t total) override {
    prefilled_ = done;
    prefill_total_ = total;
    return done < prefill_max_;
  }
  bool OnToken(const SampledToken& token) override {
    tokens_.push_back(token.id);
    return std::ssize(tokens_) < tokens_max_;
  }
  bool OnEvent(const XtmlEvent& event) override {
    AddXtmlEvent(event, joined_);
    return true;
  }

  int64_t prefill_max_ = INT64_MAX;
  int64_t tokens_max_ = INT64_MAX;
  int64_t prefilled_ = 0;
  int64_t prefill_total_ = 0;
  std::vector<int32_t> tokens_;
  ParsedAnswer joined_;
};

ChatMessage User(std::string text) {
  return {.role = ChatRole::kUser, .content = {std::move(text)}};
}

class ChatTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Engine>> engine =
        Engine::Open(K3_SOURCE_DIR "/models/kjv", {.threads = 2, .target = {}});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  ChatAnswer Answer(Session& session, const ChatRequest& request, Sink& sink) {
    Result<ChatAnswer> answer = AnswerChat(session, request, options_, sink);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(sink.joined_, answer->parsed) << "pieces joined are the answer";
    return std::move(*answer);
  }

  /// The answer of a session that has seen nothing.
  ChatAnswer Cold(const ChatRequest& request) {
    Session session(*engine_);
    Sink sink;
    ChatAnswer answer = Answer(session, request, sink);
    EXPECT_EQ(answer.cached_tokens, 0);
    EXPECT_EQ(sink.prefill_total_, answer.prompt_tokens);
    return answer;
  }

  int64_t Length(ChatRequest request, bool with_prompt) {
    request.add_generation_prompt = with_prompt;
    return std::ssize(*EncodeChat(*engine_, request));
  }

  std::unique_ptr<Engine> engine_;
  ChatOptions options_{.sampling = {.temperature = 0.8f, .repetition_penalty = 1.2f, .seed = 5},
                       .max_tokens = 30};
};

TEST_F(ChatTest, LaterTurnsCostTheirNewTokensAndAnswerAsColdRuns) {
  for (const bool thinking : {true, false}) {
    for (const bool settles : {true, false}) {
      Session session(*engine_, Session::Boundaries::kKept);
      ChatRequest request{.thinking = thinking};
      for (const char* text : {"Who art thou?", "And whence?", "Speak plainly.", "Go."}) {
        const bool is_first = request.messages.empty();
        const int64_t history = is_first ? 0 : Length(request, false);
        request.messages.push_back(User(text));
        Sink sink;
        const ChatAnswer warm = Answer(session, request, sink);
        const ChatAnswer cold = Cold(request);
        EXPECT_EQ(warm.parsed, cold.parsed);
        EXPECT_EQ(warm.prompt_tokens, cold.prompt_tokens);
        EXPECT_EQ(warm.generated_tokens, 30);
        // Without settling the session comes back to the end of the last prompt.
        if (settles) {
          EXPECT_EQ(warm.cached_tokens, history);
        } else if (!is_first) {
          EXPECT_GT(warm.cached_tokens, 0);
        }
        EXPECT_EQ(sink.prefill_total_, warm.prompt_tokens - warm.cached_tokens);
        AddAnswer(warm.parsed, request.messages);
        const bool settled =
            settles && *SettleChat(session, request, [](int64_t, int64_t) { return true; });
        EXPECT_EQ(settled, settles);
      }
    }
  }
}

TEST_F(ChatTest, OptionsBehindTheMessagesDoNotSpoilThePrefix) {
  Session session(*engine_, Session::Boundaries::kKept);
  ChatRequest request{.messages = {User("Who art thou?")},
                      .thinking = false,
                      .tool_choice = ToolChoice::kNone,
                      .response_format = ResponseFormat::kJsonObject};
  Sink first;
  AddAnswer(Answer(session, request, first).parsed, request.messages);
  ASSERT_TRUE(*SettleChat(session, request, [](int64_t, int64_t) { return true; }));
  const int64_t settled = session.length();
  request.messages.push_back(User("And whence?"));
  request.tool_choice = ToolChoice::kRequired;
  Sink second;
  const ChatAnswer warm = Answer(session, request, second);
  EXPECT_EQ(warm.cached_tokens, settled);
  EXPECT_EQ(warm.parsed, Cold(request).parsed);
}

TEST_F(ChatTest, AnswersTheSameMessageAgain) {
  Session session(*engine_, Session::Boundaries::kKept);
  ChatRequest request{.messages = {User("Who art thou?")}};
  Sink sink;
  AddAnswer(Answer(session, request, sink).parsed, request.messages);
  ASSERT_TRUE(*SettleChat(session, request, [](int64_t, int64_t) { return true; }));
  const int64_t settled = session.length();
  request.messages.push_back(User("And whence?"));
  Sink first;
  const ChatAnswer one = Answer(session, request, first);
  // Also after the answer was settled, which a second time costs nothing.
  ChatRequest answered = request;
  AddAnswer(one.parsed, answered.messages);
  ASSERT_TRUE(*SettleChat(session, answered, [](int64_t, int64_t) { return true; }));
  ASSERT_TRUE(*SettleChat(session, answered, [](int64_t, int64_t) { return false; }));
  Sink second;
  const ChatAnswer two = Answer(session, request, second);
  EXPECT_EQ(two.parsed, one.parsed);
  EXPECT_EQ(two.cached_tokens, settled);
}

TEST_F(ChatTest, StopStringsEndTheResponseAndAreNotPartOfIt) {
  options_.max_tokens = 60;
  ChatRequest request{.messages = {User("Who art thou?")}, .thinking = false};
  const std::string whole = Cold(request).parsed.content;
  ASSERT_GT(whole.size(), 40u);
  for (size_t at = 1; at + 13 < whole.size(); at += 7) {
    const std::string stop = whole.substr(at, 13);
    options_.stop = {"never", stop};
    const ChatAnswer cut = Cold(request);
    EXPECT_EQ(cut.parsed.content, whole.substr(0, whole.find(stop))) << stop;
    EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
    EXPECT_EQ(cut.FinishName(), "stop");
  }
  // What only might have become a stop string is given out in the end.
  options_.stop = {whole.substr(whole.size() - 5) + "\x01"};
  EXPECT_EQ(Cold(request).parsed.content, whole);
  // In the reasoning it means nothing.
  options_.stop.clear();
  request.thinking = true;
  const std::string reasoning = Cold(request).parsed.reasoning;
  options_.stop = {reasoning.substr(2, 8)};
  EXPECT_EQ(Cold(request).parsed.reasoning, reasoning);
}

TEST_F(ChatTest, ACancelledAnswerIsKeptAndGoneOnWith) {
  for (const int64_t tokens_max : {1, 7}) {
    Session session(*engine_, Session::Boundaries::kKept);
    ChatRequest request{.messages = {User("Who art thou?")}, .thinking = false};
    Sink sink;
    sink.tokens_max_ = tokens_max;
    const ChatAnswer answer = Answer(session, request, sink);
    EXPECT_EQ(answer.finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(answer.FinishName(), "cancelled");
    EXPECT_EQ(answer.generated_tokens, tokens_max);
    AddAnswer(answer.parsed, request.messages);
    request.messages.push_back(User("And whence?"));
    Sink next;
    EXPECT_EQ(Answer(session, request, next).parsed, Cold(request).parsed);
  }
}

TEST_F(ChatTest, CancelsBetweenChunksOfThePrompt) {
  options_.prefill_chunk = 16;
  Session session(*engine_, Session::Boundaries::kKept);
  const ChatRequest request{.messages = {User("Who art thou? And whence comest thou?")}};
  Sink sink;
  sink.prefill_max_ = 32;
  const ChatAnswer stopped = Answer(session, request, sink);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(stopped.generated_tokens, 0);
  Sink again;
  const ChatAnswer answer = Answer(session, request, again);
  EXPECT_EQ(answer.cached_tokens, 32);
  EXPECT_EQ(answer.parsed, Cold(request).parsed);
  // Settling stops there too, and what it has run is used.
  ChatRequest history = request;
  AddAnswer(answer.parsed, history.messages);
  history.messages.push_back(User("x " + std::string(4000, 'y')));
  AddAnswer({.content = "z"}, history.messages);
  int calls = 0;
  EXPECT_FALSE(*SettleChat(session, history, [&](int64_t, int64_t) { return ++calls < 3; }));
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(*SettleChat(session, history, [](int64_t, int64_t) { return true; }));
  EXPECT_EQ(session.length(), Length(history, false));
}

TEST_F(ChatTest, AnAnswerIsAlwaysOpened) {
  ChatRequest request{.messages = {User("Who art thou?")}, .thinking = false};
  const ChatAnswer answer = Cold(request);
  request.add_generation_prompt = false;
  EXPECT_EQ(Cold(request).parsed, answer.parsed);
}

TEST_F(ChatTest, CallsOfAnAnswerBecomeCallsOfTheConversation) {
  std::vector<ChatMessage> messages;
  AddAnswer({.reasoning = "r",
             .content = "c",
             .tool_calls = {{"f", R"({"a": 1})", true},
                            {"g", R"({"b":)", false},
                            {"h", "broken", true},
                            {"i", "[1]", true}}},
            messages);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].reasoning, "r");
  EXPECT_EQ(messages[0].content, std::vector<std::string>{"c"});
  ASSERT_EQ(messages[0].tool_calls.size(), 2u);
  EXPECT_EQ(messages[0].tool_calls[0].id, "call_1");
  EXPECT_EQ(messages[0].tool_calls[1].id, "call_2");
  EXPECT_EQ(messages[0].tool_calls[1].raw_arguments, "broken");
}

TEST_F(ChatTest, RefusesBeforeAnythingRuns) {
  Session session(*engine_, Session::Boundaries::kKept);
  Sink sink;
  ChatRequest request{.messages = {User("Who art thou?")}};
  AddAnswer(Answer(session, request, sink).parsed, request.messages);
  ASSERT_TRUE(*SettleChat(session, request, [](int64_t, int64_t) { return true; }));
  const int64_t settled = session.length();
  ChatRequest late = request;
  late.messages.push_back({.role = ChatRole::kTool, .content = {"x"}});
  EXPECT_EQ(AnswerChat(session, late, options_, sink).status().code(),
            StatusCode::kInvalidArgument);
  ChatRequest longer = request;
  longer.messages.push_back(User(std::string(4'000'000, '?')));
  const Status too_long = AnswerChat(session, longer, options_, sink).status();
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.message().find("no room in the model's context"), std::string::npos);
  ChatOptions bad = options_;
  bad.stop = {""};
  EXPECT_EQ(AnswerChat(session, request, bad, sink).status().code(), StatusCode::kInvalidArgument);
  bad = options_;
  bad.sampling.logit_bias = {{1 << 20, 1.0f}};
  EXPECT_EQ(AnswerChat(session, request, bad, sink).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session.length(), settled);
}

}  // namespace
}  // namespace k3
