#pragma once
// Wide text as libedit and the C library want it. Pure functions, any thread; nothing fails.

#include <cstddef>
#include <string>
#include <string_view>

namespace k3::cli {

/// From UTF-8; what is not becomes U+FFFD.
std::wstring ToWide(std::string_view text);

/// The inverse.
std::string FromWide(std::wstring_view text);

/// The length of the colour sequence (ESC [ ... m) that `text` begins with, or 0.
size_t ColourLength(std::wstring_view text);

}  // namespace k3::cli
