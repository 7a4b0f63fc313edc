#include "grammar/token_trie.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <set>

#include "grammar/grammar_test_util.h"

namespace k3 {
namespace {

using Mask = std::vector<uint32_t>;

/// Words and signs as a large vocabulary has them: words with and without a space, letters of two,
/// three and four bytes, parts of characters, digits, and what stands between JSON's strings.
std::vector<std::string> SyntheticTokens(size_t count, Random& random) {
  static const std::vector<std::string> kSigns = {
      "\"",    "\",", "\":", "\": ", "\": \"", "\", \"", "{\"", "[\"", "\"}",  "\"]",   "}}",
      "]}",    "},",  "\\n", "\\",   "\\\"",   "\n",     " \n", "  ",  "null", "true",  "false",
      ": {\"", "[]",  "{}",  "[[",   "]]",     "}, {",   "10",  "1.5", "-1",   "\\u00", "]\n"};
  std::set<std::string> seen;
  std::vector<std::string> tokens;
  const auto add = [&](std::string token) {
    if (seen.insert(token).second) tokens.push_back(std::move(token));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& sign : kSigns) add(sign);
  while (tokens.size() < count) {
    std::string token;
    const uint64_t kind = random.NextBelow(100);
    const uint64_t size = 2 + random.NextBelow(8);
    if (kind < 60 || kind >= 97) {
      if (random.NextBelow(2) == 0) token = " ";
      for (uint64_t i = 0; i < size; ++i) token += static_cast<char>('a' + random.NextBelow(26));
      if (kind >= 97) token += kSigns[random.NextBelow(kSigns.size())];
    } else {
      constexpr std::array<char32_t, 3> kFirst = {0x410, 0x4E00, 0x1F300};
      constexpr std::array<uint64_t, 3> kCount = {64, 20000, 500};
      const size_t script = kind < 70 ? 0 : kind < 96 ? 1 : 2;
      for (uint64_t i = 0; i < 1 + size / 3; ++i) {
        AppendUtf8(kFirst[script] + static_cast<char32_t>(random.NextBelow(kCount[script])),
                   &token);
      }
      if (random.NextBelow(20) == 0) token.pop_back();
    }
    add(std::move(token));
  }
  return tokens;
}

std::vector<std::string_view> Views(const std::vector<std::string>& tokens) {
  return {tokens.begin(), tokens.end()};
}

Mask MaskOf(const TokenTrie& trie, const JsonState& state, size_t count) {
  Mask mask(MaskWordsCount(static_cast<int64_t>(count)));
  TokenTrie::Scratch scratch;
  trie.AddAllowed(state, scratch, mask);
  return mask;
}

TEST(TokenTrieTest, AMaskIsWhatTheStateAccepts) {
  Random random(3, 0);
  const std::vector<std::string> tokens = SyntheticTokens(3000, random);
  const std::vector<std::string_view> views = Views(tokens);
  const TokenTrie trie(views);
  for (const std::string_view schema : TestSchemas()) {
    const Result<JsonGrammar> grammar = JsonGrammar::Compile(Json(schema), {});
    ASSERT_TRUE(grammar.ok());
    for (int walk = 0; walk < 3; ++walk) {
      JsonState state(*grammar);
      std::string text;
      for (int step = 0; step < 12; ++step) {
        const Mask mask = MaskOf(trie, state, tokens.size());
        std::vector<size_t> allowed;
        for (size_t id = 0; id < tokens.size(); ++id) {
          JsonState next = state;
          const bool is_accepted = next.FeedToken(views[id]);
          ASSERT_EQ(IsAllowed(mask, static_cast<int64_t>(id)), is_accepted)
              << tokens[id] << " behind " << text << " of " << schema;
          if (is_accepted) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        // Signs come first in the vocabulary: half of the steps take one of the first ids.
        const size_t few =
            random.NextBelow(2) == 0 ? std::min<size_t>(allowed.size(), 20) : allowed.size();
        const size_t id = allowed[random.NextBelow(few)];
        ASSERT_TRUE(state.FeedToken(views[id]));
        text += tokens[id];
      }
    }
  }
}

TEST(TokenTrieTest, RawStringsAreMaskedToo) {
  Random random(4, 0);
  const std::vector<std::string> tokens = SyntheticTokens(2000, random);
  const std::vector<std::string_view> views = Views(tokens);
  const TokenTrie trie(views);
  const Result<JsonGrammar> grammar = JsonGrammar::Compile(
      Json(R"({"anyOf": [{"type": "string", "maxLength": 4}, {"enum": ["null\"", "nullify"]}]})"),
      {});
  ASSERT_TRUE(grammar.ok());
  for (const std::string_view start : {"", "n", "null", "nulli", "\xE4", "\xE4\xB8", "\n\"\\"}) {
    JsonState state = JsonState::Raw(*grammar, grammar->root());
    if (!start.empty()) {
      ASSERT_TRUE(state.FeedToken(start));
    }
    const Mask mask = MaskOf(trie, state, tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) {
      JsonState next = state;
      ASSERT_EQ(IsAllowed(mask, static_cast<int64_t>(id)), next.FeedToken(views[id]))
          << tokens[id] << " behind " << start;
    }
  }
}

TEST(TokenTrieTest, EmptyAndRepeatedTokensDoNoHarm) {
  const std::vector<std::string_view> tokens = {"", "1", "12", "1", ""};
  const TokenTrie trie(tokens);
  const JsonGrammar grammar = *JsonGrammar::Compile(Json(R"({"type": "integer"})"), {});
  EXPECT_EQ(MaskOf(trie, JsonState(grammar), tokens.size())[0] & 0b10111, 0b00110u);
  Mask all(1);
  trie.AddAll(all);
  EXPECT_EQ(all[0], 0b01110u);
}

TEST(TokenTrieTest, MasksOfALargeVocabularyAreQuick) {
  Random random(5, 0);
  constexpr size_t kCount = 163'584;
  const std::vector<std::string> tokens = SyntheticTokens(kCount, random);
  const std::vector<std::string_view> views = Views(tokens);
  const TokenTrie trie(views);
  struct Case {
    std::string_view name;
    std::string_view schema;
    std::string_view text;
  };
  constexpr std::string_view kRecord =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"},
          "short": {"type": "string", "maxLength": 5}}, "additionalProperties": false})";
  std::string many = R"({"type": "array", "items": {"anyOf": [)";
  for (int i = 0; i < 31; ++i) many += fmt::format(R"({{"maxLength": {}}}, )", 1000 + i);
  many += R"({"$ref": "#"}]}})";
  for (const Case& at : std::vector<Case>{{"start", "true", ""},
                                          {"string", "true", R"({"a": "b)"},
                                          {"escape", "true", R"({"a": "b\)"},
                                          {"free key", R"({"type": "object"})", R"({"a": 1, "b)"},
                                          {"key", kRecord, R"({")"},
                                          {"short string", kRecord, R"({"short": "a)"},
                                          {"number", kRecord, R"({"n": 1)"},
                                          {"31 branches", many, R"(["a)"},
                                          {"behind a value", "true", R"([[{"a": 1)"}}) {
    const JsonGrammar grammar = *JsonGrammar::Compile(Json(at.schema), {});
    JsonState state(grammar);
    if (!at.text.empty()) {
      ASSERT_TRUE(state.FeedToken(at.text));
    }
    TokenTrie::Scratch scratch;
    Mask mask(MaskWordsCount(kCount));
    double best_ms = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      std::ranges::fill(mask, 0);
      trie.AddAllowed(state, scratch, mask);
      const std::chrono::duration<double, std::milli> spent =
          std::chrono::steady_clock::now() - start;
      best_ms = std::min(best_ms, spent.count());
    }
    std::printf("%.*s: %.3f ms\n", static_cast<int>(at.name.size()), at.name.data(), best_ms);
    // A hundred times what all but the branches take in a release build: room for sanitizers.
    EXPECT_LT(best_ms, at.name == "31 branches" ? 5000.0 : 100.0) << at.name;
  }
}

}  // namespace
}  // namespace k3
