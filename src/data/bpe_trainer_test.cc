#include "data/bpe_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/random.h"
#include "text/pre_split.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace k3 {
namespace {

using Strings = std::vector<std::string>;

Strings Train(const Strings& texts, const BpeTrainerOptions& options) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  Result<Strings> tokens = TrainBpe(views, options);
  EXPECT_TRUE(tokens.ok()) << tokens.status().ToString();
  return tokens.ok() ? *tokens : Strings();
}

/// The merges alone.
Strings Merges(const Strings& tokens) {
  return tokens.size() < 256 ? Strings() : Strings(tokens.begin() + 256, tokens.end());
}

// The same by the shortest way: everything is counted again for every merge.
class NaiveTrainer {
 public:
  explicit NaiveTrainer(const Strings& texts) {
    const CharacterClasses classes;
    for (const std::string& text : texts) {
      std::vector<uint32_t> ends;
      SplitSegment(classes, text, &ends);
      uint32_t start = 0;
      for (const uint32_t end : ends) {
        Strings word;
        for (; start < end; ++start) word.push_back(text.substr(start, 1));
        words_.push_back(word);
      }
    }
    for (int byte = 0; byte < 256; ++byte) tokens_.push_back({static_cast<char>(byte)});
  }

  Strings Train(const BpeTrainerOptions& options) {
    std::set<std::string> known(tokens_.begin(), tokens_.end());
    while (static_cast<int64_t>(tokens_.size()) < options.ranks) {
      std::map<std::pair<std::string, std::string>, int64_t> counts;
      for (const Strings& word : words_) {
        for (size_t i = 1; i < word.size(); ++i) ++counts[{word[i - 1], word[i]}];
      }
      // The map ascends, so that the last of the most frequent is the largest.
      auto best = counts.end();
      for (auto it = counts.begin(); it != counts.end(); ++it) {
        if (best == counts.end() || it->second >= best->second) best = it;
      }
      if (best == counts.end() || best->second < options.pair_count_min) break;
      const auto [left, right] = best->first;
      for (Strings& word : words_) MergeIn(&word, left, right);
      if (known.insert(left + right).second) tokens_.push_back(left + right);
    }
    return tokens_;
  }

 private:
  static void MergeIn(Strings* word, const std::string& left, const std::string& right) {
    Strings merged;
    for (size_t i = 0; i < word->size(); ++i) {
      if (i + 1 < word->size() && (*word)[i] == left && (*word)[i + 1] == right) {
        merged.push_back(left + right);
        ++i;
      } else {
        merged.push_back((*word)[i]);
      }
    }
    *word = merged;
  }

  std::vector<Strings> words_;
  Strings tokens_;
};

std::string RandomTextOf(Random& random, const std::u32string& alphabet, int64_t length) {
  std::string text;
  for (int64_t i = 0; i < length; ++i) {
    AppendUtf8(alphabet[random.NextBelow(alphabet.size())], &text);
  }
  return text;
}

std::string ReadHeldout() {
  std::ifstream stream(K3_SOURCE_DIR "/models/kjv/heldout.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

constexpr std::string_view kConfig = R"({"added_tokens_decoder": {}})";

TEST(BpeTrainerTest, TheBytesComeFirst) {
  const Strings tokens = Train({"abc"}, {.ranks = 256});
  ASSERT_EQ(tokens.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokens[byte], std::string(1, static_cast<char>(byte)));
  }
}

TEST(BpeTrainerTest, TheMostFrequentPairThenTheLargest) {
  // Digits are pieces by themselves. "ab" three times, "cd" and "xy" twice.
  EXPECT_EQ(Merges(Train({"ab1cd1xy1ab1cd1xy1ab"}, {.ranks = 400})), (Strings{"ab", "xy", "cd"}));
  // The left half decides before the right one, and a longer one is larger than its beginning.
  EXPECT_EQ(Merges(Train({"bz1ca1bz1ca"}, {.ranks = 257})), (Strings{"ca"}));
  EXPECT_EQ(Merges(Train({"ba1bc1ba1bc"}, {.ranks = 257})), (Strings{"bc"}));
  // Bytes above 0x7F are larger than ASCII.
  EXPECT_EQ(Merges(Train({"zz1é1zz1é"}, {.ranks = 257})), (Strings{"é"}));
}

TEST(BpeTrainerTest, PiecesBoundTheMerges) {
  // A space goes with the word behind it; texts do not touch.
  EXPECT_EQ(Merges(Train({"a a a a"}, {.ranks = 400})), (Strings{" a"}));
  EXPECT_EQ(Merges(Train({"a", "b", "a", "b"}, {.ranks = 400})), Strings());
}

TEST(BpeTrainerTest, RepeatedBytesMergeFromTheLeft) {
  EXPECT_EQ(Merges(Train({"aaaaa1aaaaa"}, {.ranks = 400})), (Strings{"aa", "aaaa", "aaaaa"}));
  EXPECT_EQ(Merges(Train({"aaa"}, {.ranks = 400})), (Strings{"aa"}));
}

TEST(BpeTrainerTest, RarePairsEndTheTraining) {
  const Strings texts = {"abab1abab1cd1cd1cd"};
  EXPECT_EQ(Merges(Train(texts, {.ranks = 400, .pair_count_min = 3})), (Strings{"ab", "cd"}));
  EXPECT_EQ(Merges(Train(texts, {.ranks = 400, .pair_count_min = 4})), (Strings{"ab"}));
  EXPECT_EQ(Merges(Train({"ab"}, {.ranks = 400, .pair_count_min = 1})), (Strings{"ab"}));
  EXPECT_EQ(Merges(Train({}, {.ranks = 400})), Strings());
}

TEST(BpeTrainerTest, EqualsTheNaiveTrainer) {
  const std::u32string alphabets[] = {U"a", U"ab", U"aab ", U"abc.", U"aAb'\n 1é", U"世界é a"};
  Random random(20260302, 0);
  for (int round = 0; round < 300; ++round) {
    const std::u32string& alphabet = alphabets[random.NextBelow(std::size(alphabets))];
    Strings texts;
    for (uint64_t i = 0; i <= random.NextBelow(3); ++i) {
      texts.push_back(RandomTextOf(random, alphabet, static_cast<int64_t>(random.NextBelow(200))));
    }
    const BpeTrainerOptions options{
        .ranks = 256 + static_cast<int64_t>(random.NextBelow(80)),
        .pair_count_min = 1 + static_cast<int64_t>(random.NextBelow(3))};
    const Strings tokens = Train(texts, options);
    ASSERT_EQ(Merges(tokens), Merges(NaiveTrainer(texts).Train(options))) << "round " << round;
    ASSERT_EQ(std::set<std::string>(tokens.begin(), tokens.end()).size(), tokens.size());
  }
}

TEST(BpeTrainerTest, TheOrderOfTextsDoesNotMatter) {
  const std::string text = ReadHeldout();
  ASSERT_GT(text.size(), 100'000u);
  const size_t middle = text.find('\n', text.size() / 2);
  Strings texts = {text.substr(0, middle), text.substr(middle)};
  const Strings tokens = Train(texts, {.ranks = 2000});
  EXPECT_EQ(tokens, Train(texts, {.ranks = 2000}));
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(tokens, Train(texts, {.ranks = 2000}));
  // Fewer ranks are the beginning of more.
  const Strings fewer = Train(texts, {.ranks = 700});
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), tokens.begin()));
}

TEST(BpeTrainerTest, TheTokenizerTakesTheFile) {
  const std::string text = ReadHeldout();
  const Strings tokens = Train({text}, {.ranks = 3000});
  ASSERT_EQ(tokens.size(), 3000u);
  const std::string model = FormatTiktokenFile(tokens);
  const Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = kConfig, .vocab_size = 3000});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  for (int32_t rank = 0; rank < 3000; ++rank) {
    ASSERT_EQ(tokenizer->TokenBytes(rank), tokens[static_cast<size_t>(rank)]);
  }
  const std::string other = text + "  \r\n 世界 \U0001F600 é 12345 Other'LL \x01";
  const Result<std::vector<int32_t>> ids = tokenizer->Encode(other);
  ASSERT_TRUE(ids.ok());
  EXPECT_GT(static_cast<double>(other.size()) / static_cast<double>(ids->size()), 3.5);
  EXPECT_EQ(tokenizer->Decode(*ids).value(), other);
}

TEST(BpeTrainerTest, TokensStayBelowTheLimitOfTheTokenizer) {
  // Eight equal words, each longer than a token may be.
  std::string word;
  for (int i = 0; i < 24'000; ++i) word += "\U00020000";  // Han, four bytes each
  const Strings texts(8, word);
  const Strings tokens = Train(texts, {.ranks = 400});
  const Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = FormatTiktokenFile(tokens),
                         .config = kConfig,
                         .vocab_size = static_cast<int64_t>(tokens.size())});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
}

TEST(BpeTrainerTest, RefusesBadCalls) {
  const auto error = [](std::string_view text, const BpeTrainerOptions& options) {
    const std::vector<std::string_view> texts = {"fine", text};
    return TrainBpe(texts, options).status().ToString();
  };
  EXPECT_EQ(error("", {.ranks = 255}),
            "InvalidArgument: ranks: expected 256 (every single byte) to 1000000, found 255");
  EXPECT_NE(error("", {.ranks = 1'000'001}).find("found 1000001"), std::string::npos);
  EXPECT_EQ(error("", {.ranks = 256, .pair_count_min = 0}),
            "InvalidArgument: pair_count_min: expected at least 1, found 0");
  EXPECT_EQ(error("ab\xFF", {.ranks = 256}),
            "InvalidArgument: text 1: expected UTF-8, found other bytes at byte offset 2");
}

TEST(BpeTrainerTest, WritesPaddedBase64) {
  EXPECT_EQ(FormatTiktokenFile(Strings{"a", "ab", "abc", "\xFF\xFE"}),
            "YQ== 0\nYWI= 1\nYWJj 2\n//4= 3\n");
  EXPECT_EQ(FormatTiktokenFile({}), "");
}

}  // namespace
}  // namespace k3
