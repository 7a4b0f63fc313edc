// Fuzzes the XTML parser: each byte stands for an id, the first for the options; what must hold is
// listed in xtml_parser_test_util.h.

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "text/base64_test_util.h"
#include "text/xtml_parser_test_util.h"

namespace {

// Pieces of markup and of JSON, so that a single byte of input can be a whole tag name.
constexpr std::array<std::string_view, 22> kWords = {
    "message",       "think",           "response", "tools",        "call",   "argument",
    "json",          " tool=\"",        " key=\"",  " type=\"",     "string", "number",
    " index=\"1\"",  "call tool=\"f\"", "{\"a\": ", "[1, 2]",       "&quot;", "&amp;",
    "argument key=", "1e999",           "\xE4\xB8", "\xF0\x9F\x91",
};
constexpr int32_t kRanksCount = 256 + static_cast<int32_t>(kWords.size());
// The four markers and two control tokens without a name.
constexpr int32_t kVocabSize = kRanksCount + 6;

k3::Tokenizer MakeTokenizer() {
  std::string model;
  for (int byte = 0; byte < 256; ++byte) {
    model += fmt::format("{} {}\n", k3::Base64(std::string(1, static_cast<char>(byte))), byte);
  }
  int32_t rank = 256;
  for (const std::string_view word : kWords)
    model += fmt::format("{} {}\n", k3::Base64(word), rank++);
  std::string config;
  for (const std::string_view name :
       {k3::kXtmlOpen, k3::kXtmlClose, k3::kXtmlSep, k3::kXtmlEndOfMessage}) {
    config +=
        fmt::format(R"({}"{}": {{"content": "{}"}})", config.empty() ? "" : ", ", rank++, name);
  }
  auto tokenizer =
      k3::Tokenizer::Create({.model = model,
                             .config = fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", config),
                             .vocab_size = kVocabSize});
  K3_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

/// Capitals are words and markers and a few signs are ids that vanish; every other byte is itself.
/// `|` stands for no text, so that no text spells a control token.
int32_t IdOf(uint8_t byte) {
  switch (byte) {
    case '@':
      return -1;
    case '|':
      return kVocabSize;
    case '~':
      return kVocabSize - 1;
    case '^':
      return kVocabSize - 2;
    default:
      return byte >= 'A' && byte <= 'Z' ? 256 + byte - 'A' : byte;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::Tokenizer tokenizer = MakeTokenizer();
  static const k3::XtmlMarkers markers = *k3::XtmlMarkers::Find(tokenizer);
  static const k3::JsonValue tools = *k3::ParseJson(
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}])",
      "tools");
  if (size == 0) return 0;
  k3::XtmlSetting setting{tokenizer, markers, {}};
  if ((data[0] & 1) != 0) setting.options.start = k3::XtmlChannel::kResponse;
  if ((data[0] & 2) != 0) setting.options.tools = &tools;
  std::vector<int32_t> ids;
  for (size_t i = 1; i < size; ++i) ids.push_back(IdOf(data[i]));
  // Cut everywhere when that is cheap, else at some places.
  const size_t step = 1 + ids.size() / 64;
  std::vector<size_t> cuts;
  for (size_t cut = data[0] % step; cut <= ids.size(); cut += step) cuts.push_back(cut);
  const std::string fault = k3::FindXtmlParserFault(setting, ids, cuts);
  K3_CHECK(fault.empty(), fault.c_str());
  return 0;
}
