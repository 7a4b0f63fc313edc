#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/limits.h"
#include "config/json.h"

namespace k3 {
namespace {

Status Expected(std::string_view where, std::string_view field, std::string_view expected,
                const JsonValue* found) {
  return InvalidArgument(fmt::format("{}: {}: expected {}, found {}", where, field, expected,
                                     found ? found->Describe() : "nothing"));
}

// Canonical decimal, so that no id can be written in two ways.
std::optional<int64_t> ParseId(std::string_view text) {
  int64_t id = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, id);
  if (error != std::errc() || stop != end || id < 0) return std::nullopt;
  if (text.size() > 1 && text[0] == '0') return std::nullopt;
  return id;
}

// A content that can name a token, or null.
const std::string* TokenContent(const JsonValue* value) {
  const std::string* content = value ? value->string() : nullptr;
  if (content == nullptr || content->empty()) return nullptr;
  return static_cast<int64_t>(content->size()) <= limits::kTokenBytesMax ? content : nullptr;
}

constexpr std::string_view kContentExpected = "a string of 1 to 65536 bytes";
static_assert(limits::kTokenBytesMax == 65536);

Result<std::vector<AddedToken>> ReadAddedTokens(const JsonValue& root, std::string_view where) {
  constexpr std::string_view kField = "added_tokens_decoder";
  std::vector<AddedToken> tokens;
  const JsonValue* decoder = root.Find(kField);
  if (decoder == nullptr) return tokens;
  if (decoder->members() == nullptr) {
    return Expected(where, kField, "an object of id to token", decoder);
  }
  for (const auto& [key, value] : *decoder->members()) {
    const std::string field = fmt::format("{}.{}", kField, QuoteForMessage(key));
    const std::optional<int64_t> id = ParseId(key);
    if (!id) {
      return InvalidArgument(
          fmt::format("{}: {}: expected a token id, a decimal number from 0", where, field));
    }
    if (value.members() == nullptr) return Expected(where, field, "an object", &value);
    const std::string* content = TokenContent(value.Find("content"));
    if (content == nullptr) {
      return Expected(where, field + ".content", kContentExpected, value.Find("content"));
    }
    const JsonValue* special = value.Find("special");
    if (special != nullptr && special->boolean() == nullptr) {
      return Expected(where, field + ".special", "true or false", special);
    }
    tokens.push_back({*id, *content, special != nullptr && *special->boolean()});
  }
  return tokens;
}

// A role is the content of a token, or an object with it; null and absent mean that there is none.
Result<std::string> ReadRole(const JsonValue& root, std::string_view role, std::string_view where) {
  const JsonValue* value = root.Find(role);
  if (value == nullptr || value->is_null()) return std::string();
  const std::string* content = TokenContent(value->members() ? value->Find("content") : value);
  if (content != nullptr) return *content;
  return Expected(where, role, "the content of a token (or an object with it) or null", value);
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json, std::string_view where) {
  if (static_cast<int64_t>(json.size()) > limits::kConfigFileBytesMax) {
    return InvalidArgument(fmt::format("{}: {} bytes are more than the limit of {}", where,
                                       json.size(), limits::kConfigFileBytesMax));
  }
  K3_TRY(const JsonValue root, ParseJson(json, where));
  if (root.members() == nullptr) return Expected(where, "the document", "an object", &root);
  TokenizerConfig config;
  K3_TRY(config.added_tokens, ReadAddedTokens(root, where));
  K3_TRY(config.bos_token, ReadRole(root, "bos_token", where));
  K3_TRY(config.eos_token, ReadRole(root, "eos_token", where));
  K3_TRY(config.unk_token, ReadRole(root, "unk_token", where));
  K3_TRY(config.pad_token, ReadRole(root, "pad_token", where));
  return config;
}

}  // namespace k3
