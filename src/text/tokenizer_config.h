#pragma once
// The part of tokenizer_config.json that names tokens: added_tokens_decoder and the roles bos, eos,
// unk and pad. Everything else in the file is ignored, but a key given twice anywhere or nesting
// beyond the limit is an error all the same. Plain values, any thread.
// Source: the tokenizer_config.json of the K3 release (the Hugging Face layout).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3 {

struct AddedToken {
  int64_t id = 0;
  std::string content;
  /// Whether skipping special tokens skips this one. False if the file does not say.
  bool special = false;
};

struct TokenizerConfig {
  std::vector<AddedToken> added_tokens;  // ids distinct and not negative, in file order
  /// The token of each role by its content; empty if absent or null.
  std::string bos_token;
  std::string eos_token;
  std::string unk_token;
  std::string pad_token;
};

/// Parses the content of the file. A bad one is InvalidArgument and names `where` and the field.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json, std::string_view where);

}  // namespace k3
