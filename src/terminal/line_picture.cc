#include "terminal/line_picture.h"

#include <fmt/format.h>
#include <wchar.h>

#include <algorithm>

#include "terminal/wide_text.h"
#include "text/utf8.h"

namespace k3::cli {
namespace {

constexpr wchar_t kReplacement = 0xFFFD;
constexpr wchar_t kDottedCircle = 0x25CC;
constexpr wchar_t kJoiner = 0x200D;
constexpr wchar_t kEmojiStyle = 0xFE0F;
constexpr int64_t kTabColumns = 8;

bool IsWide(wchar_t c) { return wcwidth(c) == 2; }
/// Rows in the making.
class Rows {
 public:
  explicit Rows(int64_t columns) : columns_(std::max<int64_t>(columns, 2)) {}

  void AddPrompt(std::wstring_view prompt) {
    while (!prompt.empty()) {
      const size_t colour = ColourLength(prompt);
      if (colour > 0) {
        rows_.back().text += FromWide(prompt.substr(0, colour));
      } else {
        AddCharacter(prompt[0], L'\0', L'\0');
      }
      prompt.remove_prefix(std::max<size_t>(colour, 1));
    }
  }

  void AddText(std::wstring_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      AddCharacter(text[i], i > 0 ? text[i - 1] : L'\0', i + 1 < text.size() ? text[i + 1] : L'\0');
    }
  }

  int64_t row() const { return std::ssize(rows_) - 1; }
  int64_t column() const { return column_; }
  std::vector<LinePicture::Row> Take() { return std::move(rows_); }

 private:
  void AddCharacter(wchar_t c, wchar_t before, wchar_t after) {
    if (c == L'\n') return Break();
    if (c == L'\t') {
      const int64_t stop = std::min(columns_, (column_ / kTabColumns + 1) * kTabColumns);
      for (int64_t left = stop - column_; left > 0; --left) Add(L' ', 1);
      return;
    }
    if (c < 0x20 || c == 0x7F) {
      Add(L'^', 1);
      return Add(static_cast<wchar_t>(c ^ 0x40), 1);
    }
    // Terminals that draw joined emoji as one disagree with the others about their width.
    if (c == kEmojiStyle || (c == kJoiner && (IsWide(before) || IsWide(after)))) return;
    const int width = wcwidth(c);
    Add(width < 0 ? kReplacement : c, width < 0 ? 1 : width);
  }

  void Add(wchar_t c, int64_t width) {
    if (width == 0 && column_ == 0 && rows_.size() > 1 && rows_.end()[-2].full) {
      // A mark on the last character of a row that is full.
      return AppendUtf8(static_cast<char32_t>(c), &rows_.end()[-2].text);
    }
    if (width == 0 && column_ == 0) Add(kDottedCircle, 1);  // there is nothing to stand on
    // A character of two columns does not stand half on a row.
    if (column_ + width > columns_) GoOn();
    AppendUtf8(static_cast<char32_t>(c), &rows_.back().text);
    column_ += width;
    if (column_ < columns_ || width == 0) return;
    rows_.back().full = true;
    GoOn();
  }

  void GoOn() {
    rows_.back().goes_on = true;
    Break();
  }

  void Break() {
    rows_.emplace_back();
    column_ = 0;
  }

  const int64_t columns_;
  std::vector<LinePicture::Row> rows_{1};
  int64_t column_ = 0;
};

/// Up when negative.
std::string MoveRows(int64_t rows) {
  if (rows == 0) return "";
  return fmt::format("\033[{}{}", std::abs(rows), rows < 0 ? 'A' : 'B');
}

/// From the end of one row to the start of the next. Where the line goes on, the terminal has to
/// get there by itself, to know that the rows are one: then a copy of the text has no newline, and
/// a change of the width keeps them together.
std::string_view Ending(const LinePicture::Row& row) {
  if (!row.goes_on) return "\033[K\r\n";
  // A character of two columns follows, which does not fit.
  if (!row.full) return "\033[K";
  return " \r";
}

}  // namespace

LinePicture DrawLine(std::wstring_view prompt, std::wstring_view before_cursor,
                     std::wstring_view after_cursor, int64_t columns) {
  Rows rows(columns);
  rows.AddPrompt(prompt);
  rows.AddText(before_cursor);
  LinePicture picture;
  picture.cursor_row = rows.row();
  picture.cursor_column = rows.column();
  // The cursor stands on a character that does not fit behind it in the next row.
  const bool moves = !after_cursor.empty() && IsWide(after_cursor[0]) &&
                     picture.cursor_column + 2 > std::max<int64_t>(columns, 2);
  if (moves) {
    ++picture.cursor_row;
    picture.cursor_column = 0;
  }
  rows.AddText(after_cursor);
  picture.rows = rows.Take();
  return picture;
}

std::string LinePainter::Paint(const LinePicture& picture, TerminalSize size) {
  const int64_t room = size.rows;
  const int64_t last_first = std::max<int64_t>(std::ssize(picture.rows) - room, 0);
  first_ = std::clamp(first_, std::max<int64_t>(picture.cursor_row - room + 1, 0),
                      std::max<int64_t>(picture.cursor_row, 0));
  first_ = std::min(first_, last_first);
  const auto begin = picture.rows.begin() + first_;
  std::vector<LinePicture::Row> rows(begin, begin + std::min(std::ssize(picture.rows), room));

  const auto same = std::mismatch(rows.begin(), rows.end(), shown_.begin(), shown_.end());
  const bool changed = same.first != rows.end() || same.second != shown_.end();
  std::string out;
  int64_t row = cursor_row_;
  if (changed) {
    // From the first row that differs, or the last one when rows come or go at the end.
    const int64_t last_shown = std::max<int64_t>(std::ssize(shown_) - 1, 0);
    const int64_t from = std::min({same.first - rows.begin(), std::ssize(rows) - 1, last_shown});
    out += MoveRows(from - row) + "\r";
    for (row = from; row + 1 < std::ssize(rows); ++row) {
      const LinePicture::Row& above = rows[static_cast<size_t>(row)];
      out += above.text;
      out += Ending(above);
    }
    out += rows.back().text;
    // A full one is at the bottom of the window, and erasing would take its last character.
    if (!rows.back().full) out += "\033[J";
  }
  cursor_row_ = picture.cursor_row - first_;
  out += MoveRows(cursor_row_ - row) + "\r";
  if (picture.cursor_column > 0) out += fmt::format("\033[{}C", picture.cursor_column);
  shown_ = std::move(rows);
  return out;
}

std::string LinePainter::Finish(std::string_view text) {
  const int64_t last = std::max<int64_t>(std::ssize(shown_) - 1, 0);
  std::string out = MoveRows(last - cursor_row_) + "\r";
  if (!shown_.empty()) out += shown_.back().text;
  Forget();
  return out + std::string(text) + "\r\n";
}

std::string LinePainter::Move(const LinePicture& picture, TerminalSize size) {
  const int64_t up = std::min<int64_t>(picture.cursor_row - first_, size.rows - 1);
  Forget();
  return MoveRows(-std::max<int64_t>(up, 0)) + "\r\033[J";
}

std::string LinePainter::ClearScreen() {
  Forget();
  return "\033[H\033[2J";
}

void LinePainter::Forget() {
  shown_.clear();
  first_ = 0;
  cursor_row_ = 0;
}

}  // namespace k3::cli
