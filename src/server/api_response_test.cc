#include "server/api_response.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "server/answer_test_util.h"

namespace k3::server {
namespace {

using nlohmann::json;

ResponseInfo Info() {
  return {.id = "00ff", .created = 1700000000, .model = "nano", .system_fingerprint = "fp_1"};
}

XtmlEvent Event(XtmlEvent::Kind kind, std::string text, int32_t call = 0) {
  return {.kind = kind, .call = call, .text = std::move(text)};
}

TEST(ApiResponse, ChatBodyHasOpenAisShape) {
  const std::vector<Choice> choices = {
      {.index = 0, .answer = {.reasoning = "r", .content = "c\n"}, .finish_reason = "stop"}};
  const Usage usage{
      .prompt_tokens = 20, .cached_tokens = 16, .completion_tokens = 5, .reasoning_tokens = 2};
  EXPECT_EQ(ChatCompletionBody(Info(), choices, usage),
            R"({"id":"chatcmpl-00ff","object":"chat.completion","created":1700000000,)"
            R"("model":"nano","system_fingerprint":"fp_1","choices":[{"index":0,"message":)"
            R"({"role":"assistant","content":"c\n","reasoning_content":"r","refusal":null},)"
            R"("logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":20,)"
            R"("completion_tokens":5,"total_tokens":25,"prompt_tokens_details":)"
            R"({"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":2}}})");
}

TEST(ApiResponse, CallsAloneHaveNoContent) {
  const std::vector<Choice> choices = {
      {.index = 1,
       .answer = {.tool_calls = {{"f", "{\"a\": 1}", true}, {"g", "{\"b", false}}},
       .finish_reason = "tool_calls"}};
  const json body = json::parse(ChatCompletionBody(Info(), choices, {}));
  const json message = body["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_FALSE(message.contains("reasoning_content"));
  const json calls = message["tool_calls"];
  EXPECT_EQ(calls[0], (json{{"id", ToolCallId("00ff", 1, 0)},
                            {"type", "function"},
                            {"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}}));
  EXPECT_EQ(calls[1]["incomplete"], true);
  EXPECT_EQ(calls[1]["function"]["arguments"], "{\"b");
}

TEST(ApiResponse, AnEmptyAnswerHasEmptyContent) {
  const std::vector<Choice> choices = {{.finish_reason = "length"}};
  const json body = json::parse(ChatCompletionBody(Info(), choices, {}));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "");
}

TEST(ApiResponse, ChatFramesHaveOpenAisShape) {
  const std::string head = R"(data: {"id":"chatcmpl-00ff","object":"chat.completion.chunk",)"
                           R"("created":1700000000,"model":"nano","system_fingerprint":"fp_1",)";
  EXPECT_EQ(ChatRoleFrame(Info(), 0),
            head + R"("choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]})" +
                "\n\n");
  const AnswerDelta text = {
      .events = {Event(XtmlEvent::Kind::kReasoning, "r"), Event(XtmlEvent::Kind::kContent, "c")}};
  EXPECT_EQ(ChatDeltaFrame(Info(), 2, text),
            head + R"("choices":[{"index":2,"delta":{"reasoning_content":"r","content":"c"},)" +
                R"("finish_reason":null}]})" + "\n\n");
  const AnswerDelta call = {.events = {Event(XtmlEvent::Kind::kToolCallStart, "f"),
                                       Event(XtmlEvent::Kind::kToolCallArguments, "{"),
                                       Event(XtmlEvent::Kind::kToolCallArguments, "}")}};
  EXPECT_EQ(ChatDeltaFrame(Info(), 0, call),
            head + R"("choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":")" +
                ToolCallId("00ff", 0, 0) +
                R"(","type":"function","function":{"name":"f","arguments":"{}"}}]},)" +
                R"("finish_reason":null}]})" + "\n\n");
  const AnswerDelta more = {.events = {Event(XtmlEvent::Kind::kToolCallArguments, "1", 3),
                                       Event(XtmlEvent::Kind::kToolCallEnd, "", 3)}};
  EXPECT_EQ(ChatDeltaFrame(Info(), 0, more),
            head + R"("choices":[{"index":0,"delta":{"tool_calls":[{"index":3,"function":)" +
                R"({"arguments":"1"}}]},"finish_reason":null}]})" + "\n\n");
  EXPECT_EQ(ChatFinishFrame(Info(), 0, {}, "stop"),
            head + R"("choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})" + "\n\n");
  EXPECT_EQ(kDoneFrame, "data: [DONE]\n\n");
  EXPECT_EQ(kKeepAliveFrame, ": keep-alive\n\n");
}

TEST(ApiResponse, DeltasThatSayNothingAreNoFrames) {
  EXPECT_EQ(ChatDeltaFrame(Info(), 0, {}), "");
  EXPECT_EQ(ChatDeltaFrame(Info(), 0, {.events = {Event(XtmlEvent::Kind::kToolCallEnd, "")}}), "");
  EXPECT_EQ(TextDeltaFrame(Info(), 0, {}), "");
}

TEST(ApiResponse, UsageComesLastAndIsNullBefore) {
  ResponseInfo info = Info();
  info.include_usage = true;
  EXPECT_TRUE(ReadFrames(ChatRoleFrame(info, 0))[0].at("usage").is_null());
  EXPECT_TRUE(ReadFrames(TextFinishFrame(info, 0, "stop"))[0].at("usage").is_null());
  EXPECT_FALSE(ReadFrames(ChatRoleFrame(Info(), 0))[0].contains("usage"));
  for (const std::string& frame :
       {ChatUsageFrame(info, {.prompt_tokens = 3}), TextUsageFrame(info, {.prompt_tokens = 3})}) {
    const json chunk = ReadFrames(frame)[0];
    EXPECT_EQ(chunk["choices"], json::array());
    EXPECT_EQ(chunk["usage"]["total_tokens"], 3);
  }
}

TEST(ApiResponse, LogProbsHaveBytesAndAlternatives) {
  ResponseInfo info = Info();
  info.logprobs = true;
  const AnswerToken token{.chosen = {"\xE4\xB8", -0.1f},
                          .top = {{"a", -std::numeric_limits<float>::infinity()}},
                          .text_offset = 4};
  const AnswerDelta delta = {.events = {Event(XtmlEvent::Kind::kContent, "x")}, .tokens = {token}};
  const json chunk = ReadFrames(ChatDeltaFrame(info, 0, delta))[0];
  EXPECT_EQ(chunk["choices"][0]["logprobs"].dump(),
            R"({"content":[{"bytes":[228,184],"logprob":-0.1,"token":")"
            "\uFFFD"
            R"(","top_logprobs":[{"bytes":[97],"logprob":-9999.0,"token":"a"}]}],"refusal":null})");
  const json text = ReadFrames(TextDeltaFrame(info, 0, delta))[0];
  EXPECT_EQ(text["choices"][0]["logprobs"].dump(),
            R"({"text_offset":[4],"token_logprobs":[-0.1],"tokens":["bytes:\\xe4\\xb8"],)"
            R"("top_logprobs":[{"a":-9999.0,"bytes:\\xe4\\xb8":-0.1}]})");
  // Not asked for, not sent.
  EXPECT_FALSE(ReadFrames(ChatDeltaFrame(Info(), 0, delta))[0]["choices"][0].contains("logprobs"));
}

TEST(ApiResponse, CallIdsDiffer) {
  std::set<std::string> ids;
  for (const std::string_view response : {"a", "b", ""}) {
    for (int64_t choice = 0; choice < 16; ++choice) {
      for (int64_t call = 0; call < 64; ++call) {
        const std::string id = ToolCallId(response, choice, call);
        ASSERT_EQ(id.size(), 29u);
        ASSERT_EQ(id.substr(0, 5), "call_");
        ASSERT_EQ(id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "abcdefghijklmnopqrstuvwxyz_"),
                  std::string::npos);
        ids.insert(id);
      }
    }
  }
  EXPECT_EQ(ids.size(), 3u * 16 * 64);
  EXPECT_EQ(ToolCallId("a", 1, 2), ToolCallId("a", 1, 2));
}

TEST(ApiResponse, TextBodyHasOpenAisShape) {
  const std::vector<Choice> choices = {
      {.index = 3, .answer = {.content = "t"}, .finish_reason = "length"}};
  EXPECT_EQ(TextCompletionBody(Info(), choices, {}),
            R"({"id":"cmpl-00ff","object":"text_completion","created":1700000000,"model":"nano",)"
            R"("system_fingerprint":"fp_1","choices":[{"index":3,"text":"t","logprobs":null,)"
            R"("finish_reason":"length"}],"usage":{"prompt_tokens":0,"completion_tokens":0,)"
            R"("total_tokens":0,"prompt_tokens_details":{"cached_tokens":0},)"
            R"("completion_tokens_details":{"reasoning_tokens":0}}})");
}

TEST(ApiResponse, ModelsAndTokens) {
  const ModelInfo model{.id = "nano", .created = 5, .context_max = 4096};
  const std::string one =
      R"({"id":"nano","object":"model","created":5,"owned_by":"k3","max_model_len":4096})";
  EXPECT_EQ(ModelBody(model), one);
  EXPECT_EQ(ModelsBody(std::vector<ModelInfo>{model}), R"({"object":"list","data":[)" + one + "]}");
  const std::vector<int32_t> ids = {1, 2};
  EXPECT_EQ(TokenizeBody(ids, {}, 9),
            R"({"count":2,"max_model_len":9,"tokens":[1,2],"token_strs":null})");
  EXPECT_EQ(TokenizeBody(ids, std::vector<std::string>{"a", "\xFF"}, 9),
            "{\"count\":2,\"max_model_len\":9,\"tokens\":[1,2],\"token_strs\":[\"a\",\"\uFFFD\"]}");
  EXPECT_EQ(TokenizeBody({}, {}, 9),
            R"({"count":0,"max_model_len":9,"tokens":[],"token_strs":null})");
  EXPECT_EQ(DetokenizeBody("a\xFF"), "{\"prompt\":\"a\uFFFD\"}");
}

class StreamedAnswerTest : public XtmlTest {
 protected:
  StreamedAnswerTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {}
};

/// A client that joins the frames gets the message of the body, whatever the model generated.
TEST_F(StreamedAnswerTest, FramesJoinedAreTheBody) {
  const AnswerIds source(tokenizer, markers);
  ResponseInfo info = Info();
  Random random(9, 0);
  int64_t marked = 0;
  for (int i = 0; i < 3'000; ++i) {
    const Ids ids = source.Make(random);
    info.logprobs = random.NextBelow(2) == 0;
    ChatRequest chat;
    chat.thinking = random.NextBelow(2) == 0;
    ChatAnswerStream stream(tokenizer, markers, chat, *StopMatcher::Create({"top"}));
    std::string frames = ChatRoleFrame(info, 0);
    bool goes_on = true;
    for (size_t at = 0; at < ids.size() && goes_on; ++at) {
      AnswerDelta delta;
      goes_on = stream.Feed(MakeToken(ids[at], at), delta);
      frames += ChatDeltaFrame(info, 0, delta);
    }
    AnswerDelta rest;
    stream.Finish(rest);
    frames += ChatDeltaFrame(info, 0, rest);
    const std::string name(stream.FinishName(FinishReason::kStop));
    frames += ChatFinishFrame(info, 0, stream.answer(), name);
    marked += frames.find("incomplete") == std::string::npos ? 0 : 1;

    const std::vector<Choice> choices = {
        {.answer = stream.answer(), .tokens = stream.tokens(), .finish_reason = name}};
    json expected = json::parse(ChatCompletionBody(info, choices, {}))["choices"][0];
    // What is empty is not sent, so that a client has nothing.
    if (expected["message"]["content"] == "") expected["message"]["content"] = nullptr;
    if (expected["logprobs"].is_object() && expected["logprobs"]["content"].empty()) {
      expected["logprobs"] = nullptr;
    }
    expected.erase("index");
    ASSERT_EQ(JoinChunks(ReadFrames(frames)), expected)
        << fmt::format("case {}: {}", i, fmt::join(ids, ","));
  }
  EXPECT_GT(marked, 100);
}

}  // namespace
}  // namespace k3::server
