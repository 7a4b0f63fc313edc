#include "server/answer_stream.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/answer_test_util.h"

namespace k3::server {
namespace {

class AnswerStreamTest : public XtmlTest {
 protected:
  AnswerStreamTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {}

  ChatAnswerStream ChatStream(const std::vector<std::string>& stop = {}) const {
    return {tokenizer, markers, chat, *StopMatcher::Create(stop)};
  }
  TextAnswerStream TextStream(const std::vector<std::string>& stop = {}) const {
    return {tokenizer, *StopMatcher::Create(stop)};
  }

  /// One id a byte, so that tests say what each token is.
  static Ids Bytes(std::string_view text) {
    Ids ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  /// "text[tokens]" of each step that gave something out, "." for one that did not.
  static std::string ShowDelta(const AnswerDelta& delta) {
    if (delta.empty()) return ".";
    std::string out;
    for (const XtmlEvent& event : delta.events) out += event.text;
    out += "[";
    for (const AnswerToken& token : delta.tokens) {
      for (const char c : token.chosen.bytes) {
        out += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("<{:02x}>", c & 0xFF);
      }
      out += ",";
    }
    return out + "]";
  }

  /// The steps, then what Finish gives out.
  static std::string Run(AnswerStream& stream, const Ids& ids) {
    std::string out;
    bool goes_on = true;
    for (size_t i = 0; i < ids.size() && goes_on; ++i) {
      AnswerDelta delta;
      goes_on = stream.Feed(MakeToken(ids[i], i), delta);
      out += ShowDelta(delta) + (goes_on ? " " : " stop ");
    }
    AnswerDelta rest;
    stream.Finish(rest);
    return out + ShowDelta(rest);
  }

  std::string RunText(const Ids& ids, const std::vector<std::string>& stop = {}) const {
    TextAnswerStream stream = TextStream(stop);
    return Run(stream, ids);
  }

  ChatRequest chat;
};

TEST_F(AnswerStreamTest, TokensComeWithTheirText) {
  EXPECT_EQ(RunText(Bytes("ab")), "a[a,] b[b,] .");
  // A character of three tokens: its text comes with all of them.
  EXPECT_EQ(RunText(Bytes("\xE4\xB8\x96!")), ". . \xE4\xB8\x96[<e4>,<b8>,<96>,] ![!,] .");
  EXPECT_EQ(RunText(Bytes("\xE4\xB8")), ". . \uFFFD[<e4>,<b8>,]");
  EXPECT_EQ(RunText(Bytes("\xE4!")), ". \uFFFD![<e4>,!,] .");
}

TEST_F(AnswerStreamTest, StopStringsHoldBackAndDrop) {
  EXPECT_EQ(RunText(Bytes("axyb"), {"xyz"}), "a[a,] . . xyb[x,y,b,] .");
  EXPECT_EQ(RunText(Bytes("axyzb"), {"xyz"}), "a[a,] . . . stop .");
  EXPECT_EQ(RunText(Bytes("ax"), {"xyz"}), "a[a,] . x[x,]");
  TextAnswerStream stream = TextStream({"b"});
  EXPECT_EQ(Run(stream, Bytes("ab")), "a[a,] . stop .");
  AnswerDelta delta;
  EXPECT_FALSE(stream.Feed(MakeToken('c', 2), delta));
  EXPECT_TRUE(delta.empty());
  EXPECT_EQ(stream.answer().content, "a");
  EXPECT_EQ(stream.FinishName(FinishReason::kStop), "stop");
}

TEST_F(AnswerStreamTest, ATokenThatIsPartlySentCounts) {
  const Ids ids = *tokenizer.Encode(" the");
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(RunText(ids, {"he"}), " t[ the,] stop .");
}

TEST_F(AnswerStreamTest, SpecialTokensAreNoText) {
  const Ids ids = {'a', *tokenizer.SpecialId("[EOS]"), -1, 1 << 30, 'b'};
  EXPECT_EQ(RunText(ids), "a[a,] . . . b[b,] .");
}

TEST_F(AnswerStreamTest, OffsetsCountCharacters) {
  TextAnswerStream stream = TextStream();
  Run(stream, Bytes("a\xE4\xB8\x96"
                    "b\xFF"
                    "c"));
  std::vector<int64_t> offsets;
  for (const AnswerToken& token : stream.tokens()) offsets.push_back(token.text_offset);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 1, 1, 1, 2, 3, 4}));
  EXPECT_EQ(stream.answer().content,
            "a\u4E16"
            "b\uFFFD"
            "c");
}

TEST_F(AnswerStreamTest, OnlyTheResponseHasTokens) {
  ChatAnswerStream stream = ChatStream();
  const Ids ids = Markup(
      "a<0><1><2></think><response>b<0><1><2></response><tools><call tool=\"f\">"
      "<argument key=\"k\" type=\"string\">v</argument></call></tools>");
  Run(stream, ids);
  EXPECT_EQ(ShowAnswer(stream.answer()), "think(a\u4E16) response(b\u4E16) f{\"k\": \"v\"}");
  std::string bytes;
  for (const AnswerToken& token : stream.tokens()) bytes += token.chosen.bytes;
  EXPECT_EQ(bytes, "b\u4E16");
  EXPECT_EQ(stream.reasoning_tokens(), 4);
  EXPECT_EQ(stream.completion_tokens(), std::ssize(ids));
  EXPECT_EQ(stream.FinishName(FinishReason::kStop), "tool_calls");
  EXPECT_EQ(stream.FinishName(FinishReason::kLength), "length");
  EXPECT_EQ(stream.FinishName(FinishReason::kCancelled), "cancelled");
}

TEST_F(AnswerStreamTest, TagsThatTurnOutToBeTextKeepTheirTokens) {
  const Ids open = {markers.close, 't', 'h', 'i', 'n', 'g', 'x', markers.end_of_message};
  ChatRequest no_thinking = chat;
  no_thinking.thinking = false;
  ChatAnswerStream stream(tokenizer, markers, no_thinking, *StopMatcher::Create({}));
  EXPECT_EQ(Run(stream, open), ". . . . . thing[t,h,i,n,g,] x[x,] . .");
}

TEST_F(AnswerStreamTest, CutCallsAreNoCalls) {
  ChatAnswerStream stream = ChatStream();
  Run(stream, Markup("</think><tools><call tool=\"f\"><argument key=\"k\" type=\"string\">v"));
  EXPECT_EQ(stream.FinishName(FinishReason::kStop), "stop");
  EXPECT_FALSE(stream.answer().tool_calls.at(0).complete);
}

/// What must hold whatever the ids are.
TEST_F(AnswerStreamTest, DeltasJoinedAreTheAnswerOnRandomIds) {
  const AnswerIds source(tokenizer, markers);
  Random random(7, 0);
  int64_t stopped = 0;
  int64_t calls = 0;
  int64_t tokens = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Ids ids = source.Make(random);
    const bool has_stop = random.NextBelow(3) == 0;
    const std::vector<std::string> stop = {has_stop ? "st" : "stop here", "1\u4E16"};
    ChatRequest request;
    request.thinking = random.NextBelow(2) == 0;
    const bool is_chat = random.NextBelow(3) > 0;
    ChatAnswerStream chat_stream(tokenizer, markers, request, *StopMatcher::Create(stop));
    TextAnswerStream text_stream(tokenizer, *StopMatcher::Create(stop));
    AnswerStream& stream = is_chat ? static_cast<AnswerStream&>(chat_stream) : text_stream;
    ParsedAnswer joined;
    std::vector<AnswerToken> joined_tokens;
    const auto take = [&](const AnswerDelta& delta) {
      bool has_content = false;
      for (const XtmlEvent& event : delta.events) {
        AddXtmlEvent(event, joined);
        has_content |= event.kind == XtmlEvent::Kind::kContent;
        EXPECT_EQ(FindInvalidUtf8(event.text), -1);
      }
      EXPECT_TRUE(has_content || delta.tokens.empty());
      joined_tokens.insert(joined_tokens.end(), delta.tokens.begin(), delta.tokens.end());
    };
    bool goes_on = true;
    for (size_t at = 0; at < ids.size() && goes_on; ++at) {
      AnswerDelta delta;
      goes_on = stream.Feed(MakeToken(ids[at], at), delta);
      take(delta);
    }
    AnswerDelta rest;
    stream.Finish(rest);
    take(rest);
    const std::string context = fmt::format("case {}: {}", i, fmt::join(ids, ","));
    ASSERT_EQ(joined, stream.answer()) << context;
    ASSERT_EQ(joined_tokens, stream.tokens()) << context;
    // Each token once, in order.
    ASSERT_TRUE(std::ranges::is_sorted(joined_tokens, [](const auto& a, const auto& b) {
      return a.chosen.log_prob > b.chosen.log_prob;
    })) << context;
    ASSERT_EQ(joined.content.find(stop[0]), std::string::npos) << context;
    if (goes_on && is_chat) {
      const XtmlParserOptions options{.start = request.thinking ? XtmlChannel::kThink
                                                                : XtmlChannel::kResponse};
      ASSERT_EQ(joined, ParseXtml(tokenizer, markers, options, ids)) << context;
    }
    stopped += goes_on ? 0 : 1;
    calls += std::ssize(CompleteCalls(joined));
    tokens += std::ssize(joined_tokens);
  }
  // The cases are not all empty.
  EXPECT_GT(stopped, 500);
  EXPECT_GT(calls, 500);
  EXPECT_GT(tokens, 20'000);
}

/// Without markup nothing may be lost: the tokens' bytes are the text.
TEST_F(AnswerStreamTest, TokensJoinedAreTheText) {
  Random random(8, 0);
  for (int i = 0; i < 5'000; ++i) {
    Ids ids;
    for (uint64_t left = random.NextBelow(30); left > 0; --left) {
      const bool is_byte = random.NextBelow(3) == 0;
      ids.push_back(
          static_cast<int32_t>(is_byte ? 128 + random.NextBelow(128) : random.NextBelow(1500)));
    }
    ChatRequest request;
    request.thinking = false;
    ChatAnswerStream chat_stream(tokenizer, markers, request, *StopMatcher::Create({"\u0416"}));
    TextAnswerStream text_stream = TextStream({"\u0416"});
    for (AnswerStream* stream :
         {static_cast<AnswerStream*>(&chat_stream), static_cast<AnswerStream*>(&text_stream)}) {
      const bool stopped = Run(*stream, ids).find("stop") != std::string::npos;
      std::string bytes;
      for (const AnswerToken& token : stream->tokens()) bytes += token.chosen.bytes;
      Utf8Stream utf8;
      std::string text = utf8.Feed(bytes);
      text += utf8.Finish();
      if (!stopped) {
        ASSERT_EQ(stream->tokens().size(), ids.size());
        ASSERT_EQ(text, stream->answer().content) << fmt::format("{}", fmt::join(ids, ","));
      }
    }
    ASSERT_EQ(chat_stream.answer(), text_stream.answer()) << fmt::format("{}", fmt::join(ids, ","));
    ASSERT_EQ(chat_stream.tokens().size(), text_stream.tokens().size())
        << fmt::format("{}", fmt::join(ids, ","));
  }
}

}  // namespace
}  // namespace k3::server
