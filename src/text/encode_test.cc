// Encoding as a whole and its fast paths against slow ones that share no code with them beyond the
// file's parser: ICU's regular expressions for the pieces, maps and strings for the merging, one
// character at a time for segments and for UTF-8.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <unordered_map>

#include "text/byte_pair.h"
#include "text/pre_split.h"
#include "text/pre_split_oracle.h"
#include "text/random_text.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

std::string ReadFile(const std::string& name) {
  std::ifstream file(std::string(K3_SOURCE_DIR) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

class SlowEncoder {
 public:
  explicit SlowEncoder(const std::string& model) {
    const Result<TokenTable> table = ParseTiktokenFile(model, "tiktoken.model");
    EXPECT_TRUE(table.ok());
    for (int32_t id = 0; id < table->size(); ++id) ids_.emplace(table->Bytes(id), id);
  }

  /// Of a text that is one segment.
  Ids Encode(std::string_view text) const {
    Ids ids;
    uint32_t start = 0;
    for (const uint32_t end : oracle_.Split(text)) {
      EncodePiece(std::string(text.substr(start, end - start)), &ids);
      start = end;
    }
    return ids;
  }

 private:
  static constexpr int32_t kNone = INT32_MAX;

  int32_t Find(const std::string& bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? kNone : found->second;
  }

  void EncodePiece(const std::string& piece, Ids* ids) const {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    if (Find(piece) != kNone) parts = {piece};
    while (true) {
      int32_t best_rank = kNone;
      size_t best = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const int32_t rank = Find(parts[i] + parts[i + 1]);
        if (rank < best_rank) {
          best_rank = rank;
          best = i;
        }
      }
      if (best_rank == kNone) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<int64_t>(best) + 1);
    }
    for (const std::string& part : parts) ids->push_back(Find(part));
  }

  std::unordered_map<std::string, int32_t> ids_;
  PreSplitOracle oracle_;
};

// Text as people write it, in scripts that the rules treat differently.
constexpr std::string_view kPassages[] = {
    "In the beginning God created the heaven and the earth. And the earth was without form; ",
    "태초에 하나님이 천지를 창조하시니라 땅이 혼돈하고 공허하며 흑암이 깊음 위에 있고 ",
    "起初，神創造天地。地是空虛混沌，淵面黑暗；神的靈運行在水面上。",
    "はじめに神は天と地とを創造された。地は形なく、むなしく、やみが淵のおもてにあり、",
    "В начале сотворил Бог небо и землю. Земля же была безвидна и пуста, и тьма над бездною. ",
    "في البدء خلق الله السماوات والأرض، وكانت الأرض خربة وخالية. ",
    "आदि में परमेश्वर ने आकाश और पृथ्वी की सृष्टि की। ",
    "  for (int64_t i = 0; i < 1'024; ++i) sum += values[i] * 0.5f;\n\n\t// It's the caller's.\n",
    "ÉTÉ l'Œuvre Ǆungla naïve 12,345.678 ½ № 5 — “quoted” …\r\n",
    "👩‍👩‍👧 🏽🇰🇷 1️⃣ \u00A0\u3000  \u2028",
};

std::string AnyText(Random& random) {
  std::string text;
  for (uint64_t left = 1 + random.NextBelow(6); left > 0; --left) {
    const std::string_view passage = kPassages[random.NextBelow(std::size(kPassages))];
    text += random.NextBelow(3) == 0
                ? RandomText(random, static_cast<int64_t>(random.NextBelow(80)))
                : Repeat(passage, 1 + static_cast<int64_t>(random.NextBelow(3)));
  }
  return text;
}

TEST(EncodeTest, FollowsTheSlowWayInManyScripts) {
  for (const auto& [directory, vocab_size] : {std::pair("kjv", 2048), std::pair("nano", 2560)}) {
    const std::string folder = std::string("models/") + directory;
    const std::string model = ReadFile(folder + "/tiktoken.model");
    const std::string config = ReadFile(folder + "/tokenizer_config.json");
    const Result<Tokenizer> tokenizer =
        Tokenizer::Create({.model = model, .config = config, .vocab_size = vocab_size});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    const SlowEncoder slow(model);
    Random random(31, static_cast<uint64_t>(vocab_size));
    for (int i = 0; i < 400; ++i) {
      const std::string text = AnyText(random);
      const Result<Ids> ids = tokenizer->Encode(text);
      ASSERT_TRUE(ids.ok());
      ASSERT_EQ(*ids, slow.Encode(text)) << directory << ", text " << i << ": " << text;
    }
  }
}

// From one place for all pieces to one for each: they push each other out or come back.
TEST(EncodeTest, RememberedPiecesKeepTheirIds) {
  Random random(32, 0);
  TokenTable ranks;
  for (int byte = 0; byte < 256; ++byte) ranks.Append(std::string(1, static_cast<char>(byte)));
  for (int i = 0; i < 300; ++i) {
    std::string token;
    for (uint64_t left = 2 + random.NextBelow(14); left > 0; --left) {
      token += "abc"[random.NextBelow(3)];
    }
    ranks.Append(token);
    ranks.Append(token.substr(0, 2));
  }
  for (const int64_t text_bytes : {0, 100, 1000, 1'000'000}) {
    PieceEncoder encoder(ranks, text_bytes);
    // Long pieces that differ in one byte, and short ones, over and over.
    // The encoder looks at earlier bytes, so the strings must not move.
    std::vector<std::string> segments;
    segments.reserve(200);
    Ids ids, expected;
    for (int i = 0; i < 200; ++i) {
      std::string segment;
      std::vector<uint32_t> ends;
      for (uint64_t left = random.NextBelow(80); left > 0; --left) {
        std::string piece = Repeat("ab", static_cast<int64_t>(random.NextBelow(12)));
        if (random.NextBelow(20) == 0) piece += Repeat("cab", 40);
        piece += "abc"[random.NextBelow(3)];
        EncodePiece(ranks, piece, &expected);
        segment += piece;
        ends.push_back(static_cast<uint32_t>(segment.size()));
      }
      segments.push_back(std::move(segment));
      encoder.Append(segments.back(), ends, &ids);
    }
    ASSERT_EQ(ids, expected) << text_bytes;
  }
}

TEST(EncodeTest, TheFilterHidesNoToken) {
  Random random(33, 0);
  TokenTable table;
  std::vector<std::string> tokens;
  for (int i = 0; i < 50'000; ++i) {
    std::string bytes;
    for (uint64_t left = random.NextBelow(30); left > 0; --left) {
      bytes.push_back(static_cast<char>(random.NextBelow(256)));
    }
    if (i % 2 == 0) table.Append(bytes);
    tokens.push_back(std::move(bytes));
  }
  for (const std::string& token : tokens) {
    ASSERT_EQ(table.FindRare(token), table.Find(token));
    if (token.size() != 2) continue;
    ASSERT_EQ(table.FindPair(static_cast<uint8_t>(token[0]), static_cast<uint8_t>(token[1])),
              table.Find(token));
  }
}

// The rule as it reads: a look at every character.
std::vector<size_t> CutOneByOne(const CharacterClasses& classes, std::string_view text) {
  std::vector<size_t> cuts;
  int64_t slice = 0, run = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    const bool is_space = (classes.Flags(step.code_point) & kPythonSpaceFlag) != 0;
    if (is_space != run_is_space) run = 0;
    if (slice == kSliceCharactersMax || run == kRunCharactersMax) {
      cuts.push_back(at);
      if (slice == kSliceCharactersMax) slice = 0;
      run = 0;
    }
    run_is_space = is_space;
    ++slice, ++run;
    at += static_cast<size_t>(step.length);
  }
  if (!text.empty()) cuts.push_back(text.size());
  return cuts;
}

TEST(EncodeTest, SegmentsAreThoseOfOneByOne) {
  const CharacterClasses classes;
  Random random(34, 0);
  constexpr std::string_view kUnits[] = {"x",      "é",          "한",        "👩",
                                         " ",      "\n",         "\u3000",    "\x1F",
                                         "ab 世 ", "가나\u3000", "가나 다라", "\u00A0x"};
  size_t cuts_count = 0;
  for (int i = 0; i < 40; ++i) {
    std::string text;
    for (uint64_t left = 1 + random.NextBelow(12); left > 0; --left) {
      // Now and then exactly the limit, or one off.
      const auto count = static_cast<int64_t>(random.NextBelow(2) == 0
                                                  ? kRunCharactersMax - 1 + random.NextBelow(3)
                                                  : random.NextBelow(60'000));
      text += Repeat(kUnits[random.NextBelow(std::size(kUnits))], count);
      if (random.NextBelow(2) == 0) text += RandomText(random, 50);
    }
    std::vector<size_t> cuts;
    size_t at = 0;
    SegmentCutter cutter(classes, text);
    for (std::string_view s = cutter.Next(); !s.empty(); s = cutter.Next()) {
      cuts.push_back(at += s.size());
    }
    ASSERT_EQ(cuts, CutOneByOne(classes, text)) << "text " << i;
    cuts_count += cuts.size();
  }
  EXPECT_GT(cuts_count, 100u);
}

TEST(EncodeTest, InvalidTextIsFoundWhereDecodingFindsIt) {
  Random random(35, 0);
  int invalid_count = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = RandomText(random, static_cast<int64_t>(random.NextBelow(30)));
    for (uint64_t left = random.NextBelow(3); left > 0 && !text.empty(); --left) {
      text[random.NextBelow(text.size())] = static_cast<char>(random.NextBelow(256));
    }
    int64_t expected = -1;
    for (size_t at = 0; at < text.size() && expected < 0;) {
      const Utf8Step step = DecodeUtf8(std::string_view(text).substr(at));
      if (step.kind != Utf8Step::Kind::kValid) {
        expected = static_cast<int64_t>(at);
        continue;
      }
      const Utf8Step same = ReadValidUtf8(text.data() + at);
      ASSERT_EQ(same.code_point, step.code_point);
      ASSERT_EQ(same.length, step.length);
      at += static_cast<size_t>(step.length);
    }
    ASSERT_EQ(FindInvalidUtf8(text), expected);
    invalid_count += expected >= 0;
  }
  EXPECT_GT(invalid_count, 5000);
}

}  // namespace
}  // namespace k3
