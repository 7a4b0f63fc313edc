// What the renderer writes the parser takes apart again, for any answer.

#include "text/python_json.h"
#include "text/random_text.h"
#include "text/xtml_renderer.h"
#include "text/xtml_test_util.h"

namespace k3 {
namespace {

JsonValue RandomValue(Random& random, int depth) {
  switch (random.NextBelow(depth > 0 ? 8 : 6)) {
    case 0:
      return JsonValue();
    case 1:
      return JsonValue(random.NextBelow(2) == 0);
    case 2:
      return JsonValue(static_cast<int64_t>(random.NextUint64()));
    case 3:
      return JsonValue(random.NextDouble() * 1e20);
    case 4:
      return JsonValue(JsonBigInteger{"123456789012345678901234567890"});
    case 5:
      return JsonValue(RandomText(random, static_cast<int64_t>(random.NextBelow(20))));
    case 6: {
      JsonValue::Items items;
      for (uint64_t i = random.NextBelow(4); i > 0; --i) {
        items.push_back(RandomValue(random, depth - 1));
      }
      return JsonValue(std::move(items));
    }
    default: {
      JsonValue::Members members;
      for (uint64_t i = random.NextBelow(4); i > 0; --i) {
        members.emplace_back("key " + std::to_string(i), RandomValue(random, depth - 1));
      }
      return JsonValue(std::move(members));
    }
  }
}

ChatMessage RandomAnswer(Random& random) {
  ChatMessage message{.role = ChatRole::kAssistant};
  message.reasoning = RandomText(random, static_cast<int64_t>(random.NextBelow(40)));
  message.content = {RandomText(random, static_cast<int64_t>(random.NextBelow(40)))};
  for (uint64_t i = random.NextBelow(4); i > 0; --i) {
    ToolCall call{.name = "f " + RandomText(random, 6)};
    for (uint64_t key = random.NextBelow(4); key > 0; --key) {
      // A number in front, so that no key stands twice.
      call.arguments.emplace_back(std::to_string(key) + RandomText(random, 6),
                                  RandomValue(random, 3));
    }
    if (random.NextBelow(8) == 0) call.raw_arguments = "{" + RandomText(random, 20);
    message.tool_calls.push_back(std::move(call));
  }
  return message;
}

class XtmlRoundtripTest : public XtmlTest {
 protected:
  XtmlRoundtripTest() : XtmlTest(K3_SOURCE_DIR "/models/kjv") {}
};

TEST_F(XtmlRoundtripTest, AnAnswerComesBackAsItWas) {
  for (uint64_t i = 0; i < 3000; ++i) {
    Random random(3, i);
    ChatRequest request{.messages = {RandomAnswer(random)},
                        .thinking = random.NextBelow(4) != 0,
                        .effort = std::nullopt,
                        .add_generation_prompt = false};
    const ChatMessage& message = request.messages.front();
    const Result<std::vector<XtmlSegment>> segments = RenderXtml(request);
    ASSERT_TRUE(segments.ok());
    const Result<Ids> ids = EncodeXtml(tokenizer, *segments);
    ASSERT_TRUE(ids.ok());
    // As a whole message, and as a model writes it: from the first channel on.
    const auto behind_header = std::find(ids->begin(), ids->end(), markers.sep) + 1;
    const auto first_sep = std::find(behind_header, ids->end(), markers.sep) + 1;
    const XtmlParserOptions options{.start = request.thinking ? XtmlChannel::kThink
                                                              : XtmlChannel::kResponse};
    const ParsedAnswer answer = ParseXtml(tokenizer, markers, options, *ids);
    EXPECT_EQ(answer, ParseXtml(tokenizer, markers, options, Ids(first_sep, ids->end())));

    const bool has_reasoning = request.thinking && !IsBlank(message.reasoning);
    EXPECT_EQ(answer.reasoning, has_reasoning ? message.reasoning : "");
    EXPECT_EQ(answer.content, message.content.front());
    ASSERT_EQ(answer.tool_calls.size(), message.tool_calls.size());
    for (size_t call = 0; call < answer.tool_calls.size(); ++call) {
      const ToolCall& expected = message.tool_calls[call];
      EXPECT_EQ(answer.tool_calls[call].name, expected.name);
      EXPECT_TRUE(answer.tool_calls[call].complete);
      EXPECT_EQ(answer.tool_calls[call].arguments,
                expected.raw_arguments.value_or(DumpJson(JsonValue(expected.arguments))));
    }
  }
}

}  // namespace
}  // namespace k3
