// Fuzzes chat requests: no request crashes; text never yields a control token; a request saved and
// read again renders alike.

#include <fmt/format.h>

#include "base/check.h"
#include "text/chat_json.h"
#include "text/python_json.h"
#include "text/xtml_renderer.h"

namespace {

// 256 single bytes, and K3's control tokens behind them.
k3::Tokenizer MakeTokenizer() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string model;
  for (int byte = 0; byte < 256; ++byte) {
    model += fmt::format("{}{}== {}\n", kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], byte);
  }
  std::string names;
  for (const std::string_view name :
       {k3::kXtmlEndOfMessage, k3::kXtmlOpen, k3::kXtmlClose, k3::kXtmlSep}) {
    const size_t id = 256 + names.size() / 100;
    std::string entry = fmt::format(R"("{}": {{"content": "{}", "special": false}})", id, name);
    entry.resize(99, ' ');
    names += entry + (name == k3::kXtmlSep ? " " : ",");
  }
  const std::string config = fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", names);
  auto tokenizer = k3::Tokenizer::Create({.model = model, .config = config, .vocab_size = 300});
  K3_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

void CheckPythonJson(std::string_view text) {
  const auto value = k3::ParsePythonJson(text);
  if (!value.ok() || !value->has_value()) return;
  const std::string again = k3::DumpJson(**value);
  const auto second = k3::ParsePythonJson(again);
  K3_CHECK(second.ok() && second->has_value(), "what was written can be read");
  K3_CHECK(k3::DumpJson(**second) == again, "and is written alike");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::Tokenizer tokenizer = MakeTokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = k3::ParseJson(text, "request");
  if (!json.ok()) return 0;
  CheckPythonJson(text);
  // The seeds are golden cases, which hold a request and what becomes of it.
  const k3::JsonValue* wrapped = json->Find("request");
  const auto request = k3::ParseChatRequest(wrapped == nullptr ? *json : *wrapped, "request");
  if (!request.ok()) return 0;
  const auto segments = k3::RenderXtml(*request);
  if (!segments.ok()) return 0;
  const auto ids = k3::EncodeXtml(tokenizer, *segments);
  K3_CHECK(ids.ok(), "text of valid JSON encodes");
  int64_t markers = 0;
  for (const k3::XtmlSegment& segment : *segments) markers += segment.is_marker;
  int64_t controls = 0;
  for (const int32_t id : *ids) controls += id >= tokenizer.ranks_count();
  K3_CHECK(markers == controls, "only markers are control tokens");
  K3_CHECK(*tokenizer.Decode(*ids) == k3::JoinXtml(*segments), "ids decode to the prompt");
  const std::string saved = k3::DumpJson(k3::ChatRequestJson(*request));
  const auto saved_json = k3::ParseJson(saved, "saved");
  K3_CHECK(saved_json.ok(), "a saved request is JSON");
  const auto again = k3::ParseChatRequest(*saved_json, "saved");
  K3_CHECK(again.ok(), "a saved request can be read");
  const auto again_segments = k3::RenderXtml(*again);
  K3_CHECK(again_segments.ok() && *again_segments == *segments, "and renders alike");
  return 0;
}
