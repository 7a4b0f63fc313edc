#pragma once
// A tokenizer as the "tokenizer.ggml.*" keys of a GGUF file: byte-level BPE in the spelling of
// GPT-2 (every byte a printable character) with merges derived from the ranks. Pure, any thread.
// Source: the GGUF specification; the byte spelling of OpenAI's GPT-2 encoder.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/gguf_writer.h"
#include "config/model_config.h"
#include "text/tokenizer.h"

namespace k3 {

/// `bytes` in GPT-2's spelling: printable Latin-1 stands for itself, the rest for U+0100 onward.
std::string SpellBytes(std::string_view bytes);

struct GgufVocabularySummary {
  int64_t merges_count = 0;
  /// Tokens of several bytes that no merge makes: they are not two tokens of lower rank.
  int64_t unmerged_count = 0;
};

/// Adds the tokens, their types, merges and the ids with a role. `tokenizer` may be null: then
/// every token is a placeholder, text cannot be encoded, but ids work. `stop_id` is negative when
/// the model has none.
GgufVocabularySummary AddGgufVocabulary(const Tokenizer* tokenizer, const ModelConfig& config,
                                        int64_t stop_id, GgufMetadata* metadata);

}  // namespace k3
