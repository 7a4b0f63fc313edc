// XtmlParser on what the renderer writes, on random ids, and on input made to be slow.

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "text/random_text.h"
#include "text/xtml_renderer.h"
#include "text/xtml_test_util.h"

namespace k3 {
namespace {

class XtmlParserRandomTest : public XtmlTest {
 protected:
  XtmlParserRandomTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {}
};

/// Any JSON value, as a request may hold it.
JsonValue RandomJson(Random& random, int depth) {
  const auto text = [&] { return RandomText(random, static_cast<int64_t>(random.NextBelow(8))); };
  switch (random.NextBelow(depth > 0 ? 8 : 6)) {
    case 0:
      return JsonValue();
    case 1:
      return JsonValue(random.NextBelow(2) == 0);
    case 2:
      return JsonValue(static_cast<int64_t>(random.NextUint64()));
    case 3:
      return JsonValue(
          std::ldexp(random.NextDouble(), static_cast<int>(random.NextBelow(99)) - 50));
    case 4:
      return JsonValue(JsonBigInteger{"-123456789012345678901234567890"});
    case 5:
      return JsonValue(text());
    case 6: {
      JsonValue::Items items;
      for (uint64_t left = random.NextBelow(4); left > 0; --left) {
        items.push_back(RandomJson(random, depth - 1));
      }
      return JsonValue(std::move(items));
    }
    default: {
      JsonValue::Members members;
      for (uint64_t left = random.NextBelow(4); left > 0; --left) {
        members.emplace_back(fmt::format("{}{}", left, text()), RandomJson(random, depth - 1));
      }
      return JsonValue(std::move(members));
    }
  }
}

ChatMessage RandomAnswer(Random& random) {
  ChatMessage message;
  message.role = ChatRole::kAssistant;
  const auto text = [&] { return RandomText(random, static_cast<int64_t>(random.NextBelow(20))); };
  // A blank reasoning would be rendered as an empty one.
  if (random.NextBelow(4) > 0) message.reasoning = "." + text();
  message.content = {text(), text()};
  for (uint64_t left = random.NextBelow(4); left > 0; --left) {
    ToolCall call;
    call.name = "f" + text();
    if (random.NextBelow(8) == 0) {
      call.raw_arguments = "{" + text();
    } else {
      for (uint64_t i = random.NextBelow(4); i > 0; --i) {
        call.arguments.emplace_back(fmt::format("{}{}", text(), i), RandomJson(random, 2));
      }
    }
    message.tool_calls.push_back(std::move(call));
  }
  return message;
}

Ids Render(const Tokenizer& tokenizer, const ChatMessage& message, bool thinking) {
  ChatRequest request;
  request.messages = {message};
  request.thinking = thinking;
  request.effort.reset();
  request.add_generation_prompt = false;
  return *EncodeXtml(tokenizer, *RenderXtml(request));
}

ParsedAnswer ExpectedAnswer(const ChatMessage& message) {
  ParsedAnswer answer{.reasoning = message.reasoning};
  for (const std::string& part : message.content) answer.content += part;
  for (const ToolCall& call : message.tool_calls) {
    answer.tool_calls.push_back(
        {.name = call.name,
         .arguments = call.raw_arguments.value_or(DumpJson(JsonValue(call.arguments))),
         .complete = true});
  }
  return answer;
}

TEST_F(XtmlParserRandomTest, ReadsWhatTheRendererWrites) {
  Random random(21, 0);
  for (int i = 0; i < 3000; ++i) {
    ChatMessage message = RandomAnswer(random);
    const bool thinking = random.NextBelow(4) > 0;
    if (!thinking) message.reasoning.clear();
    const Ids ids = Render(tokenizer, message, thinking);
    const ParsedAnswer expected = ExpectedAnswer(message);
    ASSERT_EQ(ParseXtml(tokenizer, markers, {}, ids), expected);
    // What a model writes: all but the message's tag and that of the first channel.
    const auto channel = std::ranges::find(ids, markers.sep) + 1;
    const Ids answer(std::ranges::find(channel, ids.end(), markers.sep) + 1, ids.end());
    const XtmlChannel start = thinking ? XtmlChannel::kThink : XtmlChannel::kResponse;
    ASSERT_EQ(ParseXtml(tokenizer, markers, {.start = start}, answer), expected);
  }
}

/// Ids of any kind, with those of markup far more often than chance would have it.
class IdSource {
 public:
  IdSource(const Tokenizer& tokenizer, const XtmlMarkers& markers)
      : vocab_size_(static_cast<uint64_t>(tokenizer.vocab_size())),
        ranks_count_(tokenizer.ranks_count()) {
    markers_ = {markers.open, markers.open, markers.close, markers.close,
                markers.sep,  markers.sep,  markers.sep,   markers.end_of_message};
    for (const char* piece : {"message",
                              "think",
                              "response",
                              "tools",
                              "call",
                              "argument",
                              "json",
                              "call tool=\"f\"",
                              "argument key=\"a\" type=\"string\"",
                              "argument key=\"b\" type=\"number\"",
                              "argument key=\"s\"",
                              " tool=\"g&amp;\"",
                              " key=\"",
                              " type=\"",
                              "\"",
                              "string\"",
                              "{\"a\": 1}",
                              "[1, 2",
                              "]",
                              "true",
                              "12",
                              "\xE4\xB8\x96",
                              "&quot;",
                              " ",
                              "\\\n",
                              "th"}) {
      pieces_.push_back(*tokenizer.Encode(piece));
    }
    for (int32_t id = 0; id < tokenizer.ranks_count(); ++id) {
      if (tokenizer.TokenBytes(id).find('|') == std::string_view::npos) ordinary_.push_back(id);
    }
  }

  void Append(Random& random, Ids& ids) const {
    const uint64_t kind = random.NextBelow(16);
    if (kind < 7) {
      // The end of the message is rare, since nothing counts behind it.
      const uint64_t choices = random.NextBelow(4) == 0 ? markers_.size() : markers_.size() - 1;
      ids.push_back(markers_[random.NextBelow(choices)]);
    } else if (kind < 12) {
      const Ids& piece = pieces_[random.NextBelow(pieces_.size())];
      ids.insert(ids.end(), piece.begin(), piece.end());
    } else if (kind == 12) {
      ids.push_back(128 + static_cast<int32_t>(random.NextBelow(128)));
    } else if (kind == 13) {
      ids.push_back(static_cast<int32_t>(random.NextBelow(vocab_size_ + 9)) - 4);
      if (IsForbidden(ids.back())) ids.pop_back();
    } else {
      ids.push_back(ordinary_[random.NextBelow(ordinary_.size())]);
    }
  }

  /// An ordinary id that could help to spell a control token.
  bool IsForbidden(int32_t id) const {
    return id >= 0 && id < ranks_count_ && !std::ranges::binary_search(ordinary_, id);
  }

 private:
  uint64_t vocab_size_;
  int64_t ranks_count_;
  Ids markers_;
  std::vector<Ids> pieces_;
  Ids ordinary_;  // ascending
};

/// Drops, doubles, swaps, cuts, replaces or adds a few ids.
void Mutate(const IdSource& source, Random& random, Ids& ids) {
  for (uint64_t left = random.NextBelow(6); left > 0 && ids.size() > 2; --left) {
    const auto at = static_cast<std::ptrdiff_t>(random.NextBelow(ids.size() - 1));
    switch (random.NextBelow(7)) {
      case 0:
        ids.erase(ids.begin() + at);
        break;
      case 1:
        ids.insert(ids.begin() + at, ids[static_cast<size_t>(at)]);
        break;
      case 2:
        std::swap(ids[static_cast<size_t>(at)], ids[random.NextBelow(ids.size())]);
        break;
      case 3:
        if (random.NextBelow(4) == 0) ids.resize(static_cast<size_t>(at));
        break;
      case 4: {
        const auto last = static_cast<std::ptrdiff_t>(random.NextBelow(ids.size()));
        ids.erase(ids.begin() + std::min(at, last), ids.begin() + std::max(at, last));
        break;
      }
      default: {
        Ids more;
        source.Append(random, more);
        ids.insert(ids.begin() + at, more.begin(), more.end());
      }
    }
  }
}

TEST_F(XtmlParserRandomTest, HoldsItsPromisesOnRandomIds) {
  const JsonValue tools = *ParseJson(
      R"([{"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}])",
      "tools");
  const IdSource source(tokenizer, markers);
  Random random(22, 0);
  std::vector<Ids> answers;
  for (int i = 0; i < 500; ++i) {
    ChatMessage message = RandomAnswer(random);
    Ids ids = Render(tokenizer, message, random.NextBelow(4) > 0);
    if (random.NextBelow(2) == 0) ids.erase(ids.begin(), std::ranges::find(ids, markers.sep) + 1);
    std::erase_if(ids, [&](int32_t id) { return source.IsForbidden(id); });
    answers.push_back(std::move(ids));
  }
  constexpr int kSequences = 120'000;
  int64_t complete = 0;
  for (int i = 0; i < kSequences; ++i) {
    Ids ids;
    if (i % 2 == 0) {
      for (uint64_t left = random.NextBelow(40); left > 0; --left) source.Append(random, ids);
    } else {
      ids = answers[random.NextBelow(answers.size())];
      Mutate(source, random, ids);
    }
    const std::vector<size_t> cuts = {random.NextBelow(ids.size() + 1)};
    const XtmlParserOptions options{
        .start = random.NextBelow(2) == 0 ? XtmlChannel::kThink : XtmlChannel::kResponse,
        .tools = random.NextBelow(2) == 0 ? &tools : nullptr};
    ASSERT_EQ(FindXtmlParserFault({tokenizer, markers, options}, ids, cuts), "")
        << fmt::format("sequence {}: {}", i, fmt::join(ids, ","));
    complete += std::ssize(CompleteCalls(ParseXtml(tokenizer, markers, options, ids)));
  }
  std::printf("%d sequences, %lld complete calls\n", kSequences, static_cast<long long>(complete));
  EXPECT_GT(complete, kSequences / 4);
}

// Measured at up to 0.8 s; the bound leaves room for a busy machine and for sanitizers, and a
// quadratic step would take far longer.
TEST_F(XtmlParserRandomTest, HostileInputTakesLinearTime) {
  const auto repeat = [](const Ids& unit, int64_t count) {
    Ids ids;
    for (int64_t i = 0; i < count; ++i) ids.insert(ids.end(), unit.begin(), unit.end());
    return ids;
  };
  const auto join = [](std::initializer_list<Ids> parts) {
    Ids ids;
    for (const Ids& part : parts) ids.insert(ids.end(), part.begin(), part.end());
    return ids;
  };
  const Ids call = Markup("<call tool=\"f\">");
  const Ids before_key = Markup("<|open|>argument key=\"");
  const Ids behind_key = Markup("\" type=\"number\"<|sep|>1");
  const Ids text = repeat(*tokenizer.Encode("In the beginning \"God\" created. "), 330'000);
  Ids many_arguments;
  for (int i = 0; i < 100'000; ++i) {
    many_arguments.insert(many_arguments.end(), before_key.begin(), before_key.end());
    // A token of one byte has its value as id.
    for (const char digit : std::to_string(i)) many_arguments.push_back(digit);
    many_arguments.insert(many_arguments.end(), behind_key.begin(), behind_key.end());
  }
  const std::pair<const char*, Ids> cases[] = {
      {"opening markers", repeat({markers.open}, 1'000'000)},
      {"closing markers", repeat({markers.close}, 1'000'000)},
      {"separators", repeat({markers.sep}, 1'000'000)},
      {"empty tags", repeat({markers.open, markers.sep, markers.close, markers.sep}, 300'000)},
      {"a tag of 10 MB", join({Markup("<|open|>call tool=\""), text})},
      {"an unknown tag of 10 MB", join({{markers.open}, text})},
      {"short unknown tags", repeat(Markup("<|open|>thin<|close|>calls"), 200'000)},
      {"a tag of many attributes",
       join({Markup("<|open|>call"), repeat(Markup(" a=\"\""), 200'000), {markers.sep}})},
      {"a string of 10 MB", join({call, Markup("<argument key=\"a\" type=\"string\">"), text})},
      {"a held value of 10 MB",
       join({call, Markup("<argument key=\"a\" type=\"object\">"), text, Markup("</call>")})},
      {"a deep value",
       join({call, Markup("<argument key=\"a\">"), repeat({'['}, 10'000'000), Markup("</call>")})},
      {"100,000 arguments", join({call, many_arguments, Markup("</call>")})},
      {"100,000 times one argument",
       join({call, repeat(Markup("<argument key=\"a\">1</argument>"), 100'000)})},
      {"100,000 calls", repeat(Markup("<call tool=\"f\"><argument key=\"a\">1</call>"), 100'000)},
      {"100,000 open calls", repeat(call, 100'000)},
      {"halves of characters", repeat({0xE4}, 3'000'000)},
  };
  for (const auto& [name, ids] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const ParsedAnswer answer = ParseXtml(tokenizer, markers, {}, ids);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 20.0) << name;
    std::printf("%s: %zu ids, %.3f s, %zu calls\n", name, ids.size(), seconds,
                answer.tool_calls.size());
  }
}

}  // namespace
}  // namespace k3
