#include "text/python_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "text/random_text.h"

namespace k3 {
namespace {

/// What Python prints for json.dumps(json.loads(text), ensure_ascii=False); "-" for no JSON.
std::string Again(std::string_view text) {
  const Result<std::optional<JsonValue>> value = ParsePythonJson(text);
  if (!value.ok()) return value.status().ToString();
  return value->has_value() ? DumpJson(**value) : "-";
}

// Every expectation is what CPython 3.11 prints.
TEST(PythonJsonTest, NumbersAreShownAsPythonShowsThem) {
  EXPECT_EQ(Again("[0, -0, 10, -7]"), "[0, 0, 10, -7]");
  EXPECT_EQ(Again("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(Again("[9223372036854775807, 9223372036854775808, -9223372036854775809]"),
            "[9223372036854775807, 9223372036854775808, -9223372036854775809]");
  EXPECT_EQ(Again("[1.0, -0.0, 1e5, 1E+5, 1e-5, 0.0001, 100e-2]"),
            "[1.0, -0.0, 100000.0, 100000.0, 1e-05, 0.0001, 1.0]");
  EXPECT_EQ(
      Again("[1e15, 1e16, 123456789012345678.0, 1.5e300, 5e-324, 0.1, 1e400, -1e400, 1e-999]"),
      "[1000000000000000.0, 1e+16, 1.2345678901234568e+17, 1.5e+300, 5e-324, 0.1, Infinity, "
      "-Infinity, 0.0]");
  EXPECT_EQ(Again("[NaN, Infinity, -Infinity]"), "[NaN, Infinity, -Infinity]");
  for (const char* bad : {"01", "1.", ".5", "+1", "-", "1e", "1e+", "0x1", "--1", "nan", "Inf"}) {
    EXPECT_EQ(Again(bad), "-") << bad;
  }
}

TEST(PythonJsonTest, StringsAndEscapes) {
  EXPECT_EQ(Again(R"("\"\\\/\b\f\n\r\t")"), R"("\"\\/\b\f\n\r\t")");
  EXPECT_EQ(Again(R"("\u0041\u00e9\u4e16\ud83c\udf0d")"), "\"Aé世🌍\"");
  EXPECT_EQ(Again("\"\\u0000\\u001f\x7f\""), "\"\\u0000\\u001f\x7f\"");
  // A surrogate without its partner cannot be text.
  EXPECT_EQ(Again(R"("\ud83c")"), "\"\uFFFD\"");
  EXPECT_EQ(Again(R"("\udf0d\ud83cx")"), "\"\uFFFD\uFFFDx\"");
  EXPECT_EQ(Again(R"("\ud83c\ud83c\udf0d")"), "\"\uFFFD🌍\"");
  for (const char* bad : {R"("\x")", R"("\u12")", R"("\u12g4")", "\"a", "\"\n\"", "\"\t\"", "'a'",
                          R"("\)", R"("\u-123")", R"("\ud83c\u12g4")"}) {
    EXPECT_EQ(Again(bad), "-") << bad;
  }
}

TEST(PythonJsonTest, ObjectsAndArrays) {
  EXPECT_EQ(Again(R"( {"b" : 1 , "a":[ ],"c":{ }} )"), R"({"b": 1, "a": [], "c": {}})");
  // The last value of a key, at the key's first place.
  EXPECT_EQ(Again(R"({"a": 1, "b": 2, "a": 3})"), R"({"a": 3, "b": 2})");
  EXPECT_EQ(Again(R"({"": null, "x": true, "y": false})"), R"({"": null, "x": true, "y": false})");
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[",
                          "[1",
                          "[1,]",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{a: 1}",
                          "[1 2]",
                          "[1]x",
                          "{} {}",
                          "tru",
                          "nul",
                          "True",
                          "[,1]",
                          "{,}",
                          "\xEF\xBB\xBF{}",
                          "\f1",
                          "/*c*/1"}) {
    EXPECT_EQ(Again(bad), "-") << bad;
  }
}

TEST(PythonJsonTest, NestingHasALimit) {
  EXPECT_EQ(Again(Repeat("[", 64) + Repeat("]", 64)), Repeat("[", 64) + Repeat("]", 64));
  EXPECT_NE(Again(Repeat("[", 65) + Repeat("]", 65)).find("expected at most 64 levels"),
            std::string::npos);
  EXPECT_NE(Again(Repeat("{\"a\":", 1'000'000)).find("expected at most 64 levels"),
            std::string::npos);
}

TEST(PythonJsonTest, ManyKeysCostLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i % 150'000) + "\": 1,";
  text.back() = '}';
  const Result<std::optional<JsonValue>> value = ParsePythonJson(text);
  ASSERT_TRUE(value.ok() && value->has_value());
  EXPECT_EQ((*value)->members()->size(), 150'000u);
}

nlohmann::json RandomJson(Random& random, int depth) {
  const uint64_t kind = random.NextBelow(depth > 0 ? 8 : 6);
  if (kind == 0) return nullptr;
  if (kind == 1) return random.NextBelow(2) == 0;
  if (kind == 2) return static_cast<int64_t>(random.NextUint64());
  if (kind == 3) return random.NextDouble() * 1e6;
  if (kind <= 5) return RandomText(random, static_cast<int64_t>(random.NextBelow(12)));
  nlohmann::json value = kind == 6 ? nlohmann::json::array() : nlohmann::json::object();
  for (uint64_t i = random.NextBelow(5); i > 0; --i) {
    if (kind == 6) value.push_back(RandomJson(random, depth - 1));
    if (kind == 7) value[RandomText(random, 4)] = RandomJson(random, depth - 1);
  }
  return value;
}

TEST(PythonJsonTest, AgreesWithAnotherParserOnValidDocuments) {
  for (uint64_t i = 0; i < 3000; ++i) {
    Random random(11, i);
    const std::string text = RandomJson(random, 4).dump(random.NextBelow(2) == 0 ? -1 : 1);
    const Result<std::optional<JsonValue>> value = ParsePythonJson(text);
    ASSERT_TRUE(value.ok() && value->has_value()) << text;
    const Result<JsonValue> strict = ParseJson(text, "text");
    ASSERT_TRUE(strict.ok()) << text;
    EXPECT_EQ(DumpJson(**value), DumpJson(*strict)) << text;
    EXPECT_EQ(nlohmann::json::parse(DumpJson(**value)), nlohmann::json::parse(text));
    // One damaged byte: both refuse it, or both take it.
    std::string damaged = text;
    damaged[random.NextBelow(damaged.size())] = static_cast<char>('!' + random.NextBelow(90));
    const bool is_python = Again(damaged) != "-";
    EXPECT_TRUE(is_python || !nlohmann::json::accept(damaged)) << damaged;
  }
}

TEST(PythonJsonTest, BlankIsWhatStripLeavesEmpty) {
  EXPECT_TRUE(IsBlank(""));
  EXPECT_TRUE(IsBlank(" \t\r\n\v\f\x1c\x1f\u0085\u00a0\u1680\u2003\u2028\u3000"));
  EXPECT_FALSE(IsBlank(" a "));
  EXPECT_FALSE(IsBlank("\u200b"));
  EXPECT_FALSE(IsBlank("\uFEFF"));
  EXPECT_FALSE(IsBlank("\x01"));
}

}  // namespace
}  // namespace k3
