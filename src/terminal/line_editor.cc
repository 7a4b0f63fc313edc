#include "terminal/line_editor.h"

#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <cwchar>

#include "terminal/line_editor_internal.h"
#include "terminal/terminal.h"
#include "text/utf8_stream.h"

namespace k3::cli {
namespace {

/// Whether the locale writes wide characters as UTF-8.
bool LocaleIsUtf8() {
  constexpr wchar_t kHan = 0xD55C;
  char bytes[16] = {};
  std::mbstate_t state{};
  return std::wcrtomb(bytes, kHan, &state) == 3 && std::string_view(bytes) == "\xED\x95\x9C";
}

void UseUtf8Locale() {
  std::setlocale(LC_CTYPE, "");
  if (!LocaleIsUtf8()) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

Result<std::unique_ptr<LineEditor>> LineEditor::Open(Options options) {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || *term == '\0' || std::string_view(term) == "dumb";
  if (!dumb && IsTerminal(STDIN_FILENO) && IsTerminal(STDOUT_FILENO)) {
    UseUtf8Locale();
    return OpenTerminalLineEditor(std::move(options));
  }
  return OpenPlainLineReader();
}

bool GoesOn(std::string_view line) {
  const size_t last = line.find_last_not_of('\\');
  const size_t backslashes = line.size() - (last == std::string_view::npos ? 0 : last + 1);
  return backslashes % 2 == 1;
}

std::string ValidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string valid = stream.Feed(text);
  return valid + stream.Finish();
}

}  // namespace k3::cli
