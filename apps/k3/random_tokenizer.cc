#include "random_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/bpe_trainer.h"

namespace k3::cli {
namespace {

constexpr int64_t kBytesCount = 256;
constexpr int64_t kControlTokensCount = 256;

struct ControlToken {
  int64_t offset;  // behind the first control token
  std::string_view content;
  bool special;
};

// The released tokenizer's names, at their distances from [BOS].
constexpr ControlToken kControlTokens[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|end_of_msg|>", true},
    {3, "<|open|>", false},
    {4, "<|close|>", false},
    {5, "<|sep|>", false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
};

/// Word number `index` of "aa", "ab", ..., "zz", "aaa", ...
std::string Word(int64_t index) {
  int64_t length = 2;
  for (int64_t count = 26 * 26; index >= count; count *= 26) {
    index -= count;
    ++length;
  }
  std::string word(static_cast<size_t>(length), 'a');
  for (size_t i = word.size(); i-- > 0; index /= 26) {
    word[i] = static_cast<char>('a' + index % 26);
  }
  return word;
}

/// How many ids are byte strings; the rest are control tokens.
int64_t ChooseRanksCount(const ModelConfig& config) {
  int64_t first = config.vocab_size;
  const auto consider = [&](int64_t id) {
    if (id >= kBytesCount) first = std::min(first, id);
  };
  if (config.bos_token_id.has_value()) consider(*config.bos_token_id);
  if (config.pad_token_id.has_value()) consider(*config.pad_token_id);
  for (const int64_t id : config.eos_token_ids) consider(id);
  if (first < config.vocab_size) return first;
  return std::max(kBytesCount, config.vocab_size - kControlTokensCount);
}

std::string RanksFile(int64_t ranks_count) {
  std::vector<std::string> tokens;
  for (int64_t rank = 0; rank < ranks_count; ++rank) {
    tokens.push_back(rank < kBytesCount ? std::string(1, static_cast<char>(rank))
                                        : Word(rank - kBytesCount));
  }
  return FormatTiktokenFile(tokens);
}

std::string ConfigFile(int64_t ranks_count, int64_t vocab_size) {
  nlohmann::ordered_json json;
  json["tokenizer_class"] = "TikTokenTokenizer";
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  const auto add = [&](int64_t id, std::string_view content, bool special) {
    tokens[std::to_string(id)] = {{"content", content}, {"special", special}};
  };
  for (const ControlToken& token : kControlTokens) {
    const int64_t id = ranks_count + token.offset;
    if (id < vocab_size) add(id, token.content, token.special);
  }
  if (ranks_count < vocab_size) json["bos_token"] = "[BOS]";
  if (ranks_count + 1 < vocab_size) json["eos_token"] = "[EOS]";
  // As in the release the last two ids are these, if no other token has the place.
  const int64_t free_from = ranks_count + 1 + std::rbegin(kControlTokens)->offset;
  if (vocab_size - 2 >= free_from) {
    add(vocab_size - 2, "[UNK]", true);
    add(vocab_size - 1, "[PAD]", true);
    json["unk_token"] = "[UNK]";
    json["pad_token"] = "[PAD]";
  }
  json["added_tokens_decoder"] = tokens;
  return json.dump(1) + "\n";
}

}  // namespace

Status WriteRandomTokenizer(FileSystem& files, const std::string& dir, const ModelConfig& config) {
  if (config.vocab_size < kBytesCount) {
    return InvalidArgument(fmt::format(
        "vocab_size: expected at least {} for a tokenizer that knows every byte, found {}",
        kBytesCount, config.vocab_size));
  }
  const int64_t ranks_count = ChooseRanksCount(config);
  K3_RETURN_IF_ERROR(
      WriteFileAtomically(files, JoinPath(dir, "tiktoken.model"), RanksFile(ranks_count)));
  return WriteFileAtomically(files, JoinPath(dir, "tokenizer_config.json"),
                             ConfigFile(ranks_count, config.vocab_size));
}

}  // namespace k3::cli
