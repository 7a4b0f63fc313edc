#include "terminal/wide_text.h"

#include "text/utf8.h"

namespace k3::cli {

std::wstring ToWide(std::string_view text) {
  constexpr wchar_t kReplacement = 0xFFFD;
  std::wstring wide;
  wide.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const bool valid = step.kind == Utf8Step::Kind::kValid;
    wide += valid ? static_cast<wchar_t>(step.code_point) : kReplacement;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return wide;
}

std::string FromWide(std::wstring_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const wchar_t c : text) AppendUtf8(static_cast<char32_t>(c), &bytes);
  return bytes;
}

size_t ColourLength(std::wstring_view text) {
  constexpr std::wstring_view kStart = L"\033[";
  if (!text.starts_with(kStart)) return 0;
  const size_t end = text.find_first_not_of(L"0123456789;:", kStart.size());
  return end != std::wstring_view::npos && text[end] == L'm' ? end + 1 : 0;
}

}  // namespace k3::cli
