#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "config/json.h"
#include "text/byte_pair.h"
#include "text/pre_split.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace k3 {
namespace {

// The configured tokens at their places in [first, end); null: reserved.
Result<std::vector<const AddedToken*>> PlaceAddedTokens(const TokenizerConfig& config,
                                                        int64_t first, int64_t end) {
  std::vector<const AddedToken*> placed(static_cast<size_t>(end - first), nullptr);
  for (const AddedToken& token : config.added_tokens) {
    if (token.id < first || token.id >= end) {
      return InvalidArgument(fmt::format(
          "added token {} has id {}, expected {} (the first behind tiktoken.model) to {} (below "
          "vocab_size)",
          QuoteForMessage(token.content), token.id, first, end - 1));
    }
    placed[static_cast<size_t>(token.id - first)] = &token;
  }
  return placed;
}

}  // namespace

Result<Tokenizer> Tokenizer::Create(const TokenizerSource& source) {
  if (source.vocab_size <= 0 || source.vocab_size > limits::kVocabularyMax) {
    return InvalidArgument(fmt::format("vocab_size is {}, expected 1 to {}", source.vocab_size,
                                       limits::kVocabularyMax));
  }
  K3_TRY(TokenTable ranks, ParseTiktokenFile(source.model, source.model_where));
  if (ranks.size() > source.vocab_size) {
    return Corruption(fmt::format(
        "{}: {} ranks do not fit the model's vocab_size of {}; the tokenizer is of another model",
        source.model_where, ranks.size(), source.vocab_size));
  }
  K3_TRY(const TokenizerConfig config, ParseTokenizerConfig(source.config, source.config_where));
  Tokenizer tokenizer;
  tokenizer.ranks_ = std::move(ranks);
  const Status status = tokenizer.AddControlTokens(config, source.vocab_size);
  if (!status.ok()) return status.WithContext(source.config_where);
  return tokenizer;
}

Status Tokenizer::AddControlTokens(const TokenizerConfig& config, int64_t vocab_size) {
  K3_TRY(const std::vector<const AddedToken*> placed,
         PlaceAddedTokens(config, ranks_count(), vocab_size));
  controls_.Reserve(static_cast<int64_t>(placed.size()), 0);
  for (size_t i = 0; i < placed.size(); ++i) {
    const int64_t id = ranks_count() + static_cast<int64_t>(i);
    const std::string name =
        placed[i] ? placed[i]->content : fmt::format("<|reserved_token_{}|>", id);
    if (controls_.Append(name) == TokenTable::kNotFound) {
      return InvalidArgument(fmt::format("ids {} and {} are both named {}",
                                         ranks_count() + controls_.Find(name), id,
                                         QuoteForMessage(name)));
    }
    is_special_.push_back(placed[i] == nullptr || placed[i]->special);
  }
  const std::pair<const std::string*, std::optional<int32_t>*> roles[] = {
      {&config.bos_token, &bos_id_},
      {&config.eos_token, &eos_id_},
      {&config.unk_token, &unk_id_},
      {&config.pad_token, &pad_id_},
  };
  for (const auto& [name, id] : roles) {
    if (name->empty()) continue;
    const Result<int32_t> found = SpecialId(*name);
    if (!found.ok()) {
      return InvalidArgument(fmt::format(
          "{} is given a role (bos, eos, unk or pad) but is not in added_tokens_decoder",
          QuoteForMessage(*name)));
    }
    *id = *found;
  }
  return OkStatus();
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  if (static_cast<int64_t>(text.size()) > limits::kPromptBytesMax) {
    return InvalidArgument(fmt::format("text of {} bytes is over the limit of {}", text.size(),
                                       limits::kPromptBytesMax));
  }
  const int64_t invalid = FindInvalidUtf8(text);
  if (invalid >= 0) {
    return InvalidArgument(fmt::format("text is not valid UTF-8 at byte offset {}", invalid));
  }
  std::vector<int32_t> ids;
  // A little more than ordinary text needs in a large vocabulary.
  ids.reserve(text.size() / 4 + 1);
  std::vector<uint32_t> ends;
  PieceEncoder encoder(ranks_, static_cast<int64_t>(text.size()));
  SegmentCutter cutter(classes_, text);
  for (std::string_view segment = cutter.Next(); !segment.empty(); segment = cutter.Next()) {
    ends.clear();
    SplitValidSegment(classes_, segment, &ends);
    encoder.Append(segment, ends, &ids);
  }
  return ids;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return InvalidArgument(fmt::format("id {} at position {} is not in the vocabulary of {}",
                                         ids[i], i, vocab_size()));
    }
    if (special == SpecialTokens::kSkip && IsSpecial(ids[i])) continue;
    out += TokenBytes(ids[i]);
  }
  return out;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  K3_CHECK(id >= 0 && id < vocab_size(), "the id must be in the vocabulary");
  if (id < ranks_count()) return ranks_.Bytes(id);
  return controls_.Bytes(static_cast<int32_t>(id - ranks_count()));
}

bool Tokenizer::IsSpecial(int32_t id) const {
  K3_CHECK(id >= 0 && id < vocab_size(), "the id must be in the vocabulary");
  return id >= ranks_count() && is_special_[static_cast<size_t>(id - ranks_count())];
}

Result<int32_t> Tokenizer::SpecialId(std::string_view name) const {
  const int32_t number = controls_.Find(name);
  if (number == TokenTable::kNotFound) {
    return NotFound(fmt::format("the tokenizer has no control token {}", QuoteForMessage(name)));
  }
  return static_cast<int32_t>(ranks_count() + number);
}

}  // namespace k3
