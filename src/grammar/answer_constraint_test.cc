#include <gtest/gtest.h>

#include "grammar/answer_grammar.h"
#include "grammar/grammar_test_util.h"
#include "text/xtml_parser.h"
#include "text/xtml_renderer.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

constexpr std::string_view kTools = R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
      "unit": {"enum": ["celsius", "cel", "fahrenheit"]}, "tags": {"type": "array", "items":
      {"type": "string"}, "maxItems": 2}, "code": {"type": "string", "minLength": 2,
      "maxLength": 3}, "any": {}, "maybe": {"type": ["number", "null"]}},
    "required": ["city", "days"], "additionalProperties": false}}},
  {"type": "function", "function": {"name": "a \"b\" & c", "parameters": {"type": "object",
    "properties": {"k&\"": {"type": "object"}}, "required": ["k&\""]}}},
  {"type": "function", "function": {"name": "now"}},
  {"type": "function", "function": {"name": "free", "parameters": {"type": "object"}}}
])";

class AnswerConstraintTest : public testing::Test {
 protected:
  AnswerConstraintTest() : AnswerConstraintTest(ReadNanoTokenizer()) {}
  explicit AnswerConstraintTest(Tokenizer made) : tokenizer(std::move(made)) {}

  static ChatRequest Request(std::string_view options) {
    JsonValue json = Json(options);
    json.members()->emplace_back("messages",
                                 Json(R"([{"role": "user", "content": "What is it?"}])"));
    if (json.Find("tools") != nullptr) *json.members()->begin() = {"tools", Json(kTools)};
    Result<ChatRequest> request = ParseChatRequest(json, "request");
    EXPECT_TRUE(request.ok()) << request.status().ToString();
    return std::move(request).value();
  }

  std::unique_ptr<TokenConstraint> Make(const ChatRequest& request, bool parallel = true) const {
    const auto grammar =
        AnswerGrammar::Compile(vocabulary, request, {.parallel_tool_calls = parallel});
    EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
    return *grammar == nullptr ? nullptr : MakeConstraint(*grammar);
  }

  /// Markup in short: `<think>` and `</think>` stand for whole tags in the renderer's ids.
  Ids Markup(std::string_view text) const {
    Ids ids;
    while (!text.empty()) {
      const size_t end = text.front() == '<' ? text.find('>') + 1 : text.find('<');
      const std::string_view part = text.substr(0, end);
      text.remove_prefix(part.size());
      if (part == "<end>") {
        ids.push_back(markers.end_of_message);
      } else if (part.front() == '<') {
        const bool closes = part[1] == '/';
        ids.push_back(closes ? markers.close : markers.open);
        AddTag(part.substr(closes ? 2 : 1, part.size() - (closes ? 3 : 2)), ids);
        ids.push_back(markers.sep);
      } else {
        Add(part, ids);
      }
    }
    return ids;
  }

  void Add(std::string_view text, Ids& ids) const {
    const Ids more = vocabulary.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  /// A tag's inside in the parts that the renderer encodes alone.
  void AddTag(std::string_view inside, Ids& ids) const {
    const size_t name = std::min(inside.find(' '), inside.size());
    Add(inside.substr(0, name), ids);
    inside.remove_prefix(name);
    while (!inside.empty()) {
      const size_t equals = inside.find("=\"");
      const size_t quote = inside.find('"', equals + 2);
      Add(inside.substr(0, equals), ids);
      Add("=\"", ids);
      if (quote > equals + 2) Add(inside.substr(equals + 2, quote - equals - 2), ids);
      Add("\"", ids);
      inside.remove_prefix(quote + 1);
    }
  }

  /// How many ids of `markup` are allowed, or "all" and whether the answer is done.
  std::string Follow(TokenConstraint& constraint, std::string_view markup) const {
    const Ids ids = Markup(markup);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::span<const uint32_t> allowed = constraint.Allowed();
      if (!allowed.empty() && !IsAllowed(allowed, ids[i])) {
        return "stops at " + *tokenizer.Decode(std::span(ids).subspan(i));
      }
      constraint.Accept(ids[i]);
    }
    return constraint.done() ? "done" : "open";
  }

  Ids Walk(TokenConstraint& constraint, int64_t steps, Random& random, int64_t steps_max) const;

  const Tokenizer tokenizer;
  const XtmlMarkers markers = *XtmlMarkers::Find(tokenizer);
  const TokenVocabulary vocabulary = *TokenVocabulary::Create(tokenizer);
};

/// `steps` ids at random, then what ends the answer soonest.
Ids AnswerConstraintTest::Walk(TokenConstraint& constraint, int64_t steps, Random& random,
                               int64_t steps_max) const {
  Ids ids;
  while (!constraint.done()) {
    if (std::ssize(ids) >= steps_max) {
      ADD_FAILURE() << "no end of " << *tokenizer.Decode(ids);
      return ids;
    }
    const std::span<const uint32_t> mask = constraint.Allowed();
    Ids allowed;
    std::string bytes;
    for (int32_t id = 0; id < vocabulary.vocab_size(); ++id) {
      if (!mask.empty() && !IsAllowed(mask, id)) continue;
      allowed.push_back(id);
      if (id < tokenizer.ranks_count() && tokenizer.TokenBytes(id).size() == 1) {
        bytes += tokenizer.TokenBytes(id);
      }
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "trapped behind " << *tokenizer.Decode(ids);
      return ids;
    }
    int32_t id = -1;
    const bool may_close = std::ranges::count(allowed, markers.close) > 0;
    if (mask.empty()) {
      // Free text, in which structure has to be met now and then.
      const std::array<int32_t, 4> kStructure = {markers.open, markers.close,
                                                 markers.end_of_message, markers.sep};
      id = random.NextBelow(3) == 0 ? kStructure[random.NextBelow(4)]
                                    : allowed[random.NextBelow(allowed.size())];
      if (std::ssize(ids) > steps) id = markers.end_of_message;
    } else if (std::ssize(ids) < steps && random.NextBelow(3) > 0) {
      id = allowed[random.NextBelow(allowed.size())];
    } else if (may_close) {
      id = markers.close;
    } else if (bytes.empty()) {
      id = allowed.front();
    } else {
      const uint8_t byte = PickClosing(bytes);
      for (const int32_t other : allowed) {
        if (other >= tokenizer.ranks_count()) continue;
        const std::string_view token = tokenizer.TokenBytes(other);
        if (token.size() == 1 && static_cast<uint8_t>(token[0]) == byte) id = other;
      }
    }
    constraint.Accept(id);
    ids.push_back(id);
  }
  return ids;
}

TEST_F(AnswerConstraintTest, RequestsWithoutConstraintsHaveNone) {
  EXPECT_NE(Make(Request("{}")), nullptr);
  EXPECT_NE(Make(Request(R"({"response_format": {"type": "text"}})")), nullptr);
  EXPECT_NE(Make(Request(R"({"tools": 0})")), nullptr);
  EXPECT_NE(Make(Request(R"({"tool_choice": "none"})")), nullptr);
}

TEST_F(AnswerConstraintTest, JsonIsAllThatTheResponseMayBe) {
  const ChatRequest request = Request(R"({"response_format": {"type": "json_object"}})");
  constexpr std::string_view kThought = "I see.</think><response>";
  EXPECT_EQ(Follow(*Make(request), "I see.</think><response>{\"a\": 1}</response></message><end>"),
            "done");
  EXPECT_EQ(Follow(*Make(request), "</think><response>[1]"), "stops at [1]");
  EXPECT_EQ(Follow(*Make(request), "</think><response></response>"),
            "stops at <|close|>response<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "</think><response>{\"a\": 1</response>"),
            "stops at <|close|>response<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "</think><response>{}</response><tools>"),
            "stops at <|open|>tools<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "</think><tools>"), "stops at tools<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "hm<end>"), "stops at <|end_of_msg|>");
  EXPECT_EQ(Follow(*Make(request), kThought), "open");
  const ChatRequest direct =
      Request(R"({"thinking": false, "response_format": {"type": "json_object"}})");
  EXPECT_EQ(Follow(*Make(direct), "{}</response></message><end>"), "done");
  const ChatRequest both = Request(R"({"tools": 0, "response_format": {"type": "json_object"}})");
  EXPECT_EQ(Follow(*Make(both), "</think><response>{}</response><tools>"),
            "stops at <|open|>tools<|sep|>");
  EXPECT_EQ(Follow(*Make(both), "</think><response></response></message>"),
            "stops at <|close|>message<|sep|>");
  EXPECT_EQ(Follow(*Make(both),
                   "</think><response></response><tools><call tool=\"now\" index=\"1\"></call>"
                   "</tools></message><end>"),
            "done");
}

TEST_F(AnswerConstraintTest, RequiredCallsHaveToCome) {
  const ChatRequest request = Request(R"({"tools": 0, "tool_choice": "required"})");
  constexpr std::string_view kStart = "Well.</think><response>Yes.</response>";
  const auto follow = [&](std::string_view markup, bool parallel = true) {
    const auto constraint = Make(request, parallel);
    return Follow(*constraint, fmt::format("{}{}", kStart, markup));
  };
  EXPECT_EQ(follow("</message>"), "stops at <|close|>message<|sep|>");
  EXPECT_EQ(follow("<tools></tools>"), "stops at <|close|>tools<|sep|>");
  EXPECT_EQ(follow("<tools><call tool=\"now\" index=\"1\"></call></tools></message><end>"), "done");
  EXPECT_EQ(follow("<tools><call tool=\"now\" index=\"2\">"), "stops at 2\"<|sep|>");
  EXPECT_EQ(follow("<tools><call tool=\"nowhere\" index=\"1\">").substr(0, 8), "stops at");
  EXPECT_EQ(follow("<tools><call tool=\"weather\" index=\"1\"></call>"),
            "stops at <|close|>call<|sep|>");
  constexpr std::string_view kCity = "<argument key=\"city\" type=\"string\">Oslo</argument>";
  constexpr std::string_view kDays = "<argument key=\"days\" type=\"number\">3</argument>";
  const std::string call =
      fmt::format("<tools><call tool=\"weather\" index=\"1\">{}{}", kDays, kCity);
  EXPECT_EQ(follow(call + "</call></tools></message><end>"), "done");
  EXPECT_EQ(follow(call + std::string(kCity)),
            "stops at city\" type=\"string\"<|sep|>Oslo<|close|>argument<|sep|>");
  EXPECT_EQ(follow(call + "</call><call tool=\"now\" index=\"2\"></call></tools></message><end>"),
            "done");
  EXPECT_EQ(Follow(*Make(request, false),
                   std::string(kStart) + call + "</call><call tool=\"now\" index=\"2\">"),
            "stops at <|open|>call tool=\"now\" index=\"2\"<|sep|>");
  EXPECT_EQ(follow("<tools><call tool=\"weather\" index=\"1\"><argument key=\"days\" "
                   "type=\"number\">x"),
            "stops at x");
  EXPECT_EQ(follow("<tools><call tool=\"weather\" index=\"1\"><argument key=\"unit\" "
                   "type=\"string\">cel</argument>"),
            "open");
}

TEST_F(AnswerConstraintTest, ANamedToolIsTheOnlyOne) {
  const ChatRequest request =
      Request(R"({"tools": 0, "tool_choice": {"type": "function", "function": {"name": "now"}}})");
  EXPECT_EQ(Follow(*Make(request),
                   "</think><response></response><tools><call tool=\"weather\" "
                   "index=\"1\">")
                .substr(0, 16),
            "stops at weather");
  EXPECT_EQ(Follow(*Make(request),
                   "</think><response></response><tools><call tool=\"now\" "
                   "index=\"1\"></call></tools></message><end>"),
            "done");
}

TEST_F(AnswerConstraintTest, AutoMasksFromTheToolsOn) {
  const ChatRequest request = Request(R"({"tools": 0})");
  const auto constraint = Make(request);
  EXPECT_EQ(Follow(*constraint, "Free"), "open");
  EXPECT_TRUE(constraint->Allowed().empty());
  EXPECT_EQ(Follow(*constraint, "</think><response>Hi"), "open");
  EXPECT_TRUE(constraint->Allowed().empty());
  EXPECT_EQ(Follow(*constraint, "</response>"), "open");
  EXPECT_FALSE(constraint->Allowed().empty());
  EXPECT_EQ(Follow(*constraint,
                   "<tools><call tool=\"now\" index=\"1\"></call></tools></message>"
                   "<end>"),
            "done");
  EXPECT_EQ(Follow(*Make(request), "</think><response>Hi</response></message><end>"), "done");
  EXPECT_EQ(Follow(*Make(request),
                   "hm<tools><call tool=\"now\" index=\"1\"></call></tools>"
                   "</message><end>"),
            "done");
  EXPECT_EQ(Follow(*Make(request), "<call tool=\"other\">"), "stops at call tool=\"other\"<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "hm<end>"), "done");
}

TEST_F(AnswerConstraintTest, NoneKeepsTheToolsClosed) {
  const ChatRequest request = Request(R"({"tools": 0, "tool_choice": "none"})");
  EXPECT_EQ(Follow(*Make(request), "hm<tools>"), "stops at tools<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "</think><response>a</response><tools>"),
            "stops at <|open|>tools<|sep|>");
  EXPECT_EQ(Follow(*Make(request), "</think><response>a</response></message><end>"), "done");
}

TEST_F(AnswerConstraintTest, WhatWasNotAllowedEndsTheConstraint) {
  const auto constraint = Make(Request(R"({"response_format": {"type": "json_object"}})"));
  constraint->Accept(markers.sep);
  EXPECT_TRUE(constraint->Allowed().empty());
  EXPECT_FALSE(constraint->done());
}

/// The renderer's ids of an answer are allowed, one by one: the markup is the same.
TEST_F(AnswerConstraintTest, TheRenderersAnswerIsAllowed) {
  ChatRequest request = Request(R"({"tools": 0, "tool_choice": "required"})");
  ChatMessage answer = {.role = ChatRole::kAssistant, .content = {"Let me see."}};
  answer.reasoning = "Weather? \"quotes\" & <|open|>";
  answer.tool_calls.resize(3);
  answer.tool_calls[0].name = "weather";
  K3_CHECK(SetToolArguments(R"({"unit": "celsius", "city": "Tromsø", "tags": ["a", "b"],
      "any": {"x": [1.5, null]}, "days": -3, "code": "日本", "maybe": null})",
                            answer.tool_calls[0])
               .ok(),
           "arguments");
  answer.tool_calls[1].name = "a \"b\" & c";
  K3_CHECK(SetToolArguments(R"({"k&\"": {}})", answer.tool_calls[1]).ok(), "arguments");
  answer.tool_calls[2].name = "free";
  K3_CHECK(SetToolArguments(R"({"one": 1, "two words": "t"})", answer.tool_calls[2]).ok(),
           "arguments");
  const auto constraint = Make(request);
  const Ids prompt = *EncodeXtml(tokenizer, *RenderXtml(request));
  request.messages.push_back(answer);
  request.add_generation_prompt = false;
  // The tool choice comes behind the history, so that it is left out here.
  request.tool_choice = ToolChoice::kAuto;
  const Ids whole = *EncodeXtml(tokenizer, *RenderXtml(request));
  const Ids opening = Markup("<think>");
  const auto start = std::ranges::search(std::ranges::subrange(whole.rbegin(), whole.rend()),
                                         std::ranges::subrange(opening.rbegin(), opening.rend()));
  for (auto id = start.begin().base(); id != whole.end(); ++id) {
    const std::span<const uint32_t> allowed = constraint->Allowed();
    ASSERT_TRUE(!allowed.empty() && IsAllowed(allowed, *id)) << *tokenizer.Decode({{*id}});
    constraint->Accept(*id);
  }
  EXPECT_TRUE(constraint->done());
}

void CheckCalls(const std::vector<ParsedToolCall>& calls) {
  const JsonValue tools = Json(kTools);
  for (const ParsedToolCall& call : calls) {
    ASSERT_TRUE(call.complete) << call.name << call.arguments;
    const JsonValue* function = nullptr;
    for (const JsonValue& tool : *tools.items()) {
      const JsonValue* candidate = tool.Find("function");
      if (*candidate->Find("name")->string() == call.name) function = candidate;
    }
    ASSERT_NE(function, nullptr) << call.name;
    const JsonValue arguments = Json(call.arguments);
    const JsonValue* parameters = function->Find("parameters");
    if (parameters == nullptr) {
      ASSERT_EQ(call.arguments, "{}");
    } else {
      ASSERT_TRUE(Validator(*parameters).Check(*parameters, arguments)) << call.arguments;
    }
  }
}

TEST_F(AnswerConstraintTest, EveryWalkEndsInWhatTheRequestAsksFor) {
  Random random(6, 0);
  const std::vector<std::string> formats = {"", R"("response_format": {"type": "json_object"},)"};
  for (int i = 0; i < 400; ++i) {
    const size_t which = random.NextBelow(TestSchemas().size() + 2);
    const std::string format =
        which < 2
            ? formats[which]
            : fmt::format(R"("response_format": {{"type": "json_schema", "json_schema":
                      {{"name": "n", "schema": {}}}}},)",
                          TestSchemas()[which - 2] == "true" ? "{}" : TestSchemas()[which - 2]);
    constexpr std::array<std::string_view, 5> kChoices = {
        R"("auto")", R"("none")", R"("required")",
        R"({"type": "function", "function": {"name": "weather"}})",
        R"({"type": "function", "function": {"name": "free"}})"};
    const size_t choice = random.NextBelow(kChoices.size());
    const bool thinking = random.NextBelow(2) == 0;
    const bool parallel = random.NextBelow(2) == 0;
    const ChatRequest request =
        Request(fmt::format(R"({{"tools": 0, {} "thinking": {}, "tool_choice": {}}})", format,
                            thinking, kChoices[choice]));
    const auto constraint = Make(request, parallel);
    const Ids ids = Walk(*constraint, static_cast<int64_t>(random.NextBelow(150)), random, 4000);
    ASSERT_FALSE(HasFailure());
    const JsonValue tools = Json(kTools);
    const XtmlParserOptions options = {
        .start = thinking ? XtmlChannel::kThink : XtmlChannel::kResponse, .tools = &tools};
    const ParsedAnswer answer = ParseXtml(tokenizer, markers, options, ids);
    SCOPED_TRACE(*tokenizer.Decode(ids));
    if (which > 0 && (!answer.content.empty() || answer.tool_calls.empty())) {
      const Result<JsonValue> value = ParseJson(answer.content, "content");
      ASSERT_TRUE(value.ok()) << value.status().ToString();
      const JsonValue schema =
          which < 2 ? Json(R"({"type": "object"})") : Json(TestSchemas()[which - 2]);
      ASSERT_TRUE(Validator(schema).Check(schema, *value)) << answer.content;
    }
    if (choice >= 2) {
      ASSERT_FALSE(answer.tool_calls.empty());
    }
    if (choice == 1) {
      ASSERT_TRUE(answer.tool_calls.empty());
    }
    if (choice >= 3) {
      ASSERT_EQ(answer.tool_calls[0].name, choice == 3 ? "weather" : "free");
    }
    if (!parallel) {
      ASSERT_LE(answer.tool_calls.size(), 1u);
    }
    CheckCalls(answer.tool_calls);
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(AnswerConstraintTest, BadRequestsAreRefusedByName) {
  const auto refusal = [&](std::string_view options, std::string_view tools) {
    ChatRequest request = Request(options);
    if (!tools.empty()) request.tools = Json(tools);
    const auto grammar = AnswerGrammar::Compile(vocabulary, request, {});
    return grammar.ok() ? "" : grammar.status().message();
  };
  EXPECT_EQ(refusal(R"({"tool_choice": "required"})", ""),
            "tool_choice: required, but the request declares no tools");
  EXPECT_EQ(refusal(R"({"tools": 0, "tool_choice": {"function": {"name": "x"}}})", ""),
            "tool_choice: expected the name of a tool in tools, found \"x\"");
  EXPECT_EQ(refusal(R"({"response_format": {"type": "json_schema", "json_schema": {"schema":
                {"properties": {"age": {"minimum": 1}}}}}})",
                    ""),
            "response_format.json_schema.schema.properties.age.minimum: not supported in a schema "
            "that constrains the answer; leave it out");
  EXPECT_EQ(refusal("{}", R"([{"function": {"name": "f", "strict": true, "parameters":
                {"properties": {"a": {"format": "date"}}}}}])"),
            "tools[0].function.parameters.properties.a.format: not supported in a schema that "
            "constrains the answer; leave it out");
  EXPECT_EQ(refusal("{}", R"([{"function": {"name": "f", "parameters":
                {"properties": {"a": {"format": "date", "minimum": 1}}}}}])"),
            "");
  EXPECT_EQ(refusal("{}", R"([{"function": {"name": "f", "parameters": {"type": "string"}}}])"),
            "tools[0].function.parameters: expected the schema of an object, found another type");
  EXPECT_EQ(refusal("{}", R"([{"function": {}}])"),
            "tools[0].function.name: expected a name, found none");
}

class ToyConstraintTest : public AnswerConstraintTest {
 protected:
  ToyConstraintTest() : AnswerConstraintTest(MakeTokenizer({})) {}
};

TEST_F(ToyConstraintTest, WalksEndWithAVocabularyOfBytes) {
  Random random(7, 0);
  for (int i = 0; i < 100; ++i) {
    const ChatRequest request = Request(
        fmt::format(R"({{"tools": 0, "tool_choice": "{}"}})", i % 2 == 0 ? "required" : "auto"));
    const auto constraint = Make(request);
    const Ids ids = Walk(*constraint, static_cast<int64_t>(random.NextBelow(400)), random, 8000);
    ASSERT_FALSE(HasFailure());
    const JsonValue tools = Json(kTools);
    const ParsedAnswer answer = ParseXtml(tokenizer, markers, {.tools = &tools}, ids);
    SCOPED_TRACE(*tokenizer.Decode(ids));
    if (i % 2 == 0) {
      ASSERT_FALSE(answer.tool_calls.empty());
    }
    CheckCalls(answer.tool_calls);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace k3
