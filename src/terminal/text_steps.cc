#include "terminal/text_steps.h"

#include <wchar.h>

#include <algorithm>
#include <cwctype>

namespace k3::cli {
namespace {

constexpr wchar_t kJoiner = 0x200D;

bool IsMark(wchar_t c) { return wcwidth(c) == 0; }
/// The colours of skin, which belong to the emoji before.
bool IsSkin(wchar_t c) { return c >= 0x1F3FB && c <= 0x1F3FF; }
bool IsOfWord(wchar_t c) {
  return std::iswalnum(static_cast<wint_t>(c)) != 0 || c == L'_' || IsMark(c);
}

}  // namespace

int64_t CharacterBefore(std::wstring_view text) {
  size_t at = text.size();
  while (at > 0) {
    const wchar_t c = text[--at];
    const bool joined = at > 0 && text[at - 1] == kJoiner;
    if (!IsMark(c) && !IsSkin(c) && !joined) break;
  }
  return static_cast<int64_t>(text.size() - at);
}

int64_t CharacterAfter(std::wstring_view text) {
  size_t length = std::min<size_t>(text.size(), 1);
  while (length < text.size() &&
         (IsMark(text[length]) || IsSkin(text[length]) || text[length - 1] == kJoiner)) {
    ++length;
  }
  return static_cast<int64_t>(length);
}

int64_t WordBefore(std::wstring_view text) {
  const auto last = std::find_if(text.rbegin(), text.rend(), IsOfWord);
  return std::find_if_not(last, text.rend(), IsOfWord) - text.rbegin();
}

int64_t WordAfter(std::wstring_view text) {
  const auto* const first = std::find_if(text.begin(), text.end(), IsOfWord);
  return std::find_if_not(first, text.end(), IsOfWord) - text.begin();
}

}  // namespace k3::cli
