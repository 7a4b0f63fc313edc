#pragma once
// JSON as Python's json.loads reads it. Tool arguments in a conversation are JSON text, and the
// prompt depends on how the release's encoder, which is Python, understands it: text that it cannot
// parse is shown to the model raw. Against RFC 8259 it also takes NaN, Infinity and -Infinity,
// numbers beyond double (infinite), a key that stands twice (the last value, at the first place)
// and lone surrogates (here U+FFFD). No JSON library reads this language; ParseJson (config/json.h)
// reads everything else.
//
// Pure functions, any thread. Source: Python 3 documentation, module json, "Standard Compliance".

#include <optional>
#include <string_view>

#include "base/status.h"
#include "config/json.h"

namespace k3 {

/// The value; nothing when Python would raise JSONDecodeError. InvalidArgument for nesting beyond
/// limits::kJsonDepthMax.
Result<std::optional<JsonValue>> ParsePythonJson(std::string_view text);

/// Whether Python's text.strip() leaves nothing. `text` must be UTF-8.
bool IsBlank(std::string_view text);

}  // namespace k3
