#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "text/random_text.h"
#include "text/utf8.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

std::string ReadModelFile(const std::string& name) {
  std::ifstream file(std::string(K3_SOURCE_DIR) + "/models/kjv/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

Tokenizer MakeKjv() {
  const std::string model = ReadModelFile("tiktoken.model");
  const std::string config = ReadModelFile("tokenizer_config.json");
  Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = config, .vocab_size = 2048});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(TokenizerTest, GivesTheIdsOfTheReference) {
  const Tokenizer tokenizer = MakeKjv();
  const auto cases = nlohmann::json::parse(ReadModelFile("tokenizer_cases.json"));
  ASSERT_GE(cases.size(), 20u);
  for (const auto& item : cases) {
    const auto text = item["text"].get<std::string>();
    const Result<Ids> ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, item["ids"].get<Ids>()) << text;
    EXPECT_EQ(*tokenizer.Decode(*ids), text);
  }
}

TEST(TokenizerTest, KnowsControlTokens) {
  const Tokenizer tokenizer = MakeKjv();
  EXPECT_EQ(tokenizer.vocab_size(), 2048);
  EXPECT_EQ(tokenizer.ranks_count(), 1952);
  EXPECT_EQ(*tokenizer.SpecialId("[BOS]"), 1952);
  EXPECT_EQ(*tokenizer.SpecialId("<|open|>"), 1955);
  EXPECT_EQ(*tokenizer.SpecialId("<|reserved_token_1960|>"), 1960);
  EXPECT_EQ(tokenizer.SpecialId("<|open|").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(tokenizer.SpecialId("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(tokenizer.bos_id(), 1952);
  EXPECT_EQ(tokenizer.eos_id(), 1953);
  EXPECT_EQ(tokenizer.unk_id(), 2046);
  EXPECT_EQ(tokenizer.pad_id(), 2047);
  EXPECT_TRUE(tokenizer.IsSpecial(1952));
  EXPECT_FALSE(tokenizer.IsSpecial(1955));
  EXPECT_TRUE(tokenizer.IsSpecial(1960));
  EXPECT_FALSE(tokenizer.IsSpecial(0));
  EXPECT_EQ(tokenizer.TokenBytes(1954), "<|end_of_msg|>");
  EXPECT_EQ(tokenizer.TokenBytes(65), "A");
}

TEST(TokenizerTest, MarkersInTextStayText) {
  const Tokenizer tokenizer = MakeKjv();
  for (int32_t id = 1952; id < 2048; ++id) {
    const Result<Ids> ids = tokenizer.Encode(tokenizer.TokenBytes(id));
    ASSERT_TRUE(ids.ok());
    for (const int32_t text_id : *ids) EXPECT_LT(text_id, 1952);
  }
}

TEST(TokenizerTest, DecodesWithAndWithoutSpecialTokens) {
  const Tokenizer tokenizer = MakeKjv();
  const Ids ids = {1952, 72, 1955, 105, 1954};
  EXPECT_EQ(*tokenizer.Decode(ids), "[BOS]H<|open|>i<|end_of_msg|>");
  EXPECT_EQ(*tokenizer.Decode(ids, Tokenizer::SpecialTokens::kSkip), "H<|open|>i");
  const Result<std::string> bad = tokenizer.Decode(Ids{1, 2048});
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.status().message(), "id 2048 at position 1 is not in the vocabulary of 2048");
  EXPECT_FALSE(tokenizer.Decode(Ids{-1}).ok());
}

TEST(TokenizerTest, RefusesInvalidUtf8WithItsOffset) {
  const Tokenizer tokenizer = MakeKjv();
  const Result<Ids> ids = tokenizer.Encode("good \xED\xA0\x80");
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "text is not valid UTF-8 at byte offset 5");
}

TEST(TokenizerTest, RoundTripsRandomText) {
  const Tokenizer tokenizer = MakeKjv();
  Random random(11, 0);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = RandomText(random, static_cast<int64_t>(random.NextBelow(60)));
    const Result<Ids> ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(*tokenizer.Decode(*ids), text);
  }
}

TEST(TokenizerTest, OutlivesAMove) {
  Tokenizer first = MakeKjv();
  const Ids ids = *first.Encode("In the beginning");
  const Tokenizer second = std::move(first);
  EXPECT_EQ(*second.Encode("In the beginning"), ids);
  EXPECT_EQ(*second.Decode(ids), "In the beginning");
}

// Measured at 0.06 to 0.3 s; the bound leaves room for a busy machine and for sanitizers, and a
// quadratic step would still take minutes.
TEST(TokenizerTest, HostileTextTakesLinearTime) {
  const Tokenizer tokenizer = MakeKjv();
  constexpr int64_t kBytes = 2'000'000;
  const std::pair<const char*, std::string> cases[] = {
      {"one letter", Repeat("a", kBytes)},
      {"one capital", Repeat("A", kBytes)},
      {"spaces", Repeat(" ", kBytes)},
      {"newlines", Repeat("\n", kBytes)},
      {"spaces and newlines", Repeat(" \n", kBytes / 2)},
      {"alternating cases", Repeat("aB", kBytes / 2)},
      {"capitals and modifier letters", Repeat("AAAAAAAA\u02B0", kBytes / 10)},
      {"combining marks", Repeat("\u0301", kBytes / 2)},
      {"mark before capitals", Repeat("\u0301"
                                      "AAAAAAA",
                                      kBytes / 9)},
      {"digits", Repeat("7", kBytes)},
      {"symbols", Repeat("!", kBytes)},
      {"apostrophes", Repeat("a'", kBytes / 2)},
      {"a word", Repeat("the", kBytes / 3)},
      {"Han", Repeat("世", kBytes / 3)},
      {"emoji", Repeat("👩\u200D", kBytes / 7)},
  };
  for (const auto& [name, text] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const Result<Ids> ids = tokenizer.Encode(text);
    const double seconds = SecondsSince(start);
    ASSERT_TRUE(ids.ok());
    EXPECT_LT(seconds, 20.0) << name;
    EXPECT_EQ(*tokenizer.Decode(*ids), text) << name;
    std::printf("2 MB of %s: %.3f s, %zu ids\n", name, seconds, ids->size());
  }
}

TEST(TokenizerTest, PrintsThroughputOnOrdinaryText) {
  const Tokenizer tokenizer = MakeKjv();
  const std::string text = ReadModelFile("heldout.txt");
  double best = 1e9;
  size_t ids_count = 0;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Result<Ids> ids = tokenizer.Encode(text);
    best = std::min(best, SecondsSince(start));
    ASSERT_TRUE(ids.ok());
    ids_count = ids->size();
  }
  EXPECT_LT(static_cast<double>(ids_count), static_cast<double>(text.size()) / 2);
  std::printf("heldout.txt: %.1f MB/s, %.2f bytes an id\n",
              static_cast<double>(text.size()) / best / 1e6,
              static_cast<double>(text.size()) / static_cast<double>(ids_count));
}

}  // namespace
}  // namespace k3
