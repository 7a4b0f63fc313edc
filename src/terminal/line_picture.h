#pragma once
// How a prompt and a line look in the rows of a terminal, and LinePainter, which keeps the terminal
// showing that. libedit's own drawing goes wrong with characters of two columns and leaves out
// marks of none, so it is not used.
//
// Drawing needs a UTF-8 locale (LC_CTYPE) for the widths of characters, and a terminal that knows
// the common sequences of ECMA-48. LinePicture is a value; LinePainter writes to standard output;
// one thread. That the terminal is gone is for the reader of its input to find out.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terminal/terminal.h"

namespace k3::cli {

struct LinePicture {
  struct Row {
    std::string text;
    bool full = false;     // reaches the right edge
    bool goes_on = false;  // in the next row, for want of room
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;  // at least one; the last does not go on
  int64_t cursor_row = 0;
  int64_t cursor_column = 0;
};

/// Control characters show as ^X, characters without a glyph as U+FFFD; neither they nor `prompt`
/// take effect, but for colours (ESC [ ... m) in `prompt`.
LinePicture DrawLine(std::wstring_view prompt, std::wstring_view before_cursor,
                     std::wstring_view after_cursor, int64_t columns);

/// What it returns is for the terminal, at once.
class LinePainter {
 public:
  /// Shows `picture`, or as many of its rows around the cursor as there is room for, where the last
  /// one was. The first one begins in the row of the cursor, which must be empty.
  std::string Paint(const LinePicture& picture, TerminalSize size);

  /// Writes `text` behind the line and goes on to the next row. The next picture begins there.
  std::string Finish(std::string_view text);

  /// The window has another width now: the next picture takes the place of the last one. Where that
  /// begins, a terminal that breaks long rows again tells by `picture`, which is as it shows now.
  std::string Move(const LinePicture& picture, TerminalSize size);

  /// The next picture begins in the first row of an empty screen.
  std::string ClearScreen();

  /// The next picture begins in the row of the cursor.
  void Forget();

 private:
  std::vector<LinePicture::Row> shown_;
  int64_t first_ = 0;       // the picture's row that shows first
  int64_t cursor_row_ = 0;  // of those shown
};

}  // namespace k3::cli
