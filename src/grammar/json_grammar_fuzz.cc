// Fuzzes the compiler of schemas, then the grammar that comes out: the input up to a zero byte is
// the schema, the bytes behind it choose among those that may come next. What is generated must be
// JSON, and no state may be without a way on or an end.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "config/json.h"
#include "grammar/json_grammar.h"
#include "grammar/json_state.h"

namespace {

/// The bytes that may come behind `state`.
std::string NextBytes(const k3::JsonState& state) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    k3::JsonState next = state;
    if (next.Feed(static_cast<uint8_t>(byte))) bytes += static_cast<char>(byte);
  }
  return bytes;
}

void Walk(const k3::JsonGrammar& grammar, std::string_view choices) {
  constexpr size_t kStepsMax = 200;
  k3::JsonState state(grammar);
  std::string text;
  for (const char choice : choices.substr(0, kStepsMax)) {
    const std::string allowed = NextBytes(state);
    const bool can_end = state.CanEnd();
    K3_CHECK(can_end || !allowed.empty(), "there is always a way on");
    if (can_end) {
      const auto parsed = k3::ParseJson(text, "text");
      K3_CHECK(parsed.ok(), "what is generated is JSON");
    }
    if (allowed.empty()) return;
    const char byte = allowed[static_cast<uint8_t>(choice) % allowed.size()];
    K3_CHECK(state.FeedToken(std::string_view(&byte, 1)), "what may come is accepted");
    text += byte;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const auto schema = k3::ParseJson(input.substr(0, end), "schema");
  if (!schema.ok()) return 0;
  for (const bool is_relaxed : {false, true}) {
    const auto grammar = k3::JsonGrammar::Compile(*schema, {.is_relaxed = is_relaxed});
    if (!grammar.ok()) {
      K3_CHECK(!grammar.status().message().empty(), "a failure says why");
      continue;
    }
    if (end < input.size()) Walk(*grammar, input.substr(end + 1));
  }
  return 0;
}
