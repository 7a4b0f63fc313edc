#include "token_json.h"

#include "text/utf8_stream.h"

namespace k3::cli {
namespace {

/// The bytes of a token, none for an id that only the model has.
std::string_view BytesOf(const Tokenizer& tokenizer, int32_t id) {
  return id < tokenizer.vocab_size() ? tokenizer.TokenBytes(id) : "";
}

JsonValue::Members IdAndText(const Tokenizer& tokenizer, int32_t id) {
  Utf8Stream stream;
  std::string text = stream.Feed(BytesOf(tokenizer, id));
  text += stream.Finish();
  return {{"id", JsonValue(int64_t{id})}, {"text", JsonValue(std::move(text))}};
}

JsonValue LogProb(float log_prob) { return JsonValue(static_cast<double>(log_prob)); }

}  // namespace

JsonValue TokenJson(const Tokenizer& tokenizer, const SampledToken& token) {
  JsonValue::Members members = IdAndText(tokenizer, token.id);
  JsonValue::Items bytes;
  for (const char byte : BytesOf(tokenizer, token.id)) {
    bytes.emplace_back(int64_t{static_cast<unsigned char>(byte)});
  }
  JsonValue::Items top;
  for (const TokenLogProb& entry : token.top) {
    JsonValue::Members alternative = IdAndText(tokenizer, entry.id);
    alternative.emplace_back("logprob", LogProb(entry.log_prob));
    top.emplace_back(std::move(alternative));
  }
  members.emplace_back("bytes", JsonValue(std::move(bytes)));
  members.emplace_back("logprob", LogProb(token.log_prob));
  members.emplace_back("top", JsonValue(std::move(top)));
  return JsonValue(std::move(members));
}

}  // namespace k3::cli
