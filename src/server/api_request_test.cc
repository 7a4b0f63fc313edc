#include "server/api_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/limits.h"
#include "server/api_errors.h"

namespace k3::server {
namespace {

constexpr std::string_view kMessages = R"("messages": [{"role": "user", "content": "hi"}])";
constexpr std::string_view kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})";

RequestContext Context() { return {.model = "nano", .vocab_size = 2048}; }

std::string ChatBody(std::string_view fields) {
  return fmt::format("{{{}{}{}}}", kMessages, fields.empty() ? "" : ", ", fields);
}

Result<ChatCompletionRequest> Chat(std::string_view fields) {
  return ParseChatCompletion(ChatBody(fields), Context());
}

Result<TextCompletionRequest> Text(std::string_view fields) {
  return ParseTextCompletion(
      fmt::format(R"({{"prompt": "a"{}{}}})", fields.empty() ? "" : ", ", fields), Context());
}

/// "400 code param: message", or "ok".
std::string Show(const Status& status) {
  if (status.ok()) return "ok";
  const ApiError error = ApiErrorOf(status);
  return fmt::format("{} {} {}| {}", error.http_status, error.code, error.param, error.message);
}

constexpr std::string_view kBad = "400 invalid_value ";
constexpr std::string_view kUnsupported = "400 unsupported_parameter ";

/// A field with values that are taken and values that are not; null must always be as if absent.
struct FieldCase {
  std::string_view name;
  std::vector<std::string_view> good;
  std::vector<std::string_view> bad;          // invalid_value
  std::vector<std::string_view> unsupported;  // unsupported_parameter
};

const std::vector<FieldCase>& CommonFields() {
  static const std::vector<FieldCase> fields = {
      {"stream", {"true", "false"}, {"1", "\"true\"", "[]"}, {}},
      {"max_tokens",
       {"1", "4096", "9223372036854775807", "10.0", "1e3"},
       {"0", "-1", "1.5", "1e19", "\"8\"", "9223372036854775808", "9007199254740994.0"},
       {}},
      {"temperature", {"0", "1", "0.7", "2"}, {"-0.1", "1e39", "\"1\"", "true", "{}"}, {}},
      {"top_p", {"1", "0.01"}, {"0", "1.01", "-1", "1e-60", "\"1\""}, {}},
      {"top_k", {"0", "-1", "40", "-1.0"}, {"-2", "1.5", "\"4\""}, {}},
      {"min_p", {"0", "1", "0.05"}, {"-0.1", "1.1", "[]"}, {}},
      {"seed",
       {"0", "-1", "9223372036854775807", "-9223372036854775808"},
       {"9223372036854775808", "1.5", "\"1\""},
       {}},
      {"stop",
       {"\"x\"", "[]", "[\"a\", \"\\n\"]"},
       {"\"\"", "[\"\"]", "[1]", "1", "{}",
        R"(["1","1","1","1","1","1","1","1","1","1","1","1","1","1","1","1","1"])"},
       {}},
      {"n", {"1", "16", "1.0"}, {"0", "17", "17.0", "1.5", "\"2\""}, {}},
      {"presence_penalty", {"-2", "2", "0.5"}, {"-2.1", "2.1", "\"0\""}, {}},
      {"frequency_penalty", {"-2", "2", "0.5"}, {"-2.1", "2.1", "null0", "[]"}, {}},
      {"repetition_penalty", {"1", "0.5", "1.3"}, {"0", "-1", "1e300", "\"1\""}, {}},
      {"logit_bias",
       {"{}", R"({"0": -100, "2047": 100, "7": 0.5})"},
       {R"({"2048": 1})", R"({"-1": 1})", R"({"a": 1})", R"({"01": 1})", R"({" 1": 1})",
        R"({"1": 101})", R"({"1": "1"})", R"({"1": null})", "[]", "1"},
       {}},
      {"cache_salt", {"\"\"", "\"tenant\""}, {"1", "[]"}, {}},
      {"user", {"\"me\""}, {"1"}, {}},
      {"safety_identifier", {"\"me\""}, {"1"}, {}},
      {"prompt_cache_key", {"\"k\""}, {"1"}, {}},
      {"metadata", {"{}", R"({"a": "b"})"}, {"[]", "\"a\""}, {}},
      {"store", {"false"}, {"1"}, {"true"}},
      {"service_tier", {"\"auto\"", "\"default\""}, {"1"}, {"\"flex\"", "\"priority\""}},
      {"model", {"\"nano\""}, {"1"}, {}},
  };
  return fields;
}

const std::vector<FieldCase>& ChatFieldCases() {
  static const std::vector<FieldCase> fields = {
      {"max_completion_tokens", {"1", "100"}, {"0", "1.5", "\"8\""}, {}},
      {"logprobs", {"true", "false"}, {"1", "\"x\""}, {}},
      {"top_logprobs", {"0"}, {"1", "21", "-1", "true"}, {}},
      {"parallel_tool_calls", {"true", "false"}, {"1"}, {}},
      {"reasoning_effort",
       {"\"low\"", "\"high\"", "\"max\"", "\"none\""},
       {"\"medium\"", "\"\"", "1"},
       {}},
      {"thinking", {"true", "false", R"({"type": "disabled"})"}, {"1", R"({"type": "on"})"}, {}},
      {"chat_template_kwargs", {"{}", R"({"thinking": false})"}, {"[]", R"({"x": 1})"}, {}},
      {"add_generation_prompt", {"true"}, {"1"}, {"false"}},
      {"modalities", {R"(["text"])", "[]"}, {"\"text\""}, {R"(["text", "audio"])"}},
      {"tool_choice",
       {"\"auto\"", "\"none\""},
       {"\"required\"", "\"x\"", "1", R"({"type": "function", "function": {"name": "f"}})",
        R"({"type": "allowed_tools"})"},
       {}},
      {"response_format",
       {R"({"type": "text"})", R"({"type": "json_object"})", "\"text\"", "\"json_object\"",
        R"({"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": true}})"},
       {R"({"type": "xml"})", "1", R"({"type": "json_schema"})",
        R"({"type": "json_schema", "json_schema": {"name": "a"}})",
        R"({"type": "json_schema", "json_schema": {"schema": 1}})",
        R"({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}})",
        R"({"type": "json_object", "json_schema": {}})"},
       {R"({"type": "json_object", "x": 1})",
        R"({"type": "json_schema", "json_schema": {"schema": {}, "x": 1}})"}},
      {"response_schema", {}, {"{}"}, {}},
      {"tools",
       {"[]", R"([{"type": "function", "function": {"name": "f"}}])"},
       {"{}", "[1]", "[{}]", R"([{"type": "function", "function": {}}])",
        R"([{"function": {"name": ""}}])", R"([{"function": {"name": "f", "parameters": 1}}])",
        R"([{"function": {"name": "f"}}, {"function": {"name": "f"}}])"},
       {R"([{"type": "web_search"}])"}},
      {"stream_options", {}, {"{}", "1"}, {}},
      // Known from elsewhere, and not supported whatever they hold.
      {"audio", {}, {}, {"{}"}},
      {"functions", {}, {}, {"[]"}},
      {"function_call", {}, {}, {"\"auto\""}},
      {"prediction", {}, {}, {"{}"}},
      {"web_search_options", {}, {}, {"{}"}},
      {"verbosity", {}, {}, {"\"medium\""}},
      {"ignore_eos", {"false"}, {}, {"true"}},
      {"min_tokens", {}, {}, {"1"}},
      {"guided_json", {}, {}, {"{}"}},
      {"prompt", {}, {}, {"\"a\""}},
      {"best_of", {}, {}, {"1"}},
  };
  return fields;
}

const std::vector<FieldCase>& TextFieldCases() {
  static const std::vector<FieldCase> fields = {
      {"logprobs", {"0", "5", "20"}, {"21", "-1", "true"}, {}},
      {"echo", {"false"}, {"1"}, {"true"}},
      {"best_of", {"1"}, {"0", "\"1\""}, {"2"}},
      {"suffix", {}, {}, {"\"x\""}},
      {"max_completion_tokens", {}, {}, {"1"}},
      {"top_logprobs", {}, {}, {"1"}},
      {"messages", {}, {}, {"[]"}},
      {"response_format", {}, {}, {R"({"type": "text"})"}},
  };
  return fields;
}

void CheckFields(const std::vector<FieldCase>& fields,
                 const std::function<Status(const std::string&)>& parse) {
  for (const FieldCase& field : fields) {
    const auto result = [&](std::string_view value) {
      return Show(parse(fmt::format("\"{}\": {}", field.name, value)));
    };
    EXPECT_EQ(result("null"), "ok") << field.name;
    for (const std::string_view value : field.good) {
      EXPECT_EQ(result(value), "ok") << field.name << " " << value;
    }
    for (const std::string_view value : field.bad) {
      const std::string found = result(value);
      // Text that is no JSON at all belongs to no field.
      const std::string expected =
          value == "null0" ? std::string(kBad) + "|" : fmt::format("{}{}", kBad, field.name);
      EXPECT_TRUE(found.starts_with(expected)) << field.name << " " << value << ": " << found;
    }
    for (const std::string_view value : field.unsupported) {
      const std::string found = result(value);
      EXPECT_TRUE(found.starts_with(fmt::format("{}{}", kUnsupported, field.name)))
          << field.name << " " << value << ": " << found;
    }
  }
}

TEST(ApiRequest, EveryChatFieldIsCheckedByName) {
  const auto parse = [](const std::string& fields) { return Chat(fields).status(); };
  CheckFields(CommonFields(), parse);
  CheckFields(ChatFieldCases(), parse);
}

TEST(ApiRequest, EveryTextFieldIsCheckedByName) {
  const auto parse = [](const std::string& fields) { return Text(fields).status(); };
  CheckFields(CommonFields(), parse);
  CheckFields(TextFieldCases(), parse);
}

TEST(ApiRequest, UnknownFieldsAreNamedAlsoWhenNull) {
  for (const std::string_view value : {"1", "null", "{}"}) {
    const std::string field = fmt::format("\"temprature\": {}", value);
    const std::string expected =
        "400 unsupported_parameter temprature| temprature: this field is "
        "not known here; leave it out";
    EXPECT_EQ(Show(Chat(field).status()), expected);
    EXPECT_EQ(Show(Text(field).status()), expected);
  }
  // A name that is no name still reaches the message, but is no path.
  EXPECT_EQ(Show(Chat(R"("a b\n": 1)").status()),
            R"(400 unsupported_parameter | "a b?": this field is not known here; leave it out)");
}

TEST(ApiRequest, BodiesThatAreNoObjectAreRefused) {
  for (const std::string_view body :
       {"", "{", "[]", "1", "null", "{\"a\": 1, \"a\": 2}", "\xFF", "{\"messages\": []} x"}) {
    for (const Status& status :
         {ParseChatCompletion(body, Context()).status(),
          ParseTextCompletion(body, Context()).status(), ParseTokenize(body, Context()).status(),
          ParseDetokenize(body, Context()).status()}) {
      EXPECT_EQ(Show(status).substr(0, 19), "400 invalid_value |") << body;
    }
  }
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_TRUE(Show(Chat("\"metadata\": " + deep).status()).starts_with(kBad));
}

TEST(ApiRequest, AnotherModelIsNotFound) {
  EXPECT_EQ(Show(Chat(R"("model": "gpt-4")").status()),
            "404 model_not_found model| model: expected \"nano\", which is what is served here, "
            "found \"gpt-4\"");
}

TEST(ApiRequest, DefaultsComeFromTheModel) {
  GenerationConfig generation;
  RequestContext context = MakeRequestContext("nano", 2048, generation);
  EXPECT_EQ(context.sampling.temperature, 1.0f);
  EXPECT_EQ(context.sampling.top_p, 0.95f);
  generation.temperature = 0.6f;
  generation.top_p = 0.9f;
  generation.top_k = 50;
  context = MakeRequestContext("nano", 2048, generation);
  const auto request = ParseChatCompletion(ChatBody("\"temperature\": null"), context);
  ASSERT_TRUE(request.ok());
  const CompletionParams& params = request->params;
  EXPECT_EQ(params.sampling.temperature, 0.6f);
  EXPECT_EQ(params.sampling.top_p, 0.9f);
  EXPECT_EQ(params.sampling.top_k, 50);
  EXPECT_EQ(params.max_tokens, std::nullopt);
  EXPECT_EQ(params.choices_count, 1);
  EXPECT_FALSE(params.stream || params.include_usage || params.has_seed || params.logprobs);
  EXPECT_TRUE(request->parallel_tool_calls);
  EXPECT_TRUE(request->chat.thinking);
}

TEST(ApiRequest, ReadsEverySamplingField) {
  const auto request = Chat(R"("model": "nano", "stream": true, "max_completion_tokens": 9,
      "stream_options": {"include_usage": true, "include_obfuscation": false},
      "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "seed": -2, "n": 3,
      "stop": ["a", "b"], "presence_penalty": 1, "frequency_penalty": -1,
      "repetition_penalty": 1.5, "logit_bias": {"5": -1}, "logprobs": true, "top_logprobs": 20,
      "cache_salt": "s", "parallel_tool_calls": false, "reasoning_effort": "low")");
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  const CompletionParams& params = request->params;
  EXPECT_TRUE(params.stream && params.include_usage && params.has_seed && params.logprobs);
  EXPECT_EQ(params.max_tokens, 9);
  EXPECT_EQ(params.sampling.temperature, 0.5f);
  EXPECT_EQ(params.sampling.top_p, 0.25f);
  EXPECT_EQ(params.sampling.top_k, 0);
  EXPECT_EQ(params.sampling.min_p, 0.125f);
  EXPECT_EQ(params.sampling.seed, ~uint64_t{1});
  EXPECT_EQ(params.choices_count, 3);
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.sampling.presence_penalty, 1.0f);
  EXPECT_EQ(params.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(params.sampling.repetition_penalty, 1.5f);
  ASSERT_EQ(params.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(params.sampling.logit_bias[0].id, 5);
  EXPECT_EQ(params.sampling.logit_bias[0].bias, -1.0f);
  EXPECT_EQ(params.sampling.top_log_probs, 20);
  EXPECT_EQ(params.cache_salt, "s");
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_EQ(request->chat.effort, ThinkingEffort::kLow);
}

TEST(ApiRequest, IntegersMayHaveAPoint) {
  EXPECT_EQ(Chat("\"max_tokens\": 10.0")->params.max_tokens, 10);
  EXPECT_EQ(Chat("\"seed\": -3.0")->params.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(Show(Chat("\"seed\": 1e19").status()),
            "400 invalid_value seed| seed: expected an integer from -9223372036854775808 to "
            "9223372036854775807, found 1e+19");
  EXPECT_EQ(Show(Chat("\"max_tokens\": 0.5").status()),
            "400 invalid_value max_tokens| max_tokens: expected an integer from 1 to "
            "9223372036854775807, found 0.5");
  // Two numbers that were written may be the same double from here on.
  EXPECT_EQ(Chat("\"seed\": 9007199254740991.0")->params.sampling.seed, (uint64_t{1} << 53) - 1);
  EXPECT_NE(Show(Chat("\"seed\": 9007199254740993.0").status()), "ok");
}

TEST(ApiRequest, FieldsThatContradictEachOtherAreRefused) {
  EXPECT_EQ(Show(Chat(R"("max_tokens": 5, "max_completion_tokens": 5)").status()), "ok");
  EXPECT_EQ(Show(Chat(R"("max_tokens": 5, "max_completion_tokens": 6)").status()),
            "400 invalid_value max_completion_tokens| max_completion_tokens: expected one limit, "
            "found 6 beside max_tokens 5");
  EXPECT_EQ(Show(Chat(R"("stream": true, "stream_options": {"x": 1})").status()),
            "400 unsupported_parameter stream_options.x| stream_options.x: this field is not known "
            "here; leave it out");
  EXPECT_EQ(Show(Text(R"("n": 2, "best_of": 2)").status()), "ok");
  EXPECT_TRUE(Show(Text(R"("n": 2, "best_of": 3)").status()).starts_with(kUnsupported));
}

TEST(ApiRequest, EffortSwitchesThinking) {
  const auto none = Chat(R"("reasoning_effort": "none")");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->chat.thinking);
  EXPECT_EQ(Show(Chat(R"("reasoning_effort": "medium")").status()),
            "400 invalid_value reasoning_effort| reasoning_effort: expected none, low, high or "
            "max, found \"medium\"");
}

TEST(ApiRequest, ToolChoiceMustBeDeclared) {
  const auto with_tool = [](std::string_view choice) {
    return Chat(fmt::format(R"("tools": [{}], "tool_choice": {})", kTool, choice));
  };
  EXPECT_EQ(with_tool("\"required\"")->chat.tool_choice, ToolChoice::kRequired);
  const auto named = with_tool(R"({"type": "function", "function": {"name": "f"}})");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->chat.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named->chat.tool_choice_name, "f");
  EXPECT_EQ(with_tool(R"({"type": "function", "name": "f"})")->chat.tool_choice_name, "f");
  EXPECT_EQ(Show(with_tool(R"({"function": {"name": "f"}, "name": "g"})").status()),
            "400 invalid_value tool_choice.name| tool_choice.name: expected nothing beside "
            "function, found \"g\"");
  EXPECT_EQ(Show(with_tool(R"({"type": "function", "function": {"name": "g"}})").status()),
            "400 invalid_value tool_choice| tool_choice: expected a tool that is declared, found "
            "\"g\"");
  EXPECT_TRUE(Show(with_tool(R"({"type": "custom", "function": {"name": "f"}})").status())
                  .starts_with("400 unsupported_parameter tool_choice.type|"));
  // Tools that a system message adds are declared too.
  const std::string body = fmt::format(
      R"({{"messages": [{{"role": "system", "tools": [{}]}}, {{"role": "user", "content": "x"}}],
           "tool_choice": {{"type": "function", "function": {{"name": "f"}}}}}})",
      kTool);
  EXPECT_EQ(Show(ParseChatCompletion(body, Context()).status()), "ok");
}

TEST(ApiRequest, SchemasAreUnwrapped) {
  const auto request = Chat(R"("response_format": {"type": "json_schema",
      "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->chat.response_format, ResponseFormat::kJsonSchema);
  EXPECT_EQ(DumpJson(request->chat.response_schema), R"({"type": "object"})");
  EXPECT_EQ(request->schema_path, "response_format.json_schema.schema");
  const auto other =
      Chat(R"("response_format": {"type": "json_schema"}, "response_schema": {"type": "array"})");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(DumpJson(other->chat.response_schema), R"({"type": "array"})");
  EXPECT_EQ(other->schema_path, "response_schema");
}

TEST(ApiRequest, NothingOfAMessageIsLostInSilence) {
  const auto parse = [](std::string_view message) {
    return Show(
        ParseChatCompletion(fmt::format("{{\"messages\": [{}]}}", message), Context()).status());
  };
  // An answer as clients send it back.
  EXPECT_EQ(parse(R"({"role": "assistant", "content": null, "refusal": null, "annotations": [],
      "audio": null, "function_call": null, "parsed": {"a": 1}, "reasoning_content": "r",
      "tool_calls": [{"id": "call_1", "index": 0, "type": "function",
                      "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}]},
      {"role": "tool", "tool_call_id": "call_1", "content": "42"})"),
            "ok");
  EXPECT_EQ(parse(R"({"role": "user", "content": [{"type": "text", "text": "a"}], "name": null,
                      "tool_calls": null})"),
            "ok");
  const std::vector<std::pair<std::string_view, std::string_view>> refused = {
      {R"({"role": "user", "content": "x", "weight": 1})", "messages[0].weight|"},
      {R"({"role": "user", "content": "x", "tool_calls": [{}]})", "messages[0].tool_calls|"},
      {R"({"role": "assistant", "content": "x", "refusal": "no"})", "messages[0].refusal|"},
      {R"({"role": "assistant", "content": "x", "partial": true})", "messages[0].partial|"},
      {R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})",
       "messages[0].content[0]|"},
      {R"({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]})",
       "messages[0].content[0]|"},
      {R"({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]})",
       "messages[0].content[0].x|"},
      {R"({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]})",
       "messages[0].tool_calls[0].custom|"},
      {R"({"role": "system", "content": "lost", "tools": []})", "messages[0].content|"},
  };
  for (const auto& [message, param] : refused) {
    const std::string found = parse(message);
    EXPECT_NE(found.find(param), std::string::npos) << message << ": " << found;
    EXPECT_TRUE(found.starts_with("400 ")) << found;
  }
  EXPECT_EQ(parse(R"({"role": "critic", "content": "x"})"),
            "400 invalid_value messages[0].role| messages[0].role: expected system, developer, "
            "user, assistant or tool, found \"critic\"");
  EXPECT_EQ(parse(""),
            "400 invalid_value messages| messages: expected at least one message, "
            "found none");
  EXPECT_EQ(Show(ParseChatCompletion("{}", Context()).status()),
            "400 invalid_value messages| messages: expected an array of messages, found null");
}

TEST(ApiRequest, PromptsAreTextOrIds) {
  const auto parse = [](std::string_view prompt, std::string_view more = "") {
    return ParseTextCompletion(fmt::format("{{\"prompt\": {}{}}}", prompt, more), Context());
  };
  EXPECT_EQ(parse("\"ab\"")->prompts[0].text, "ab");
  EXPECT_EQ(parse("[1, 2047]")->prompts[0].ids, (std::vector<int32_t>{1, 2047}));
  EXPECT_EQ(parse("[1.0, 2]")->prompts[0].ids, (std::vector<int32_t>{1, 2}));
  const auto texts = parse(R"(["a", "b"])");
  ASSERT_TRUE(texts.ok());
  ASSERT_EQ(texts->prompts.size(), 2u);
  EXPECT_EQ(texts->prompts[1].text, "b");
  EXPECT_EQ(parse("[[1], [2, 3]]")->prompts[1].ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(parse("\"a\"")->params.max_tokens, 16);
  EXPECT_FALSE(parse("\"a\"")->params.logprobs);
  EXPECT_TRUE(parse("\"a\"", ", \"logprobs\": 0")->params.logprobs);
  for (const std::string_view bad :
       {"null", "\"\"", "[]", "1", "{}", "[2048]", "[-1]", "[1.5]", "[1, \"a\"]", "[\"a\", 1]",
        "[[]]", "[\"\"]", "[null]", R"(["","","","","","","","","","","","","","","","",""])"}) {
    EXPECT_TRUE(Show(parse(bad).status()).starts_with("400 invalid_value prompt")) << bad;
  }
  EXPECT_TRUE(parse(R"(["a", "b"])", ", \"n\": 8").ok());
  EXPECT_TRUE(
      Show(parse(R"(["a", "b"])", ", \"n\": 9").status()).starts_with("400 invalid_value n|"));
}

TEST(ApiRequest, TokenizeTakesTextOrAConversation) {
  const auto parse = [](std::string_view body) { return ParseTokenize(body, Context()); };
  EXPECT_EQ(parse(R"({"prompt": "", "add_special_tokens": false})")->prompt, "");
  const auto chat = parse(fmt::format(R"({{{}, "tools": [{}], "add_generation_prompt": false,
      "return_token_strs": true}})",
                                      kMessages, kTool));
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  EXPECT_TRUE(chat->with_strings);
  EXPECT_FALSE(chat->chat->add_generation_prompt);
  for (const std::string_view bad :
       {R"({})", R"({"prompt": "a", "messages": []})", R"({"prompt": 1})",
        R"({"prompt": "a", "add_special_tokens": true})", R"({"prompt": "a", "tools": []})",
        R"({"prompt": "a", "return_token_strs": 1})", R"({"prompt": "a", "n": 1})"}) {
    EXPECT_TRUE(Show(parse(bad).status()).starts_with("400 ")) << bad;
  }
  EXPECT_EQ(ParseDetokenize(R"({"tokens": [0, 2047]})", Context())->ids,
            (std::vector<int32_t>{0, 2047}));
  EXPECT_TRUE(ParseDetokenize(R"({"tokens": []})", Context()).ok());
  EXPECT_EQ(Show(ParseDetokenize(R"({"tokens": [0, 2048]})", Context()).status()),
            "400 invalid_value tokens[1]| tokens[1]: expected a token's id from 0 to 2047, found "
            "2048");
  EXPECT_FALSE(ParseDetokenize(R"({})", Context()).ok());
}

TEST(ApiRequest, ManyEntriesAreRefusedByNumber) {
  std::string bias;
  std::string tools;
  for (int64_t i = 0; i <= limits::kApiLogitBiasMax; ++i) {
    bias += fmt::format("{}\"{}\": 1", i == 0 ? "" : ", ", i);
  }
  for (int64_t i = 0; i <= limits::kApiToolsMax; ++i) {
    tools += fmt::format(R"({}{{"function": {{"name": "f{}"}}}})", i == 0 ? "" : ", ", i);
  }
  EXPECT_EQ(Show(Chat(fmt::format("\"logit_bias\": {{{}}}", bias)).status()),
            "400 invalid_value logit_bias| logit_bias: expected at most 4096 entries, found an "
            "object");
  EXPECT_EQ(Show(Chat(fmt::format("\"tools\": [{}]", tools)).status()),
            "400 invalid_value tools| tools: expected at most 1024 tools, found an array of 1025");
  EXPECT_TRUE(Show(Chat(fmt::format("\"stop\": \"{}\"", std::string(4097, 'x'))).status())
                  .starts_with("400 invalid_value stop|"));
  EXPECT_TRUE(Show(Chat(fmt::format("\"cache_salt\": \"{}\"", std::string(1025, 'x'))).status())
                  .starts_with("400 invalid_value cache_salt|"));
}

}  // namespace
}  // namespace k3::server
