#include "config/json.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace k3 {
namespace {

std::string FailureOf(std::string_view text) {
  const auto result = ParseJson(text, "file.json");
  EXPECT_FALSE(result.ok()) << text;
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().message().substr(0, 11), "file.json: ");
  return result.status().message();
}

TEST(JsonTest, ReadsEveryKind) {
  const JsonValue root = *ParseJson(
      R"({"n": null, "b": true, "i": -3, "f": 2.5, "s": "xé", "a": [1, [2]], "o": {"k": 1}})", "f");
  EXPECT_TRUE(root.Find("n")->is_null());
  EXPECT_TRUE(*root.Find("b")->boolean());
  EXPECT_EQ(*root.Find("i")->integer(), -3);
  EXPECT_EQ(root.Find("i")->number(), -3.0);
  EXPECT_EQ(root.Find("f")->integer(), nullptr);
  EXPECT_EQ(root.Find("f")->number(), 2.5);
  EXPECT_EQ(*root.Find("s")->string(), "xé");
  ASSERT_EQ(root.Find("a")->items()->size(), 2u);
  EXPECT_EQ(*(*root.Find("a")->items())[1].items()->at(0).integer(), 2);
  EXPECT_EQ(*root.Find("o")->Find("k")->integer(), 1);
  EXPECT_EQ(root.Find("absent"), nullptr);
  EXPECT_EQ(root.Find("i")->Find("k"), nullptr);
  EXPECT_EQ(root.members()->front().first, "n");
}

TEST(JsonTest, IntegersBeyondInt64AreNotIntegers) {
  const JsonValue root = *ParseJson("[18446744073709551615, 9223372036854775807, 1e300]", "f");
  EXPECT_EQ((*root.items())[0].integer(), nullptr);
  EXPECT_EQ(*(*root.items())[1].integer(), INT64_MAX);
  EXPECT_EQ((*root.items())[2].number(), 1e300);
}

TEST(JsonTest, RefusesRepeatedKeysAtEveryLevel) {
  EXPECT_NE(FailureOf(R"({"a": 1, "a": 2})").find("\"a\" twice"), std::string::npos);
  EXPECT_NE(FailureOf(R"({"x": [{"b": {}, "c": 0, "b": 1}]})").find("\"b\" twice"),
            std::string::npos);
  // A large object takes the other way of looking.
  std::string large = "{";
  for (int i = 0; i < 1000; ++i) large += "\"k" + std::to_string(i) + "\": 0, ";
  EXPECT_NE(FailureOf(large + "\"k7\": 1}").find("\"k7\" twice"), std::string::npos);
  EXPECT_EQ(ParseJson(large + "\"last\": 1}", "f")->members()->size(), 1001u);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "NaN", "[1] 2", "1e999", "\"\xff\"",
                           "{'a': 1}", "\"a\nb\"", "[01]", "-"}) {
    EXPECT_NE(FailureOf(text).find("at byte"), std::string::npos) << text;
  }
}

TEST(JsonTest, DepthIsLimitedWithoutDeepRecursion) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseJson(nested(limits::kJsonDepthMax), "f").ok());
  EXPECT_NE(FailureOf(nested(limits::kJsonDepthMax + 1)).find("levels of nesting"),
            std::string::npos);
  FailureOf(std::string(5'000'000, '['));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  FailureOf(objects);
}

TEST(JsonTest, MessagesAreCleanAndShort) {
  EXPECT_EQ(QuoteForMessage("a\n\x1b[31m\xff"), "\"a??[31m?\"");
  EXPECT_LT(QuoteForMessage(std::string(5000, 'x')).size(), 120u);
  EXPECT_LT(FailureOf("[\"" + std::string(100'000, 'x')).size(), 300u);
}

}  // namespace
}  // namespace k3
