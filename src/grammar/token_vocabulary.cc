#include "grammar/token_vocabulary.h"

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace k3 {

Result<TokenVocabulary> TokenVocabulary::Create(const Tokenizer& tokenizer) {
  K3_TRY(const XtmlMarkers markers, XtmlMarkers::Find(tokenizer));
  // Any text can be ended byte by byte, so that no grammar is ever without a token.
  std::vector<bool> has_byte(256);
  std::vector<std::string_view> tokens;
  for (int32_t id = 0; id < tokenizer.ranks_count(); ++id) {
    tokens.push_back(tokenizer.TokenBytes(id));
    if (tokens.back().size() == 1) has_byte[static_cast<uint8_t>(tokens.back()[0])] = true;
  }
  if (std::ranges::count(has_byte, true) != 256) {
    return InvalidArgument(
        "tiktoken.model: a tokenizer needs a token for every byte before an answer can be "
        "constrained, found one without");
  }
  TokenVocabulary vocabulary(tokenizer, markers, TokenTrie(tokens));
  vocabulary.names_.resize((tokens.size() + 31) / 32);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool is_name =
        !tokens[id].empty() && FindInvalidUtf8(tokens[id]) < 0 &&
        std::ranges::none_of(
            tokens[id],
            [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '&'; });
    if (is_name) vocabulary.names_[id / 32] |= uint32_t{1} << (id % 32);
  }
  return vocabulary;
}

void TokenVocabulary::AddNames(std::span<uint32_t> mask) const {
  for (size_t i = 0; i < names_.size(); ++i) mask[i] |= names_[i];
}

std::vector<int32_t> TokenVocabulary::Encode(std::string_view text) const {
  Result<std::vector<int32_t>> ids = tokenizer_->Encode(text);
  K3_CHECK(ids.ok(), "markup is valid UTF-8");
  return std::move(ids).value();
}

}  // namespace k3
