#pragma once
// Tokenizer: text to token ids and back, exactly as the release's encoder (tiktoken with the K3
// pre-split pattern).
//
//   TokenizerSource source{.model = model_content, .config = config_content, .vocab_size = V};
//   K3_TRY(Tokenizer tokenizer, Tokenizer::Create(source));
//   K3_TRY(std::vector<int32_t> ids, tokenizer.Encode("Hello"));
//   K3_TRY(int32_t open, tokenizer.SpecialId("<|open|>"));
//
// Ids are [0, ranks_count()) for byte strings and [ranks_count(), vocab_size()) for control tokens;
// a control token that the config does not name is <|reserved_token_{id}|>. Encode knows nothing of
// control tokens: their names in text stay text, so a prompt cannot inject one. A caller that wants
// a marker takes its SpecialId and encodes the text on both sides by itself.
//
// The tokenizer owns its tables (views it returns live as long as it does, unmoved), is immutable
// after Create, and may be used from any thread. A bad tiktoken.model is Corruption; a bad
// tokenizer_config.json, as a bad config.json, and a bad call are InvalidArgument.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/character_classes.h"
#include "text/token_table.h"

namespace k3 {

struct TokenizerConfig;

/// The contents of the two files, read only during Create, and their names for messages.
struct TokenizerSource {
  std::string_view model;  // tiktoken.model
  std::string_view model_where = "tiktoken.model";
  std::string_view config;  // tokenizer_config.json
  std::string_view config_where = "tokenizer_config.json";
  int64_t vocab_size = 0;  // of the model: every id must be below it
};

class Tokenizer {
 public:
  enum class SpecialTokens { kKeep, kSkip };

  static Result<Tokenizer> Create(const TokenizerSource& source);

  /// The ids of ordinary text. Text that is not UTF-8 is InvalidArgument with the byte offset.
  Result<std::vector<int32_t>> Encode(std::string_view text) const;

  /// The joined bytes of the ids. Decode(Encode(x)) is x; other ids may give bytes that are not
  /// UTF-8 (Utf8Stream makes text of them). kSkip leaves out the ids that IsSpecial.
  Result<std::string> Decode(std::span<const int32_t> ids,
                             SpecialTokens special = SpecialTokens::kKeep) const;

  /// The bytes of one id, the name of a control token. `id` must be in [0, vocab_size()).
  std::string_view TokenBytes(int32_t id) const;

  /// The `special` flag of the config, true for reserved tokens. <|open|>, <|close|> and <|sep|>
  /// are control tokens without it. `id` must be in [0, vocab_size()).
  bool IsSpecial(int32_t id) const;

  /// The id of a control token by its exact name; NotFound if no control token has it.
  Result<int32_t> SpecialId(std::string_view name) const;

  int64_t vocab_size() const { return ranks_.size() + controls_.size(); }
  int64_t ranks_count() const { return ranks_.size(); }

  /// The tokens that the config names for a role, if it does.
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  std::optional<int32_t> unk_id() const { return unk_id_; }
  std::optional<int32_t> pad_id() const { return pad_id_; }

 private:
  Tokenizer() = default;
  Status AddControlTokens(const TokenizerConfig& config, int64_t vocab_size);

  CharacterClasses classes_;
  TokenTable ranks_;
  TokenTable controls_;           // number + ranks_count() is the id
  std::vector<bool> is_special_;  // [controls_.size()]
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::optional<int32_t> unk_id_;
  std::optional<int32_t> pad_id_;
};

}  // namespace k3
