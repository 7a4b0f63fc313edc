// LinePainter on a terminal in miniature.

#include <gtest/gtest.h>
#include <wchar.h>

#include <clocale>
#include <random>

#include "terminal/line_picture.h"
#include "terminal/wide_text.h"

namespace k3::cli {
namespace {

/// What a terminal does with the sequences that LinePainter uses. Anything else is a failure.
class Screen {
 public:
  explicit Screen(TerminalSize size) : size_(size) {
    for (int i = 0; i < size.rows; ++i) rows_.push_back(EmptyRow());
  }

  void Write(std::string_view bytes) {
    const std::wstring text = ToWide(bytes);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == L'\033') {
        i = Sequence(text, i);
      } else if (text[i] == L'\r') {
        column_ = 0;
        wraps_ = false;
      } else if (text[i] == L'\n') {
        Down();
      } else {
        Print(text[i]);
      }
    }
  }

  /// A row without the blanks at its end.
  std::string Text(int64_t row) const {
    std::string text;
    for (const std::string& cell : rows_[static_cast<size_t>(row)]) text += cell;
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }
  int64_t row() const { return row_; }
  int64_t column() const { return column_; }

 private:
  using Row = std::vector<std::string>;  // a character of two columns is followed by an empty cell

  Row EmptyRow() const { return Row(static_cast<size_t>(size_.columns), " "); }
  Row& Current() { return rows_[static_cast<size_t>(row_)]; }

  void Down() {
    wraps_ = false;
    if (++row_ < size_.rows) return;
    row_ = size_.rows - 1;
    rows_.erase(rows_.begin());
    rows_.push_back(EmptyRow());
  }

  void Print(wchar_t c) {
    const int width = wcwidth(c);
    ASSERT_GE(width, 0) << static_cast<int>(c);
    if (width == 0) {
      const int64_t before = wraps_ ? column_ : column_ - 1;
      ASSERT_GE(before, 0) << "a mark at the start of a row";
      auto cell = Current().begin() + before;
      if (cell->empty()) --cell;
      *cell += FromWide({&c, 1});
      return;
    }
    if (wraps_ || column_ + width > size_.columns) {
      Down();
      column_ = 0;
    }
    Current()[static_cast<size_t>(column_)] = FromWide({&c, 1});
    if (width == 2) Current()[static_cast<size_t>(column_ + 1)] = "";
    column_ += width;
    // The cursor stays on the last column until more comes.
    wraps_ = column_ == size_.columns;
    if (wraps_) --column_;
  }

  size_t Sequence(std::wstring_view text, size_t at) {
    size_t end = at + 2;
    int64_t number = 0;
    while (end < text.size() && text[end] >= L'0' && text[end] <= L'9') {
      number = number * 10 + (text[end++] - L'0');
    }
    EXPECT_LT(end, text.size());
    const auto from = Current().begin() + column_;
    switch (text[end]) {
      case L'A':
        row_ -= number;
        break;
      case L'B':
        row_ += number;
        break;
      case L'C':
        column_ += number;
        break;
      case L'K':
        std::fill(from, Current().end(), " ");
        break;
      case L'J':
        std::fill(from, Current().end(), " ");
        for (int64_t i = row_ + 1; i < size_.rows; ++i) rows_[static_cast<size_t>(i)] = EmptyRow();
        break;
      case L'm':
        return end;
      default:
        ADD_FAILURE() << "unknown sequence";
    }
    EXPECT_TRUE(row_ >= 0 && row_ < size_.rows && column_ < size_.columns);
    wraps_ = false;
    return end;
  }

  const TerminalSize size_;
  std::vector<Row> rows_;
  int64_t row_ = 0;
  int64_t column_ = 0;
  bool wraps_ = false;
};

class LinePainterTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr); }

  static std::string Trimmed(const std::string& row) {
    return row.substr(0, row.find_last_not_of(' ') + 1);
  }

  /// Every row of the screen is the picture's that belongs there.
  static void ExpectShows(const Screen& screen, const LinePicture& picture, TerminalSize size) {
    EXPECT_EQ(screen.column(), picture.cursor_column);
    for (int64_t i = 0; i < size.rows; ++i) {
      const int64_t row = picture.cursor_row - screen.row() + i;
      if (row >= std::ssize(picture.rows)) {
        EXPECT_EQ(screen.Text(i), "");
      } else if (row < 0) {
        EXPECT_TRUE(screen.Text(i) == "~" || screen.Text(i).empty()) << screen.Text(i);
      } else {
        EXPECT_EQ(screen.Text(i), Trimmed(picture.rows[static_cast<size_t>(row)].text));
      }
    }
  }
};

TEST_F(LinePainterTest, WhateverIsTypedShows) {
  const std::vector<std::wstring> pieces = {L"a",  L"bc ", L"한",           L"글漢", L"e\u0301",
                                            L"\n", L"🌍",  L"longer text ", L"\t",   L"\u0301"};
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t bound) { return random() % bound; };
    const TerminalSize size{.columns = static_cast<int>(2 + below(30)),
                            .rows = static_cast<int>(1 + below(12))};
    Screen screen(size);
    for (size_t i = below(5); i > 0; --i) screen.Write("~\r\n");
    LinePainter painter;
    std::wstring line;
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
      size_t at = below(line.size() + 1);
      if (below(3) > 0) {
        const std::wstring& piece = pieces[below(pieces.size())];
        line.insert(at, piece);
        at += piece.size();
      } else {
        line.erase(at, 1 + below(20));
      }
      if (below(20) == 0) line.clear();
      at = std::min(at, line.size());
      const std::wstring_view text = line;
      const LinePicture picture =
          DrawLine(L"> ", text.substr(0, at), text.substr(at), size.columns);
      screen.Write(painter.Paint(picture, size));
      ExpectShows(screen, picture, size);
    }
    if (HasFailure()) FAIL() << "seed " << seed << ": " << size.columns << " x " << size.rows;
  }
}

TEST_F(LinePainterTest, OnlyWhatChangesIsWritten) {
  const TerminalSize size{.columns = 10, .rows = 5};
  LinePainter painter;
  const std::wstring line = L"one row and then some";
  const std::string all = painter.Paint(DrawLine(L"> ", line, L"", size.columns), size);
  EXPECT_EQ(all.find('\n'), std::string::npos) << "the rows are one line for the terminal";
  const std::string more = painter.Paint(DrawLine(L"> ", line + L"!", L"", size.columns), size);
  EXPECT_EQ(more.find("one"), std::string::npos) << more;
  EXPECT_NE(more.find('!'), std::string::npos) << more;
  const std::string moved = painter.Paint(DrawLine(L"> ", line, L"!", size.columns), size);
  EXPECT_EQ(moved, "\r\033[3C");
}

TEST_F(LinePainterTest, TheNextPictureBeginsBelow) {
  const TerminalSize size{.columns = 10, .rows = 6};
  Screen screen(size);
  LinePainter painter;
  screen.Write(painter.Paint(DrawLine(L"> ", L"a", L"bcdefghijkl", size.columns), size));
  screen.Write(painter.Finish("^C"));
  screen.Write(painter.Paint(DrawLine(L"> ", L"x", L"", size.columns), size));
  EXPECT_EQ(screen.Text(0), "> abcdefgh");
  EXPECT_EQ(screen.Text(1), "ijkl^C");
  EXPECT_EQ(screen.Text(2), "> x");
}

TEST_F(LinePainterTest, AnotherWidthIsDrawnInPlace) {
  const std::wstring text = L"0123456789abcdefgh";
  for (int columns : {40, 12, 7, 5}) {
    const TerminalSize size{.columns = columns, .rows = 9};
    // The terminal has broken the rows anew before it tells: as if painted with this width.
    Screen screen(size);
    screen.Write("~\r\n");
    LinePainter painter;
    const LinePicture picture = DrawLine(L"> ", text, L"", columns);
    screen.Write(painter.Paint(picture, size));
    screen.Write(painter.Move(picture, size));
    screen.Write(painter.Paint(picture, size));
    ExpectShows(screen, picture, size);
    EXPECT_EQ(screen.row(), picture.cursor_row + 1);
  }
}

}  // namespace
}  // namespace k3::cli
