#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ostream>

#include "base/random.h"
#include "text/utf8_stream.h"

namespace k3 {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  std::optional<size_t> matched;

  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
  stream << testing::PrintToString(outcome.text) << ", matched ";
  return outcome.matched ? stream << *outcome.matched : stream << "none";
}

/// What the header says, by looking for every string in the whole text.
Outcome FindNaively(const Strings& stops, std::string_view text) {
  Outcome outcome{std::string(text), std::nullopt};
  size_t first_end = std::string_view::npos;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t begin = text.find(stops[i]);
    if (begin == std::string_view::npos) continue;
    const size_t end = begin + stops[i].size();
    const bool longer = outcome.matched && stops[i].size() > stops[*outcome.matched].size();
    if (end < first_end || (end == first_end && longer)) {
      first_end = end;
      outcome = {std::string(text.substr(0, begin)), i};
    }
  }
  return outcome;
}

StopMatcher Make(const Strings& stops) {
  Result<StopMatcher> matcher = StopMatcher::Create(stops);
  EXPECT_TRUE(matcher.ok()) << matcher.status().ToString();
  return *matcher;
}

/// Feeds the text in pieces that end where a bit of `cuts` is set, and in one last piece.
Outcome FeedInPieces(StopMatcher matcher, std::string_view text, uint64_t cuts) {
  Outcome outcome;
  size_t begin = 0;
  for (size_t end = 1; end <= text.size(); ++end) {
    if (end < text.size() && (cuts >> (end - 1) & 1) == 0) continue;
    outcome.text += matcher.Feed(text.substr(begin, end - begin));
    begin = end;
  }
  outcome.text += matcher.Finish();
  outcome.matched = matcher.matched();
  return outcome;
}

TEST(StopMatcherTest, RefusesWhatIsNoStopString) {
  EXPECT_EQ(StopMatcher::Create({"a", ""}).status().message(),
            "stop string 2 has 0 bytes, expected 1 to 4096");
  EXPECT_EQ(StopMatcher::Create({std::string(4097, 'x')}).status().message(),
            "stop string 1 has 4097 bytes, expected 1 to 4096");
  EXPECT_EQ(StopMatcher::Create(Strings(65, "a")).status().message(),
            "65 stop strings, expected at most 64");
  EXPECT_TRUE(StopMatcher::Create(Strings(64, std::string(4096, 'x'))).ok());
}

TEST(StopMatcherTest, HoldsBackWhatMayBecomeAMatch) {
  StopMatcher matcher = Make({"User:"});
  EXPECT_EQ(matcher.Feed("So U"), "So ");
  EXPECT_EQ(matcher.held_bytes(), 1);
  EXPECT_EQ(matcher.Feed("se"), "");
  EXPECT_EQ(matcher.Feed("d by Us"), "Used by ");  // Held text that became none is released.
  EXPECT_EQ(matcher.Feed("er: and more"), "");
  EXPECT_EQ(matcher.matched(), 0u);
  EXPECT_EQ(matcher.Feed("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_EQ(matcher.matched(), 0u);
}

TEST(StopMatcherTest, TheEndGivesBackWhatWasHeld) {
  StopMatcher matcher = Make({"abc", "bcd"});
  EXPECT_EQ(matcher.Feed("xab"), "x");
  EXPECT_EQ(matcher.Finish(), "ab");
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.held_bytes(), 0);
}

TEST(StopMatcherTest, NoStopStringsLetEverythingThrough) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Feed("a"), "a");
  EXPECT_EQ(matcher.Feed(""), "");
  EXPECT_EQ(matcher.Feed(std::string("\0\xff", 2)), std::string("\0\xff", 2));
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, TheFirstEndWinsAndTheLongestOfThose) {
  const auto find = [](const Strings& stops, std::string_view text) {
    return FeedInPieces(Make(stops), text, 0);
  };
  EXPECT_EQ(find({"abcd", "bc"}, "xabcd"), (Outcome{"xa", 1}));  // ends first
  EXPECT_EQ(find({"bc", "abc"}, "xabcd"), (Outcome{"x", 1}));    // the same end, longer
  EXPECT_EQ(find({"abce", "bc"}, "xabd bc"), (Outcome{"xabd ", 1}));
  EXPECT_EQ(find({"aab", "aab"}, "aaab"), (Outcome{"a", 0}));  // the first of equal ones
  EXPECT_EQ(find({"b", "ab", "aab"}, "aaab"), (Outcome{"a", 2}));
  EXPECT_EQ(find({"aaaa", "ab"}, "aaab"), (Outcome{"aa", 1}));
}

TEST(StopMatcherTest, EverySplitGivesTheSame) {
  const Strings lists[] = {{"aba", "abab"}, {"aab", "ab", "b"},   {"abc", "bcd", "cde"},
                           {"aaaaa"},       {"abacabad", "acad"}, {"\n\n", "\n"}};
  const char* texts[] = {"abacababaabc", "aaaaaaaaab", "xbcdabcde", "abacabacabad", "a\n\nb\n"};
  for (const Strings& stops : lists) {
    const StopMatcher matcher = Make(stops);
    for (const std::string_view text : texts) {
      const Outcome expected = FindNaively(stops, text);
      for (uint64_t cuts = 0; cuts < uint64_t{1} << (text.size() - 1); ++cuts) {
        ASSERT_EQ(FeedInPieces(matcher, text, cuts), expected) << text << " cut at " << cuts;
      }
    }
  }
}

TEST(StopMatcherTest, AgreesWithFindingOnRandomText) {
  Random random(21, 0);
  const auto random_bytes = [&](uint64_t size_max, uint64_t letters) {
    std::string bytes(random.NextBelow(size_max + 1), ' ');
    for (char& byte : bytes) byte = static_cast<char>('a' + random.NextBelow(letters));
    return bytes;
  };
  int64_t matches = 0;
  for (int round = 0; round < 30'000; ++round) {
    const uint64_t letters = 1 + random.NextBelow(3);
    Strings stops(1 + random.NextBelow(5));
    for (std::string& stop : stops) stop = 'a' + random_bytes(7, letters);
    const std::string text = random_bytes(60, letters);
    const Outcome expected = FindNaively(stops, text);
    ASSERT_EQ(FeedInPieces(Make(stops), text, random.NextUint64()), expected)
        << testing::PrintToString(stops) << " in " << text;
    matches += expected.matched.has_value();
  }
  EXPECT_GT(matches, 5'000);
  EXPECT_LT(matches, 25'000);
}

// What is given out never goes beyond a match, and what is held back is never more than needed.
TEST(StopMatcherTest, HoldsNoMoreThanNeeded) {
  const Strings stops = {"abab", "bc"};
  Random random(22, 0);
  for (int round = 0; round < 2'000; ++round) {
    StopMatcher matcher = Make(stops);
    std::string text;
    std::string shown;
    while (!matcher.matched() && text.size() < 50) {
      text += static_cast<char>('a' + random.NextBelow(3));
      shown += matcher.Feed(std::string_view(text).substr(text.size() - 1));
      if (matcher.matched()) break;
      size_t needed = 0;
      for (const std::string& stop : stops) {
        for (size_t n = 1; n < stop.size(); ++n) {
          if (text.ends_with(stop.substr(0, n))) needed = std::max(needed, n);
        }
      }
      ASSERT_EQ(shown, text.substr(0, text.size() - needed));
    }
  }
}

TEST(StopMatcherTest, AStopStringMayBeAPartOfACharacter) {
  const std::string emoji = "\xF0\x9F\x98\x80";
  const std::string text = "hi " + emoji + "!";
  const auto shown = [&](const Strings& stops, size_t piece) {
    StopMatcher matcher = Make(stops);
    Utf8Stream utf8;
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) {
      out += utf8.Feed(matcher.Feed(std::string_view(text).substr(at, piece)));
    }
    out += utf8.Feed(matcher.Finish());
    return out += utf8.Finish();
  };
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    EXPECT_EQ(shown({"\xF0\x9F"}, piece), "hi ");
    EXPECT_EQ(shown({"\x98\x80"}, piece), "hi \xEF\xBF\xBD");  // The other half is no character.
    EXPECT_EQ(shown({"\x9F\x98"}, piece), "hi \xEF\xBF\xBD");
    EXPECT_EQ(shown({"\x80?"}, piece), text);  // Held inside the emoji, and released.
    EXPECT_EQ(shown({emoji}, piece), "hi ");
  }
}

// The worst cases of naive matching: the largest strings, all but equal to the text and to each
// other. The bound only catches time that is quadratic in the length of a stop string.
TEST(StopMatcherTest, LongStopStringsTakeLinearTime) {
  constexpr size_t kBytes = 200'000;
  Strings stops;
  for (int64_t i = 0; i < kStopStringsMax; ++i) {
    stops.push_back(std::string(static_cast<size_t>(kStopStringBytesMax - 1 - i), 'a') + 'b');
  }
  StopMatcher matcher = Make(stops);
  const auto start = std::chrono::steady_clock::now();
  size_t shown = 0;
  for (size_t i = 0; i < kBytes; ++i) shown += matcher.Feed(i % 5'000 == 4'000 ? "c" : "a").size();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(shown + matcher.Finish().size(), kBytes);
  std::printf("%zu strings, %zu bytes: %.0f ns a byte\n", stops.size(), kBytes,
              took.count() * 1e9 / kBytes);
  EXPECT_LT(took.count(), 10.0);
}

}  // namespace
}  // namespace k3
