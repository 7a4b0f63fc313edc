// The two tokenizer files: what is accepted, and what each mistake is told.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "base/random.h"
#include "config/json.h"
#include "text/base64_test_util.h"
#include "text/random_text.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace k3 {
namespace {

std::string ByteLines() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte) {
    out += fmt::format("{} {}\n", Base64(std::string(1, static_cast<char>(byte))), byte);
  }
  return out;
}

std::string FileError(const std::string& content) {
  return ParseTiktokenFile(content, "t.model").status().ToString();
}

TEST(TiktokenFileTest, ReadsAnyOrderAndLineEnds) {
  const std::string content = "YWI= 257\r\n\n" + ByteLines() + "\nIGFi 256";
  const Result<TokenTable> table = ParseTiktokenFile(content, "t.model");
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->size(), 258);
  EXPECT_EQ(table->Bytes(256), " ab");
  EXPECT_EQ(table->Find("ab"), 257);
  EXPECT_EQ(table->FindByte(0xFF), 255);
}

TEST(TiktokenFileTest, NamesTheLineOfAMistake) {
  const std::string bytes = ByteLines();
  EXPECT_EQ(FileError(bytes + "YWI=256\n"),
            "Corruption: t.model: line 257: expected a base64 token, a space and its rank, found "
            "no space");
  for (const char* rank : {"-1", "", "1x", "+256", " 256", "99999999999999999999"}) {
    EXPECT_EQ(FileError(bytes + "YWI= " + rank + "\n"),
              "Corruption: t.model: line 257: the rank is not a decimal number from 0");
  }
  EXPECT_EQ(FileError(bytes + "YWI= 257\n"),
            "Corruption: t.model: line 257: rank 257 of a file of 257 tokens: ranks must be 0 to "
            "256 without gaps");
  EXPECT_EQ(FileError(bytes + "YWI= 7\n"),
            "Corruption: t.model: line 257: rank 7 was already given on line 8");
  for (const char* token :
       {"", "YWI", "YW=I", "YWI=====", "Y===", "====", "YW-_", "YWJ=", "YX=="}) {
    EXPECT_EQ(FileError(bytes + token + " 256\n"),
              "Corruption: t.model: line 257: the token is not padded base64")
        << token;
  }
  EXPECT_EQ(FileError(bytes + "QQ== 256\n"),
            "Corruption: t.model: line 257: the same token is on line 66");
  EXPECT_EQ(FileError(bytes + Base64(Repeat("a", 65537)) + " 256\n"),
            "Corruption: t.model: line 257: a token of 65537 bytes is over the limit of 65536");
  EXPECT_EQ(FileError(""),
            "Corruption: t.model: no token is the single byte 0x00; a byte-level vocabulary has "
            "all 256");
  const std::string no_last = bytes.substr(0, bytes.size() - 9) + "YWI= 255\n";
  EXPECT_EQ(FileError(no_last),
            "Corruption: t.model: no token is the single byte 0xFF; a byte-level vocabulary has "
            "all 256");
}

TEST(TokenizerConfigTest, ReadsTokensAndRoles) {
  const Result<TokenizerConfig> config = ParseTokenizerConfig(
      R"({"bos_token": {"content": "[A]", "lstrip": false}, "unk_token": null, "x": [1, {}],
          "added_tokens_decoder": {"300": {"content": "[A]", "special": true, "y": 1.5},
                                   "0": {"content": "é"}}})",
      "t.json");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->added_tokens.size(), 2u);
  EXPECT_EQ(config->added_tokens[0].id, 300);
  EXPECT_TRUE(config->added_tokens[0].special);
  EXPECT_EQ(config->added_tokens[1].content, "é");
  EXPECT_FALSE(config->added_tokens[1].special);
  EXPECT_EQ(config->bos_token, "[A]");
  EXPECT_EQ(config->eos_token, "");
  EXPECT_EQ(config->unk_token, "");
}

TEST(TokenizerConfigTest, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "t.json: "},
      {"[]", "the document: expected an object, found an array of 0"},
      {R"({"a": 1, "a": 2})", "\"a\" twice"},
      {R"({"added_tokens_decoder": []})",
       "added_tokens_decoder: expected an object of id to token"},
      {R"({"added_tokens_decoder": {"-1": {"content": "a"}}})", "\"-1\": expected a token id"},
      {R"({"added_tokens_decoder": {"01": {"content": "a"}}})", "\"01\": expected a token id"},
      {R"({"added_tokens_decoder": {"": {"content": "a"}}})", "\"\": expected a token id"},
      {R"({"added_tokens_decoder": {"1": "a"}})", "\"1\": expected an object, found \"a\""},
      {R"({"added_tokens_decoder": {"1": {}}})", ".content: expected a string of 1 to 65536 bytes"},
      {R"({"added_tokens_decoder": {"1": {"content": ""}}})", ".content: expected a string of 1"},
      {R"({"added_tokens_decoder": {"1": {"content": 7}}})", "bytes, found 7"},
      {R"({"added_tokens_decoder": {"1": {"content": "a", "special": 1}}})",
       ".special: expected true or false, found 1"},
      {R"({"added_tokens_decoder": {"1": {"content": "a"}, "1": {"content": "b"}}})",
       "\"1\" twice"},
      {R"({"eos_token": 3})", "eos_token: expected the content of a token"},
      {R"({"eos_token": {"content": null}})", "eos_token: expected the content of a token"},
      {R"({"eos_token": ""})", "eos_token: expected the content of a token"},
      {"{\"x\": \"\xFF\"}", "t.json: "},
  };
  for (const auto& [json, message] : cases) {
    const Status status = ParseTokenizerConfig(json, "t.json").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << json;
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_TRUE(status.message().starts_with("t.json: ")) << status.message();
  }
}

std::string CreateError(std::string_view config, int64_t vocab_size) {
  const std::string model = ByteLines();
  return Tokenizer::Create({.model = model,
                            .model_where = "t.model",
                            .config = config,
                            .config_where = "t.json",
                            .vocab_size = vocab_size})
      .status()
      .ToString();
}

TEST(TokenizerFilesTest, IdsMustFitEachOther) {
  EXPECT_EQ(CreateError("{}", 256), "Ok");
  EXPECT_EQ(CreateError("{}", 0), "InvalidArgument: vocab_size is 0, expected 1 to 16777216");
  EXPECT_EQ(
      CreateError("{}", 255),
      "Corruption: t.model: 256 ranks do not fit the model's vocab_size of 255; the tokenizer "
      "is of another model");
  const char* at_255 = R"({"added_tokens_decoder": {"255": {"content": "[A]"}}})";
  EXPECT_EQ(CreateError(at_255, 300),
            "InvalidArgument: t.json: added token \"[A]\" has id 255, expected 256 (the first "
            "behind tiktoken.model) to 299 (below vocab_size)");
  const char* at_300 = R"({"added_tokens_decoder": {"300": {"content": "[A]"}}})";
  EXPECT_EQ(CreateError(at_300, 301), "Ok");
  EXPECT_NE(CreateError(at_300, 300), "Ok");
  const char* twins =
      R"({"added_tokens_decoder": {"257": {"content": "[A]"}, "256": {"content": "[A]"}}})";
  EXPECT_EQ(CreateError(twins, 300),
            "InvalidArgument: t.json: ids 256 and 257 are both named \"[A]\"");
  const char* reserved =
      R"({"added_tokens_decoder": {"256": {"content": "<|reserved_token_258|>"}}})";
  EXPECT_EQ(CreateError(reserved, 300),
            "InvalidArgument: t.json: ids 256 and 258 are both named \"<|reserved_token_258|>\"");
  EXPECT_EQ(CreateError(R"({"pad_token": "[PAD]"})", 300),
            "InvalidArgument: t.json: \"[PAD]\" is given a role (bos, eos, unk or pad) but is not "
            "in added_tokens_decoder");
}

// As many tokens as the release, of about its lengths. Measured at 56 ms; the bound leaves room for
// a busy machine and for sanitizers.
TEST(TokenizerFilesTest, LoadsAFullVocabularyFast) {
  constexpr int64_t kRanks = 163'584;
  Random random(99, 0);
  TokenTable tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.Append(std::string(1, static_cast<char>(byte)));
  while (tokens.size() < kRanks) {
    std::string bytes;
    for (uint64_t left = 2 + random.NextBelow(9); left > 0; --left) {
      bytes.push_back(static_cast<char>('a' + random.NextBelow(26)));
    }
    tokens.Append(bytes);
  }
  std::string model;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    model += fmt::format("{} {}\n", Base64(tokens.Bytes(rank)), rank);
  }
  const auto start = std::chrono::steady_clock::now();
  const Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = "{}", .vocab_size = 163'840});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(tokenizer->TokenBytes(163'583), tokens.Bytes(163'583));
  EXPECT_EQ(*tokenizer->SpecialId("<|reserved_token_163839|>"), 163'839);
  EXPECT_LT(seconds, 2.0);
  std::printf("loading %lld ranks: %.0f ms\n", static_cast<long long>(kRanks), seconds * 1e3);
}

// The same through Encode as in tokenizer_test.cc, with a vocabulary that merges such text.
TEST(TokenizerFilesTest, MergesHostileTextInLinearTime) {
  std::string model = ByteLines();
  int64_t rank = 256;
  for (int64_t size = 2; size <= 128; size *= 2) {
    for (const std::string_view unit : {"a", " ", "\n", "!", "ab"}) {
      model += fmt::format("{} {}\n", Base64(Repeat(unit, size)), rank++);
    }
  }
  model += fmt::format("{} {}\n", Base64("ab"), rank++);
  const Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = "{}", .vocab_size = 512});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  for (const std::string_view unit : {"a", " ", "\n", "!", "ab", "aab"}) {
    const std::string text = Repeat(unit, 2'000'000 / std::ssize(unit));
    const auto start = std::chrono::steady_clock::now();
    const Result<std::vector<int32_t>> ids = tokenizer->Encode(text);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*tokenizer->Decode(*ids), text);
    EXPECT_LT(seconds, 20.0);
    std::printf("2 MB of %s with merges: %.3f s, %zu ids\n", QuoteForMessage(unit).c_str(), seconds,
                ids->size());
  }
}

}  // namespace
}  // namespace k3
