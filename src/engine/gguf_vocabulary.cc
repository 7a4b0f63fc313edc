#include "engine/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "text/token_table.h"
#include "text/utf8.h"

namespace k3 {
namespace {

// Numbers of token types in the file.
constexpr int32_t kNormal = 1;
constexpr int32_t kControl = 3;

std::array<std::string, 256> MakeSpellings() {
  std::array<std::string, 256> spellings;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    // The soft hyphen, 0xAD, is not printed.
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    AppendUtf8(printable ? byte : next++, &spellings[byte]);
  }
  return spellings;
}

/// Where `token` falls into two tokens when pairs are merged as for any text, with the ranks below
/// its own alone: that is the pair whose merge makes it. Nothing when more than two are left.
std::optional<size_t> FindMerge(const TokenTable& ranks, std::string_view token, int32_t rank) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  struct Part {
    size_t begin;
    int32_t pair_rank;  // of this part joined with the next
  };
  std::vector<Part> parts;
  for (size_t i = 0; i <= token.size(); ++i) parts.push_back({i, kNone});  // the last is the end
  const auto update = [&](size_t i) {
    parts[i].pair_rank = kNone;
    if (i + 2 >= parts.size()) return;
    const int32_t found =
        ranks.Find(token.substr(parts[i].begin, parts[i + 2].begin - parts[i].begin));
    if (found != TokenTable::kNotFound && found < rank) parts[i].pair_rank = found;
  };
  for (size_t i = 0; i < parts.size(); ++i) update(i);
  while (parts.size() > 3) {
    const auto best = std::ranges::min_element(parts, {}, &Part::pair_rank);
    if (best->pair_rank == kNone) return std::nullopt;
    const size_t i = static_cast<size_t>(best - parts.begin());
    parts.erase(best + 1);
    update(i);
    if (i > 0) update(i - 1);
  }
  return parts[1].begin;
}

void AddPlaceholders(int64_t vocab_size, GgufMetadata* metadata) {
  std::vector<std::string> tokens;
  for (int64_t id = 0; id < vocab_size; ++id) {
    tokens.push_back(fmt::format("<|placeholder_{}|>", id));
  }
  metadata->AddStringArray("tokenizer.ggml.tokens", tokens);
  metadata->AddI32Array("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), kControl));
  metadata->AddStringArray("tokenizer.ggml.merges", {});
}

GgufVocabularySummary AddTokens(const Tokenizer& tokenizer, GgufMetadata* metadata) {
  GgufVocabularySummary summary;
  TokenTable ranks;
  for (int32_t id = 0; id < tokenizer.ranks_count(); ++id) ranks.Append(tokenizer.TokenBytes(id));
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    const bool control = id >= tokenizer.ranks_count();
    tokens.push_back(control ? std::string(bytes) : SpellBytes(bytes));
    types.push_back(control ? kControl : kNormal);
    if (control || bytes.size() < 2) continue;
    const std::optional<size_t> cut = FindMerge(ranks, bytes, id);
    if (cut.has_value()) {
      merges.push_back(SpellBytes(bytes.substr(0, *cut)) + " " + SpellBytes(bytes.substr(*cut)));
    } else {
      ++summary.unmerged_count;
    }
  }
  metadata->AddStringArray("tokenizer.ggml.tokens", tokens);
  metadata->AddI32Array("tokenizer.ggml.token_type", types);
  metadata->AddStringArray("tokenizer.ggml.merges", merges);
  summary.merges_count = std::ssize(merges);
  return summary;
}

}  // namespace

std::string SpellBytes(std::string_view bytes) {
  static const std::array<std::string, 256> spellings = MakeSpellings();
  std::string text;
  for (const char byte : bytes) text += spellings[static_cast<uint8_t>(byte)];
  return text;
}

GgufVocabularySummary AddGgufVocabulary(const Tokenizer* tokenizer, const ModelConfig& config,
                                        int64_t stop_id, GgufMetadata* metadata) {
  metadata->AddString("tokenizer.ggml.model", "gpt2");
  metadata->AddString("tokenizer.ggml.pre", "kimi-k2");
  GgufVocabularySummary summary;
  if (tokenizer == nullptr) {
    AddPlaceholders(config.vocab_size, metadata);
  } else {
    summary = AddTokens(*tokenizer, metadata);
  }
  const auto add_id = [&](std::string_view role, std::optional<int64_t> id) {
    if (!id.has_value() || *id < 0 || *id >= config.vocab_size) return;
    metadata->AddU32(fmt::format("tokenizer.ggml.{}_token_id", role), static_cast<uint32_t>(*id));
  };
  add_id("bos", config.bos_token_id);
  add_id("eos", stop_id);
  add_id("padding", config.pad_token_id);
  if (tokenizer != nullptr) add_id("unknown", tokenizer->unk_id());
  // Prompts are taken as they are, as this project's own encoder does.
  metadata->AddBool("tokenizer.ggml.add_bos_token", false);
  metadata->AddBool("tokenizer.ggml.add_eos_token", false);
  return summary;
}

}  // namespace k3
