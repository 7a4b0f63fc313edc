#include "text/utf8.h"

#include <gtest/gtest.h>

#include "text/random_text.h"
#include "text/utf8_stream.h"

namespace k3 {
namespace {

using Kind = Utf8Step::Kind;

std::string Whole(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.Feed(bytes);
  return out + stream.Finish();
}

TEST(Utf8Test, EveryCodePointReadsBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string bytes;
    AppendUtf8(c, &bytes);
    const Utf8Step step = DecodeUtf8(bytes + "x");
    if (c >= 0xD800 && c < 0xE000) {
      ASSERT_EQ(step.kind, Kind::kInvalid) << static_cast<uint32_t>(c);
      continue;
    }
    ASSERT_EQ(step.kind, Kind::kValid) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, static_cast<int32_t>(bytes.size()));
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      ASSERT_EQ(DecodeUtf8(bytes.substr(0, cut)).kind, Kind::kIncomplete);
    }
  }
}

TEST(Utf8Test, RefusesIllFormed) {
  for (const std::string_view bytes :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(DecodeUtf8(bytes).kind, Kind::kInvalid);
    EXPECT_EQ(FindInvalidUtf8(bytes), 0);
  }
  EXPECT_EQ(FindInvalidUtf8(""), -1);
  EXPECT_EQ(FindInvalidUtf8("ascii only, longer than a word"), -1);
  EXPECT_EQ(FindInvalidUtf8("ascii ascii \xE4\xB8\x96 then \xE4\xB8"), 21);
  EXPECT_EQ(FindInvalidUtf8("12345678\xFF"), 8);
}

// The examples of the Unicode Standard, tables 3-8 to 3-11.
TEST(Utf8StreamTest, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(Whole("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                  "A"),
            Repeat(r, 8) + "A");
  EXPECT_EQ(Whole("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                  "A"),
            Repeat(r, 8) + "A");
  EXPECT_EQ(Whole("\xF4\x91\x92\x93\xFF"
                  "A\x80\xBF"
                  "B"),
            Repeat(r, 5) + "A" + r + r + "B");
  EXPECT_EQ(Whole("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                  "A"),
            Repeat(r, 4) + "A");
}

TEST(Utf8StreamTest, HoldsBackWhatMayBecomeACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Feed("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.pending_bytes(), 2);
  EXPECT_EQ(stream.Feed(""), "");
  EXPECT_EQ(stream.Feed("\x8C"), "");
  EXPECT_EQ(stream.Feed("\x8D!"), "🌍!");
  EXPECT_EQ(stream.Feed("\xE4\xB8"), "");
  EXPECT_EQ(stream.Feed("x"), "\uFFFDx");
  EXPECT_EQ(stream.Feed("\xE4"), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Feed("\x96"), "\uFFFD");
}

TEST(Utf8StreamTest, AnySplitGivesTheSameText) {
  Random random(5, 0);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = RandomText(random, static_cast<int64_t>(random.NextBelow(12)));
    for (uint64_t flips = random.NextBelow(4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random.NextBelow(bytes.size())] = static_cast<char>(random.NextUint32());
    }
    Utf8Stream stream;
    std::string joined;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = random.NextBelow(5);
      const std::string text = stream.Feed(std::string_view(bytes).substr(at, count));
      ASSERT_EQ(FindInvalidUtf8(text), -1);
      joined += text;
      at += count;
    }
    joined += stream.Finish();
    ASSERT_EQ(joined, Whole(bytes));
    ASSERT_EQ(joined == bytes, FindInvalidUtf8(bytes) < 0);
  }
}

}  // namespace
}  // namespace k3
