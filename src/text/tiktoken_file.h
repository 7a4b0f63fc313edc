#pragma once
// The content of a tiktoken.model file: one token a line, its bytes in base64, a space and its
// rank. Lines may stand in any order; ranks must be 0 to n - 1, each once. Every single byte must
// be a token, or some text could not be encoded. Stateless; the table returned owns its bytes. A
// file that breaks a rule is Corruption with `where` and the line number.

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "text/token_table.h"

namespace k3 {

/// The tokens; the number of each is its rank. `where` names the file in messages.
Result<TokenTable> ParseTiktokenFile(std::string_view content, std::string_view where);

}  // namespace k3
