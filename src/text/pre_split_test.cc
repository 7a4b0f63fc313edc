#include "text/pre_split.h"

#include <gtest/gtest.h>

#include <string>

#include "text/pre_split_oracle.h"
#include "text/random_text.h"
#include "text/utf8.h"

namespace k3 {
namespace {

std::vector<std::string> Pieces(std::string_view segment, const std::vector<uint32_t>& ends) {
  std::vector<std::string> pieces;
  uint32_t start = 0;
  for (const uint32_t end : ends) {
    pieces.emplace_back(segment.substr(start, end - start));
    start = end;
  }
  return pieces;
}

class PreSplitTest : public testing::Test {
 protected:
  std::vector<std::string> Split(std::string_view segment) const {
    std::vector<uint32_t> ends;
    SplitSegment(classes_, segment, &ends);
    return Pieces(segment, ends);
  }

  std::vector<std::string> Segments(std::string_view text) const {
    std::vector<std::string> segments;
    SegmentCutter cutter(classes_, text);
    for (std::string_view s = cutter.Next(); !s.empty(); s = cutter.Next())
      segments.emplace_back(s);
    return segments;
  }

  CharacterClasses classes_;
};

using Strings = std::vector<std::string>;

TEST_F(PreSplitTest, WordsBacktrackLeftmostFirst) {
  EXPECT_EQ(Split("HelloWorld"), (Strings{"Hello", "World"}));
  EXPECT_EQ(Split("HTTPServer2xParse"), (Strings{"HTTPServer", "2", "x", "Parse"}));
  EXPECT_EQ(Split("ABC"), (Strings{"ABC"}));
  // The modifier letter is in both sets: alternative 2 ends with it although more letters follow.
  EXPECT_EQ(Split("AB\u02B0CD"), (Strings{"AB\u02B0", "CD"}));
  EXPECT_EQ(Split(" Word-word"), (Strings{" Word", "-word"}));
  EXPECT_EQ(Split("A\u0301B"), (Strings{"A\u0301", "B"}));
  // A mark before capitals: as a prefix it leaves nothing for W+, so it is a word by itself.
  EXPECT_EQ(Split("\u0301AB"), (Strings{"\u0301", "AB"}));
}

TEST_F(PreSplitTest, ContractionsFoldInUnicode) {
  EXPECT_EQ(Split("I'm we'LL can'T"), (Strings{"I'm", " we'LL", " can'T"}));
  EXPECT_EQ(Split("it'\u017F"), (Strings{"it'\u017F"}));
  EXPECT_EQ(Split("it's's"), (Strings{"it's", "'s"}));
  EXPECT_EQ(Split("it'lx"), (Strings{"it", "'lx"}));
  EXPECT_EQ(Split("it'"), (Strings{"it", "'"}));
  EXPECT_EQ(Split("you'r"), (Strings{"you", "'r"}));
  EXPECT_EQ(Split("x'mas"), (Strings{"x'm", "as"}));
}

TEST_F(PreSplitTest, HanIsTheScript) {
  EXPECT_EQ(Split("世界abc"), (Strings{"世界", "abc"}));
  EXPECT_EQ(Split("abc世"), (Strings{"abc", "世"}));
  // Ideographic zero is a number and Han; it opens a run of Han but may end one of numbers.
  EXPECT_EQ(Split("〇1"), (Strings{"〇", "1"}));
  EXPECT_EQ(Split("1〇〇〇"), (Strings{"1〇〇", "〇"}));
  // A radical is a symbol and Han.
  EXPECT_EQ(Split("!⺀"), (Strings{"!⺀"}));
  EXPECT_EQ(Split("⺀!"), (Strings{"⺀", "!"}));
  // Kana, and the prolonged sound mark of script Common, are not Han.
  EXPECT_EQ(Split("カー世"), (Strings{"カー", "世"}));
}

TEST_F(PreSplitTest, NumbersSymbolsAndSpaces) {
  EXPECT_EQ(Split("1234567"), (Strings{"123", "456", "7"}));
  EXPECT_EQ(Split("a 12"), (Strings{"a", " ", "12"}));
  EXPECT_EQ(Split("}\n///"), (Strings{"}\n", "///"}));
  EXPECT_EQ(Split(" ...\r\n\nx"), (Strings{" ...\r\n\n", "x"}));
  EXPECT_EQ(Split("a   b"), (Strings{"a", "  ", " b"}));
  EXPECT_EQ(Split("a   "), (Strings{"a", "   "}));
  EXPECT_EQ(Split("a  \n  b"), (Strings{"a", "  \n", " ", " b"}));
  EXPECT_EQ(Split("\n\n"), (Strings{"\n\n"}));
  // U+001C is space to Python but not to the pattern; U+0085 and U+3000 are space to both.
  EXPECT_EQ(Split("\x1C\x1C"), (Strings{"\x1C\x1C"}));
  EXPECT_EQ(Split("\u0085\u3000x"), (Strings{"\u0085", "\u3000x"}));
}

TEST_F(PreSplitTest, SpacesArePythons) {
  // The code points for which Python 3's str.isspace() is true.
  const std::u32string python_spaces =
      U"\x09\x0A\x0B\x0C\x0D\x1C\x1D\x1E\x1F\x20\x85\xA0\u1680\u2000\u2001\u2002\u2003\u2004\u2005"
      U"\u2006\u2007\u2008\u2009\u200A\u2028\u2029\u202F\u205F\u3000";
  for (char32_t c = 0; c < 0x110000; ++c) {
    const bool is_space = python_spaces.find(c) != std::u32string::npos;
    ASSERT_EQ((classes_.Flags(c) & kPythonSpaceFlag) != 0, is_space) << static_cast<uint32_t>(c);
    const bool is_white = is_space && (c < 0x1C || c > 0x1F);
    ASSERT_EQ((classes_.Flags(c) & kSpaceFlag) != 0, is_white) << static_cast<uint32_t>(c);
  }
}

TEST_F(PreSplitTest, MatchesTheRegularExpression) {
  const PreSplitOracle oracle;
  Random random(20260301, 0);
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = RandomText(random, 1 + static_cast<int64_t>(random.NextBelow(40)));
    std::vector<uint32_t> ends;
    SplitSegment(classes_, text, &ends);
    ASSERT_EQ(Pieces(text, ends), Pieces(text, oracle.Split(text))) << "string " << i;
  }
}

TEST_F(PreSplitTest, EveryPairOfAsciiMatchesTheRegularExpression) {
  const PreSplitOracle oracle;
  for (int first = 0; first < 128; ++first) {
    std::string text;
    for (int second = 0; second < 128; ++second) {
      text += {static_cast<char>(first), static_cast<char>(second), 'x', '.'};
    }
    std::vector<uint32_t> ends;
    SplitSegment(classes_, text, &ends);
    ASSERT_EQ(Pieces(text, ends), Pieces(text, oracle.Split(text))) << first;
  }
}

TEST_F(PreSplitTest, EveryCodePointMatchesTheRegularExpression) {
  const PreSplitOracle oracle;
  // Before, between and after letters of each case every code point shows its classes.
  for (char32_t c = 0; c < 0x110000;) {
    std::string text;
    for (int i = 0; i < 1024; ++i, ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      for (const std::string_view around : {" ", "a", "B", "1", "!"}) {
        text += around;
        AppendUtf8(c, &text);
      }
    }
    std::vector<uint32_t> ends;
    SplitSegment(classes_, text, &ends);
    ASSERT_EQ(ends, oracle.Split(text)) << "before " << static_cast<uint32_t>(c);
  }
}

TEST_F(PreSplitTest, RunsAreCutAtTheirLimit) {
  const std::string letters = Repeat("é", kRunCharactersMax);
  EXPECT_EQ(Segments(""), Strings());
  EXPECT_EQ(Segments(letters), Strings{letters});
  EXPECT_EQ(Segments(letters + "é"), (Strings{letters, "é"}));
  EXPECT_EQ(Segments(letters + letters + "x"), (Strings{letters, letters, "x"}));
  // A character of the other kind restarts the count.
  EXPECT_EQ(Segments(letters + " " + letters), Strings{letters + " " + letters});
  EXPECT_EQ(Segments("ab " + letters + "x"), (Strings{"ab " + letters, "x"}));
  // U+001F counts as white here.
  const std::string spaces = Repeat(" ", kRunCharactersMax - 1);
  EXPECT_EQ(Segments(spaces + "\x1F"), Strings{spaces + "\x1F"});
  EXPECT_EQ(Segments(spaces + "\x1F\u3000"), (Strings{spaces + "\x1F", "\u3000"}));
}

TEST_F(PreSplitTest, SlicesRestartTheRuns) {
  // 399,990 characters of short words, then a run across the edge of the slice.
  const std::string head = Repeat("世 ", (kSliceCharactersMax - 10) / 2);
  const std::string run = Repeat("x", kRunCharactersMax + 10);
  const Strings segments = Segments(head + run + "yz");
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0], head + run.substr(0, 10));
  EXPECT_EQ(segments[1], run.substr(10));
  EXPECT_EQ(segments[2], "yz");
  // A run cut that falls on the edge of a slice makes one cut, not an empty segment.
  const std::string full = Repeat("x", kSliceCharactersMax);
  EXPECT_EQ(Segments(full + full).size(), 2u * kSliceCharactersMax / kRunCharactersMax);
}

TEST_F(PreSplitTest, LookaheadEndsWithTheSegment) {
  // In one piece the last space would go with the word.
  const std::string spaces = Repeat(" ", kRunCharactersMax);
  EXPECT_EQ(Segments(spaces + " x"), (Strings{spaces, " x"}));
  EXPECT_EQ(Split(spaces), Strings{spaces});
}

}  // namespace
}  // namespace k3
