#include "grammar/json_grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <functional>

#include "grammar/grammar_test_util.h"
#include "grammar/json_state.h"

namespace k3 {
namespace {

JsonGrammar Compile(std::string_view schema) {
  Result<JsonGrammar> grammar = JsonGrammar::Compile(Json(schema), {});
  EXPECT_TRUE(grammar.ok()) << grammar.status().ToString() << " of " << schema;
  return std::move(grammar).value();
}

bool Accepts(const JsonGrammar& grammar, std::string_view text) {
  JsonState state(grammar);
  for (const char c : text) {
    if (!state.Feed(static_cast<uint8_t>(c))) return false;
  }
  return state.CanEnd();
}

bool SchemaAccepts(std::string_view schema, std::string_view text) {
  return Accepts(Compile(schema), text);
}

std::string Refusal(std::string_view schema) {
  const Result<JsonGrammar> grammar = JsonGrammar::Compile(Json(schema), {.path = "s"});
  return grammar.ok() ? "" : grammar.status().message();
}

std::string NextBytes(const JsonState& state) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    JsonState next = state;
    if (next.Feed(static_cast<uint8_t>(byte))) bytes += static_cast<char>(byte);
  }
  return bytes;
}

/// A value that the grammar allows: `steps` bytes at random, then what ends it.
std::string Walk(const JsonGrammar& grammar, int64_t steps, Random& random) {
  constexpr int64_t kStepsMax = 5000;  // Nothing here takes so many to end: 64 levels and 25 bytes.
  JsonState state(grammar);
  std::string text;
  for (int64_t i = 0; i < kStepsMax; ++i) {
    const bool can_end = state.CanEnd();
    if (can_end && (i >= steps || random.NextBelow(4) == 0)) return text;
    const std::string allowed = NextBytes(state);
    if (allowed.empty()) {
      EXPECT_TRUE(can_end) << "trapped behind " << text;
      return text;
    }
    // Half of the steps are structure, which a uniform draw would rarely meet in a string.
    const bool is_random = i < steps && random.NextBelow(3) > 0;
    const uint8_t byte = is_random ? static_cast<uint8_t>(allowed[random.NextBelow(allowed.size())])
                                   : PickClosing(allowed);
    EXPECT_TRUE(state.Feed(byte));
    text += static_cast<char>(byte);
  }
  ADD_FAILURE() << "no end of " << text;
  return text;
}

TEST(JsonGrammarTest, WhatItGeneratesSatisfiesTheSchema) {
  Random random(1, 0);
  for (const std::string_view text : TestSchemas()) {
    const JsonValue schema = Json(text);
    const JsonGrammar grammar = Compile(text);
    for (int i = 0; i < 60; ++i) {
      const std::string walk = Walk(grammar, static_cast<int64_t>(random.NextBelow(80)), random);
      const Result<JsonValue> value = ParseJson(walk, "walk");
      ASSERT_TRUE(value.ok()) << value.status().ToString() << "\n" << walk << "\n" << text;
      ASSERT_TRUE(Validator(schema).Check(schema, *value)) << walk << "\n" << text;
    }
  }
}

JsonValue RandomValue(int depth, Random& random) {
  const uint64_t kind = random.NextBelow(depth > 3 ? 5 : 8);
  const auto name = [&] {
    std::string text;
    for (uint64_t i = random.NextBelow(5); i > 0; --i) {
      constexpr std::array<char32_t, 10> kSome = {'a', 'b',  '"',  '\\',   '\n',
                                                  1,   0x7F, 0xE4, 0x4E16, 0x1F600};
      AppendUtf8(kSome[random.NextBelow(kSome.size())], &text);
    }
    return text;
  };
  switch (kind) {
    case 0:
      return {};
    case 1:
      return JsonValue(random.NextBelow(2) == 0);
    case 2:
      return JsonValue(static_cast<int64_t>(random.NextBelow(2000)) - 1000);
    case 3:
      return JsonValue(static_cast<double>(random.NextNormal()));
    case 4:
      return JsonValue(name());
    case 5: {
      JsonValue::Items items;
      for (uint64_t i = random.NextBelow(4); i > 0; --i) {
        items.push_back(RandomValue(depth + 1, random));
      }
      return JsonValue(std::move(items));
    }
    default: {
      JsonValue::Members members;
      for (uint64_t i = random.NextBelow(4); i > 0; --i) {
        const std::string key = name();
        const auto is_key = [&](const auto& member) { return member.first == key; };
        if (std::ranges::any_of(members, is_key)) continue;
        members.emplace_back(key, RandomValue(depth + 1, random));
      }
      return JsonValue(std::move(members));
    }
  }
}

TEST(JsonGrammarTest, AgreesWithTheParser) {
  const JsonGrammar grammar = Compile("true");
  Random random(2, 0);
  int64_t broken_accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    const JsonValue value = RandomValue(0, random);
    const bool is_compact = i % 2 == 0;
    std::string text = DumpJson(
        value, is_compact ? JsonStyle{.item_separator = ",", .key_separator = ":"} : JsonStyle{});
    EXPECT_TRUE(Accepts(grammar, text)) << text;
    // A byte changed, added or taken away: what is accepted all the same must be JSON.
    for (int change = 0; change < 4 && !text.empty(); ++change) {
      constexpr std::string_view kBytes = "{}[]\",:\\u0d8D19.eE+-tn \n\x80\xBF\xE4\xED\xF0\xF4";
      const size_t at = random.NextBelow(text.size());
      const char byte = kBytes[random.NextBelow(kBytes.size())];
      if (change % 3 == 0) text[at] = byte;
      if (change % 3 == 1) text.insert(at, 1, byte);
      if (change % 3 == 2) text.erase(at, 1);
      if (!Accepts(grammar, text)) continue;
      ++broken_accepted;
      const Result<JsonValue> parsed = ParseJson(text, "text");
      EXPECT_TRUE(parsed.ok()) << parsed.status().ToString() << "\n" << text;
    }
  }
  EXPECT_GT(broken_accepted, 500) << "the test has to meet texts that are accepted";
}

TEST(JsonGrammarTest, Strings) {
  const JsonGrammar any = Compile("true");
  for (const std::string_view good :
       {"\"\"", "\"\\u0041\\n\"", "\"\\uD83D\\uDE00\"", "\"\xF0\x9F\x98\x80\"", "\"\x7F\""}) {
    EXPECT_TRUE(Accepts(any, good)) << good;
  }
  for (const std::string_view bad :
       {"\"\\uDE00\"", "\"\\uD83D\"", "\"\\uD83Dx\"", "\"\\uD83D\\u0041\"", "\"\\x\"", "\"\n\"",
        "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\x80\"", "\"\xE4\""}) {
    EXPECT_FALSE(Accepts(any, bad)) << bad;
  }
  constexpr std::string_view kShort = R"({"type": "string", "minLength": 2, "maxLength": 3})";
  EXPECT_FALSE(SchemaAccepts(kShort, "\"a\""));
  EXPECT_TRUE(SchemaAccepts(kShort, "\"\xF0\x9F\x98\x80\xC3\xA4\""));
  EXPECT_TRUE(SchemaAccepts(kShort, "\"\\uD83D\\uDE00\\u0041b\"")) << "a pair is one character";
  EXPECT_FALSE(SchemaAccepts(kShort, "\"abcd\""));
}

TEST(JsonGrammarTest, Numbers) {
  for (const std::string_view good : {"0", "-0", "10", "-1.50", "1e5", "1.5E-07", "0.0"}) {
    EXPECT_TRUE(SchemaAccepts(R"({"type": "number"})", good)) << good;
    EXPECT_TRUE(SchemaAccepts(R"({"type": "array"})", fmt::format("[{}, 1]", good))) << good;
  }
  for (const std::string_view bad : {"01", "-", "1.", ".5", "1e", "+1", "1e999", "1.e1"}) {
    EXPECT_FALSE(SchemaAccepts(R"({"type": "number"})", bad)) << bad;
    EXPECT_FALSE(SchemaAccepts(R"({"type": "array"})", fmt::format("[{}]", bad))) << bad;
  }
  EXPECT_FALSE(SchemaAccepts(R"({"type": "integer"})", "1.0"));
  EXPECT_FALSE(SchemaAccepts(R"({"type": "integer"})", "1e1"));
  EXPECT_TRUE(SchemaAccepts(R"({"enum": [1, 12, 1.5]})", "1"));
  EXPECT_TRUE(SchemaAccepts(R"({"type": "array", "items": {"enum": [1, 12]}})", "[1, 12]"));
  EXPECT_FALSE(SchemaAccepts(R"({"enum": [1, 12]})", "122"));
}

TEST(JsonGrammarTest, BlanksAreBounded) {
  const JsonGrammar any = Compile("true");
  for (const std::string_view good :
       {R"({"a":1,"b":2})", R"({ "a": 1, "b": [ ] })", "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
        "{\"a\": 1,\n \"b\": 2}", "[\n]"}) {
    EXPECT_TRUE(Accepts(any, good)) << good;
  }
  for (const std::string_view bad :
       {" 1", "1 ", "{}\n", R"({"a" :1})", R"([1 , 2])", R"([1,  2])", "[\n\n1]", "[\n     1]",
        "[\t1]", R"({"a":  1})", "{\"a\":\n1}"}) {
    EXPECT_FALSE(Accepts(any, bad)) << bad;
  }
}

TEST(JsonGrammarTest, KeysComeOnceHoweverTheyAreWritten) {
  const JsonGrammar any = Compile("true");
  EXPECT_FALSE(Accepts(any, R"({"a": 1, "a": 2})"));
  EXPECT_FALSE(Accepts(any, R"({"a": 1, "\u0061": 2})"));
  EXPECT_TRUE(Accepts(any, R"({"a": 1, "b": {"a": 1}, "ab": 0})"));
  constexpr std::string_view kOpen =
      R"({"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"]})";
  EXPECT_FALSE(SchemaAccepts(kOpen, R"({"a": 1})"));
  EXPECT_FALSE(SchemaAccepts(kOpen, R"({"ab": 1})"));
  EXPECT_FALSE(SchemaAccepts(kOpen, R"({"\u0061b": 1})"));
  EXPECT_TRUE(SchemaAccepts(kOpen, R"({"a": 1, "\u0061b": ""})"));
  constexpr std::string_view kClosed =
      R"({"properties": {"ab": true, "abc": true}, "additionalProperties": false})";
  EXPECT_TRUE(SchemaAccepts(kClosed, R"({"abc": 1, "ab": 1})"));
  EXPECT_FALSE(SchemaAccepts(kClosed, R"({"abc": 1, "abc": 1})"));
  EXPECT_FALSE(SchemaAccepts(kClosed, R"({"a": 1})"));
  EXPECT_TRUE(SchemaAccepts(kClosed, R"({})"));
}

TEST(JsonGrammarTest, NestingEndsWhereTheParserEnds) {
  const JsonGrammar any = Compile("true");
  EXPECT_TRUE(Accepts(any, std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(Accepts(any, std::string(65, '[') + std::string(65, ']')));
  // Each level needs two: 32 of them fit.
  const std::string_view pair =
      R"({"type": "array", "items": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}})";
  const JsonGrammar grammar = Compile(pair);
  EXPECT_TRUE(Accepts(grammar, std::string(63, '[') + std::string(63, ']')));
  EXPECT_FALSE(Accepts(grammar, std::string(64, '[') + std::string(64, ']')));
}

TEST(JsonGrammarTest, ManyBranchesStayFew) {
  // Every level could be either branch; what was read alike becomes one again.
  const JsonGrammar grammar = Compile(
      R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items":
          {"$ref": "#"}, "maxItems": 3}, {"type": "integer"}]})");
  JsonState state(grammar);
  for (const char c : std::string("[[[[[[[[1]]]]]]]")) {
    ASSERT_TRUE(state.Feed(static_cast<uint8_t>(c)));
    EXPECT_LE(state.threads().size(), JsonState::kThreadsMax);
  }
  EXPECT_LE(state.threads().size(), 2u);
  ASSERT_TRUE(state.Feed(']'));
  EXPECT_TRUE(state.CanEnd());
}

TEST(JsonGrammarTest, WhatIsNotSupportedIsRefusedByName) {
  constexpr std::string_view kWhy =
      ": not supported in a schema that constrains the answer; leave it out";
  EXPECT_EQ(Refusal(R"({"properties": {"age": {"type": "integer", "minimum": 0}}})"),
            fmt::format("s.properties.age.minimum{}", kWhy));
  EXPECT_EQ(Refusal(R"({"items": {"anyOf": [true, {"format": "date"}]}})"),
            fmt::format("s.items.anyOf[1].format{}", kWhy));
  EXPECT_EQ(Refusal(R"({"$defs": {"a": {"pattern": "x"}}, "$ref": "#/$defs/a"})"),
            fmt::format("s.$defs.a.pattern{}", kWhy));
  for (const std::string_view keyword :
       {"minimum", "maximum", "exclusiveMinimum", "multipleOf", "pattern", "format", "not", "if",
        "uniqueItems", "patternProperties", "minProperties", "contains", "dependentRequired",
        "unevaluatedProperties", "propertyNames", "$anchor", "nullable", "typo"}) {
    EXPECT_EQ(Refusal(fmt::format(R"({{"{}": true}})", keyword)),
              fmt::format("s.{}{}", keyword, kWhy));
  }
  EXPECT_EQ(Refusal(R"({"anyOf": [true], "type": "string"})"),
            "s.type: not supported beside anyOf; move it into the branches");
  EXPECT_EQ(Refusal(R"({"enum": ["a"], "minLength": 1})"),
            "s.minLength: not supported beside enum or const");
  EXPECT_EQ(Refusal(R"({"allOf": [true, true]})"),
            "s.allOf: more than one schema is not supported; merge them into one");
}

TEST(JsonGrammarTest, BadSchemasAreRefusedByName) {
  EXPECT_EQ(Refusal("3"), "s: expected a schema: an object, true or false, found 3");
  EXPECT_EQ(Refusal(R"({"type": "str"})"),
            "s.type: expected one of null, boolean, integer, number, string, object, array or an "
            "array of them, found \"str\"");
  EXPECT_EQ(Refusal(R"({"$ref": "#/$defs/none"})"),
            "s.$ref: expected #, #/$defs/NAME or #/definitions/NAME of a schema that is there, "
            "found \"#/$defs/none\"");
  EXPECT_EQ(Refusal(R"({"minLength": -1})"),
            "s.minLength: expected an integer of at least 0, found -1");
  EXPECT_EQ(Refusal(R"({"required": ["x"], "additionalProperties": false})"),
            "s.required: \"x\" is not in properties, and additionalProperties is false");
  EXPECT_EQ(Refusal(R"({"items": [true]})"),
            "s.items: expected one schema, found an array; use prefixItems for a schema of each");
  EXPECT_EQ(Refusal(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})"),
            "s.oneOf: branches 0 and 1 do not exclude each other by type, fixed values or a "
            "required property with fixed values; use anyOf");
  EXPECT_EQ(Refusal(R"({"oneOf": [
      {"properties": {"k": {"const": 1}}, "required": ["k"]},
      {"properties": {"k": {"const": 2}}, "required": ["k"]}]})"),
            "");
  for (const std::string_view never : {"false", R"({"$ref": "#"})", R"({"anyOf": [{"$ref": "#"}]})",
                                       R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
                                       R"({"type": "array", "minItems": 3, "maxItems": 2})"}) {
    EXPECT_EQ(Refusal(never), "s: no value within 64 levels of nesting satisfies this schema")
        << never;
  }
}

TEST(JsonGrammarTest, BranchesAreComparedByValue) {
  const auto one_of = [](std::string_view a, std::string_view b) {
    return Refusal(fmt::format(R"({{"oneOf": [{{"const": {}}}, {{"const": {}}}]}})", a, b));
  };
  constexpr std::pair<std::string_view, std::string_view> kEqual[] = {
      {"1", "1.0"},
      {"1", "1"},
      {"0", "-0.0"},
      {"10", "1e1"},
      {"1e20", "100000000000000000000"},
      {"[1, {\"a\": 2.0}]", "[1.0, {\"a\": 2}]"},
      {"{\"a\": 1, \"b\": 2}", "{\"b\": 2, \"a\": 1.0}"},
  };
  for (const auto& [a, b] : kEqual) {
    const std::string refusal = one_of(a, b);
    EXPECT_TRUE(refusal.starts_with("s.oneOf: branches 0 and 1 do not exclude each other"))
        << a << " " << b << ": " << refusal;
  }
  constexpr std::pair<std::string_view, std::string_view> kDifferent[] = {
      {"1", "1.5"},
      {"1", "\"1\""},
      {"1e20", "100000000000000000001"},
      {"9223372036854775807", "9223372036854775808"},
      {"[1, 2]", "[2, 1]"},
      {"{\"a\": 1}", "{\"b\": 1}"},
  };
  for (const auto& [a, b] : kDifferent) EXPECT_EQ(one_of(a, b), "") << a << " " << b;
  EXPECT_EQ(Refusal(R"({"oneOf": [{"enum": [1, 2.0]}, {"enum": [3, 2]}]})").substr(0, 7),
            "s.oneOf");
  EXPECT_EQ(Refusal(R"({"oneOf": [
      {"properties": {"k": {"const": 1}}, "required": ["k"]},
      {"properties": {"k": {"const": 1.0}}, "required": ["k"]}]})")
                .substr(0, 7),
            "s.oneOf");
}

TEST(JsonGrammarTest, IntegersMayHaveAPoint) {
  constexpr std::string_view kCounted = R"({"type": "string", "minLength": 2.0, "maxLength": 3e0})";
  EXPECT_FALSE(SchemaAccepts(kCounted, "\"a\""));
  EXPECT_TRUE(SchemaAccepts(kCounted, "\"abc\""));
  EXPECT_FALSE(SchemaAccepts(kCounted, "\"abcd\""));
  EXPECT_EQ(Refusal(R"({"minLength": 1.5})"),
            "s.minLength: expected an integer of at least 0, found 1.5");
  EXPECT_NE(Refusal(R"({"minItems": 1e300})"), "");
  EXPECT_NE(Refusal(R"({"maxItems": -1.0})"), "");
  EXPECT_TRUE(SchemaAccepts(R"({"type": "integer", "enum": [1.0, 2.5]})", "1.0"));
  EXPECT_FALSE(SchemaAccepts(R"({"type": "integer", "enum": [1.0, 2.5]})", "2.5"));
}

TEST(JsonGrammarTest, BranchesThatNothingSatisfiesExcludeAllOthers) {
  EXPECT_EQ(Refusal(R"({"oneOf": [false, true, false]})"), "");
  EXPECT_EQ(Refusal(R"({"oneOf": [false, {"const": 1}, false, {"const": 1}]})").substr(0, 27),
            "s.oneOf: branches 1 and 3 d");
}

TEST(JsonGrammarTest, ReferencesLeadHoweverFarAndRoundInCircles) {
  EXPECT_TRUE(SchemaAccepts(R"({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [
      {"$ref": "#/definitions/b"}]}}, "definitions": {"b": {"anyOf": [{"type": "null"}]}}})",
                            "null"));
  constexpr std::string_view kCircle = R"({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}],
      "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})";
  EXPECT_TRUE(SchemaAccepts(kCircle, "null"));
  EXPECT_FALSE(SchemaAccepts(kCircle, "1"));
}

TEST(JsonGrammarTest, RelaxedLeavesOutWhatItDoesNotKnow) {
  const JsonValue schema = Json(
      R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3},
          "b": {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "c": {"$ref": "http://x"}},
          "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": false})");
  const Result<JsonGrammar> grammar = JsonGrammar::Compile(schema, {.is_relaxed = true});
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  EXPECT_TRUE(Accepts(*grammar, R"({"a": 1, "b": 1.5, "c": [{}]})"));
  EXPECT_FALSE(Accepts(*grammar, R"({"a": 1.5})"));
  EXPECT_FALSE(Accepts(*grammar, R"({"d": 1})"));
}

TEST(JsonGrammarTest, LimitsAreNamed) {
  std::string branches;
  for (int i = 0; i < 33; ++i) branches += fmt::format(R"({}{{"type": "string"}})", i ? "," : "");
  EXPECT_EQ(Refusal(fmt::format(R"({{"anyOf": [{}]}})", branches)),
            "s: expected at most 32 branches of anyOf or oneOf for one value, found more; a longer "
            "list of fixed values is an enum");
  std::string properties;
  for (int i = 0; i < 10'001; ++i) properties += fmt::format(R"({}"p{}": {{}})", i ? "," : "", i);
  EXPECT_EQ(Refusal(fmt::format(R"({{"properties": {{{}}}}})", properties)),
            "s: expected at most 10000 schemas in one, found more");
}

/// `count` texts of `make(i)` with commas between them.
std::string List(int count, const std::function<std::string(int)>& make) {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i > 0 ? ", " : "") + make(i);
  return list;
}

// Schemas near the limits. Time or the bytes of paths once grew with the square of all but the
// first, up to half a minute; all of them together take half a second now. The bound is for each,
// of the processor's time, and leaves room for sanitizers and busy machines.
TEST(JsonGrammarTest, LargeSchemasTakeLittleTime) {
  constexpr double kSecondsMax = 5;
  const std::string chain = List(
      9990, [](int i) { return fmt::format(R"("d{}": {{"$ref": "#/$defs/d{}"}})", i, i + 1); });
  const std::string enums = List(32, [](int e) {
    return fmt::format(R"("e{}": {{"enum": [{}]}})", e,
                       List(1000, [e](int i) { return fmt::format("\"{}-{}\"", i, e); }));
  });
  const std::string branches =
      List(32, [](int e) { return fmt::format(R"({{"$ref": "#/$defs/e{}"}})", e); });
  const std::pair<std::string_view, std::string> schemas[] = {
      {"values", fmt::format(R"({{"enum": [{}]}})",
                             List(100'000, [](int i) { return fmt::format("\"value {}\"", i); }))},
      {"references",
       fmt::format(R"({{"$ref": "#/$defs/d0", "$defs": {{{}, "d9990": {{}}}}}})", chain)},
      {"a long name",
       fmt::format(R"({{"properties": {{"{}": {{"properties": {{{}}}}}}}}})",
                   std::string(500'000, 'n'),
                   List(9000, [](int i) { return fmt::format("\"p{}\": {{}}", i); }))},
      {"definitions",
       fmt::format(
           R"({{"properties": {{{}}}, "$defs": {{{}, "last": true}}}})",
           List(4900, [](int i) { return fmt::format(R"("p{}": {{"$ref": "#/$defs/last"}})", i); }),
           List(200'000, [](int i) { return fmt::format("\"{}\": 0", i); }))},
      {"choices", fmt::format(R"({{"properties": {{{}}}, "$defs": {{{}}}}})",
                              List(290,
                                   [&](int i) {
                                     return fmt::format(R"("p{}": {{"oneOf": [{}]}})", i, branches);
                                   }),
                              enums)},
  };
  for (const auto& [name, text] : schemas) {
    const JsonValue schema = Json(text);
    const std::clock_t start = std::clock();
    const Result<JsonGrammar> grammar = JsonGrammar::Compile(schema, {.path = "s"});
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_TRUE(grammar.ok()) << name << ": " << grammar.status().message();
    EXPECT_LT(seconds, kSecondsMax) << name;
  }
}

TEST(JsonGrammarTest, ComparisonsOfBranchesAreLimited) {
  // Enums of which each has to be compared with all others: 496 pairs of 3,000 values.
  const std::string branches = List(32, [](int e) {
    return fmt::format(R"({{"enum": [{}]}})",
                       List(3000, [e](int i) { return fmt::format("\"{}-{}\"", i, e); }));
  });
  EXPECT_EQ(Refusal(fmt::format(R"({{"oneOf": [{}]}})", branches)),
            "s.oneOf: expected at most 1000000 comparisons of branches, names and fixed values for "
            "all oneOf in one schema, found more; use anyOf");
  EXPECT_EQ(Refusal(fmt::format(R"({{"anyOf": [{}]}})", branches)), "");
}

TEST(JsonGrammarTest, LongNamesAreCutInPaths) {
  const std::string refusal = Refusal(
      fmt::format(R"({{"properties": {{"{}": {{"minimum": 1}}}}}})", std::string(200, 'n')));
  EXPECT_TRUE(refusal.starts_with(
      fmt::format("s.properties.{}.minimum: not supported", std::string(100, 'n'))))
      << refusal;
}

}  // namespace
}  // namespace k3
