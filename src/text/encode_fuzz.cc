// Fuzzes text: the splitter agrees with ICU's regular expressions, encoding comes back, streaming
// in two parts gives what decoding at once gives, and text that is not UTF-8 is refused.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "text/pre_split.h"
#include "text/pre_split_oracle.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace {

// 256 single bytes and a few merges, so that pieces are more than their bytes.
k3::Tokenizer MakeTokenizer() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string model;
  for (int byte = 0; byte < 256; ++byte) {
    model += fmt::format("{}{}== {}\n", kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], byte);
  }
  // "aa", "  ", "aaaa", "th", "the" and the first two bytes of most Han characters.
  model += "YWE= 256\nICA= 257\nYWFhYQ== 258\ndGg= 259\ndGhl 260\n5Lg= 261\n";
  auto tokenizer = k3::Tokenizer::Create({.model = model, .config = "{}", .vocab_size = 300});
  K3_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

void CheckStream(std::string_view bytes) {
  k3::Utf8Stream whole;
  std::string expected = whole.Feed(bytes);
  expected += whole.Finish();
  k3::Utf8Stream parts;
  std::string joined;
  for (const char c : bytes) joined += parts.Feed({&c, 1});
  joined += parts.Finish();
  K3_CHECK(joined == expected, "any split streams the same text");
  K3_CHECK(k3::FindInvalidUtf8(joined) < 0, "a stream is valid UTF-8");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::Tokenizer tokenizer = MakeTokenizer();
  static const k3::CharacterClasses classes;
  static const k3::PreSplitOracle oracle;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckStream(text);
  const auto ids = tokenizer.Encode(text);
  if (k3::FindInvalidUtf8(text) >= 0) {
    K3_CHECK(!ids.ok(), "text that is not UTF-8 is refused");
    return 0;
  }
  K3_CHECK(ids.ok(), "valid text encodes");
  K3_CHECK(*tokenizer.Decode(*ids) == text, "ids decode to the text");
  std::vector<uint32_t> ends;
  k3::SplitSegment(classes, text, &ends);
  K3_CHECK(ends == oracle.Split(text), "the splitter follows the regular expression");
  return 0;
}
