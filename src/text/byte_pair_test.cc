#include "text/byte_pair.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>

#include "base/random.h"
#include "text/random_text.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

TokenTable SingleBytes() {
  TokenTable table;
  for (int byte = 0; byte < 256; ++byte) table.Append(std::string(1, static_cast<char>(byte)));
  return table;
}

// The rule as it reads, in cubic time.
Ids MergeByTheBook(const TokenTable& ranks, std::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    int32_t best_rank = INT32_MAX;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t rank = ranks.Find(parts[i] + parts[i + 1]);
      if (rank != TokenTable::kNotFound && rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == INT32_MAX) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(ranks.Find(part));
  return ids;
}

// Joins random tokens of the table, as training would, but with no text to learn from.
TokenTable RandomVocabulary(Random& random, std::string_view alphabet, int64_t merges) {
  TokenTable table = SingleBytes();
  std::vector<std::string> tokens;
  for (const char c : alphabet) tokens.emplace_back(1, c);
  for (int64_t i = 0; i < merges; ++i) {
    std::string joined = tokens[random.NextBelow(tokens.size())];
    joined += tokens[random.NextBelow(tokens.size())];
    if (table.Append(joined) != TokenTable::kNotFound) tokens.push_back(joined);
  }
  return table;
}

TEST(TokenTableTest, FindsWhatWasAppended) {
  TokenTable table;
  EXPECT_EQ(table.Find("a"), TokenTable::kNotFound);
  EXPECT_EQ(table.FindByte('a'), TokenTable::kNotFound);
  Random random(3, 0);
  std::map<std::string, int32_t> expected;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (uint64_t left = random.NextBelow(20); left > 0; --left) {
      bytes.push_back(static_cast<char>(random.NextBelow(4)));
    }
    const auto number = static_cast<int32_t>(table.size());
    const bool is_new = expected.emplace(bytes, number).second;
    ASSERT_EQ(table.Append(bytes), is_new ? number : TokenTable::kNotFound);
  }
  for (const auto& [bytes, number] : expected) {
    ASSERT_EQ(table.Find(bytes), number);
    ASSERT_EQ(table.Bytes(number), bytes);
    if (bytes.size() != 1) continue;
    ASSERT_EQ(table.FindByte(static_cast<uint8_t>(bytes[0])), number);
  }
  EXPECT_EQ(table.size(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(table.longest_bytes(), 19);
  EXPECT_EQ(table.Find(std::string(20, '\0')), TokenTable::kNotFound);
}

TEST(BytePairTest, LowestRankThenLeftmost) {
  TokenTable ranks = SingleBytes();
  const int32_t bc = ranks.Append("bc");
  const int32_t aa = ranks.Append("aa");
  const int32_t ab = ranks.Append("ab");
  Ids ids;
  EncodePiece(ranks, "abc", &ids);
  EXPECT_EQ(ids, (Ids{'a', bc}));
  ids.clear();
  EncodePiece(ranks, "aaa", &ids);
  EXPECT_EQ(ids, (Ids{aa, 'a'}));
  ids.clear();
  EncodePiece(ranks, "aaab", &ids);
  EXPECT_EQ(ids, (Ids{aa, ab}));
}

TEST(BytePairTest, AWholePieceIsItsToken) {
  TokenTable ranks = SingleBytes();
  // No sequence of merges reaches it, yet tiktoken finds it.
  const int32_t xyz = ranks.Append("xyz");
  Ids ids;
  EncodePiece(ranks, "xyz", &ids);
  EXPECT_EQ(ids, (Ids{xyz}));
  ids.clear();
  EncodePiece(ranks, "xyzz", &ids);
  EXPECT_EQ(ids, (Ids{'x', 'y', 'z', 'z'}));
}

TEST(BytePairTest, BothWaysFollowTheBook) {
  Random random(17, 0);
  for (int i = 0; i < 2000; ++i) {
    const std::string_view alphabet = i % 3 == 0 ? "a" : i % 3 == 1 ? "ab" : "abcde";
    const TokenTable ranks =
        RandomVocabulary(random, alphabet, static_cast<int64_t>(random.NextBelow(60)));
    std::string piece;
    const uint64_t size = 1 + random.NextBelow(internal::kScanBytesMax);
    while (piece.size() < size) piece += alphabet[random.NextBelow(alphabet.size())];
    const Ids expected = MergeByTheBook(ranks, piece);
    Ids scan, heap;
    internal::MergeByScan(ranks, piece, &scan);
    internal::MergeByHeap(ranks, piece, &heap);
    ASSERT_EQ(scan, expected) << piece;
    ASSERT_EQ(heap, expected) << piece;
  }
}

TEST(BytePairTest, LongPiecesFollowTheBook) {
  Random random(18, 0);
  for (int i = 0; i < 20; ++i) {
    const TokenTable ranks = RandomVocabulary(random, "abc", 200);
    std::string piece;
    while (piece.size() < 300 + random.NextBelow(300)) piece += "abc"[random.NextBelow(3)];
    Ids ids;
    EncodePiece(ranks, piece, &ids);
    ASSERT_EQ(ids, MergeByTheBook(ranks, piece));
  }
}

// One piece of 2 MB, longer than the pre-splitter ever gives, with merges up to 128 letters.
// Measured at 0.7 s; quadratic merging would take hours.
TEST(BytePairTest, OneLongPieceTakesNLogN) {
  TokenTable ranks = SingleBytes();
  for (int64_t size = 2; size <= 128; size *= 2) ranks.Append(Repeat("a", size));
  const std::string piece = Repeat("a", 2'000'000);
  Ids ids;
  const auto start = std::chrono::steady_clock::now();
  EncodePiece(ranks, piece, &ids);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(ids.size(), 2'000'000u / 128);
  EXPECT_LT(seconds, 20.0);
  std::printf("one piece of 2 MB: %.3f s\n", seconds);
}

}  // namespace
}  // namespace k3
