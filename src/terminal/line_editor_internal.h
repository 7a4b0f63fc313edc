#pragma once
// The two ways to read a line, for line_editor.cc. Ownership, threads and failures: line_editor.h.

#include <memory>
#include <string>
#include <string_view>

#include "terminal/line_editor.h"

namespace k3::cli {

/// Lines as they come, from anything but a terminal that can be edited on.
Result<std::unique_ptr<LineEditor>> OpenPlainLineReader();

/// Lines edited on a terminal.
Result<std::unique_ptr<LineEditor>> OpenTerminalLineEditor(LineEditor::Options options);

/// Whether the line goes on in the next one: an odd number of backslashes ends it. Two of them are
/// text, such as a line break of LaTeX.
bool GoesOn(std::string_view line);

/// `text` with U+FFFD for whatever is not UTF-8.
std::string ValidUtf8(std::string_view text);

}  // namespace k3::cli
