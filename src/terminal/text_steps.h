#pragma once
// How far the cursor goes in a line that is edited. Pure functions on the caller's text, any
// thread; they need a UTF-8 locale (LC_CTYPE) to know marks and letters. Nothing fails.

#include <cstdint>
#include <string_view>

namespace k3::cli {

/// The length of what looks like one character at the end or the start of `text`: a character with
/// its marks, or some that are joined, as in emoji. 0 for empty text.
int64_t CharacterBefore(std::wstring_view text);
int64_t CharacterAfter(std::wstring_view text);

/// The length of the last or first word, with what stands between it and that end of `text`. A word
/// is letters and digits of any script.
int64_t WordBefore(std::wstring_view text);
int64_t WordAfter(std::wstring_view text);

}  // namespace k3::cli
