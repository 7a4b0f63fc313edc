#include "terminal/line_picture.h"

#include <gtest/gtest.h>

#include <clocale>

#include "terminal/wide_text.h"

namespace k3::cli {
namespace {

class LinePictureTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr); }

  /// Rows with "$" where the terminal goes on by itself, and the cursor as "@row,column".
  static std::string Draw(std::string_view before, std::string_view after, int64_t columns,
                          std::string_view prompt = "> ") {
    const LinePicture picture = DrawLine(ToWide(prompt), ToWide(before), ToWide(after), columns);
    std::string all;
    for (const LinePicture::Row& row : picture.rows) {
      all += row.text + (row.goes_on ? (row.full ? "$\n" : "_$\n") : "\n");
    }
    EXPECT_FALSE(picture.rows.back().goes_on);
    return all + "@" + std::to_string(picture.cursor_row) + "," +
           std::to_string(picture.cursor_column);
  }
};

TEST_F(LinePictureTest, BreaksLongLines) {
  EXPECT_EQ(Draw("abc", "", 10), "> abc\n@0,5");
  EXPECT_EQ(Draw("abcdefg", "h", 10), "> abcdefgh$\n\n@0,9");
  EXPECT_EQ(Draw("abcdefgh", "", 10), "> abcdefgh$\n\n@1,0");
  EXPECT_EQ(Draw("abcdefgh", "ij", 10), "> abcdefgh$\nij\n@1,0");
  EXPECT_EQ(Draw("", "abcdefghi", 10), "> abcdefgh$\ni\n@0,2");
}

TEST_F(LinePictureTest, CharactersOfTwoColumnsStayWhole) {
  EXPECT_EQ(Draw("한글漢字", "", 10), "> 한글漢字$\n\n@1,0");
  EXPECT_EQ(Draw("a한글漢字", "", 10), "> a한글漢_$\n字\n@1,2");
  EXPECT_EQ(Draw("a한글漢", "字", 10), "> a한글漢_$\n字\n@1,0");
  EXPECT_EQ(Draw("a한글漢", "b", 10), "> a한글漢b$\n\n@0,9");
}

TEST_F(LinePictureTest, MarksStandOnTheirCharacter) {
  EXPECT_EQ(Draw("e\u0301", "", 10), "> e\u0301\n@0,3");
  EXPECT_EQ(Draw("abcdefge\u0301", "x", 10), "> abcdefge\u0301$\nx\n@1,0");
  EXPECT_EQ(Draw("\n\u0301", "", 10), "> \n\u25CC\u0301\n@1,1");
  EXPECT_EQ(Draw("\u1112\u1161\u11AB", "", 10), "> \u1112\u1161\u11AB\n@0,4");
  // Joined emoji show one by one, of which every terminal knows the width.
  EXPECT_EQ(Draw("👨\u200D👩", "", 10), "> 👨👩\n@0,6");
  EXPECT_EQ(Draw("क\u094D\u200Dष", "", 10), "> क\u094D\u200Dष\n@0,4");
}

TEST_F(LinePictureTest, NothingInTheLineDrivesTheTerminal) {
  EXPECT_EQ(Draw("a\033[A\x7F", "", 20), "> a^[[A^?\n@0,9");
  EXPECT_EQ(Draw("\u009B\u0378", "", 20), "> \uFFFD\uFFFD\n@0,4");
  EXPECT_EQ(Draw("\ta\tb", "", 20), ">       a       b\n@0,17");
  EXPECT_EQ(Draw("\t\ta", "", 12), ">           $\na\n@1,1");
  EXPECT_EQ(Draw("a\nb", "\nc", 20), "> a\nb\nc\n@1,1");
}

TEST_F(LinePictureTest, OnlyColoursOfThePromptTakeNoRoom) {
  EXPECT_EQ(Draw("a", "", 10, "\033[1;32m>\033[0m "), "\033[1;32m>\033[0m a\n@0,3");
  EXPECT_EQ(Draw("", "", 20, "\033[2J> "), "^[[2J> \n@0,7");
}

TEST_F(LinePictureTest, AnyWidthWorks) {
  EXPECT_EQ(Draw("한a", "", 1), "> $\n한$\na\n@2,1");
  for (int64_t columns = 0; columns < 40; ++columns) {
    const LinePicture picture = DrawLine(L"> ", L"a한\t\u0301글b\n", L"漢\t x🌍", columns);
    EXPECT_LE(picture.cursor_row, std::ssize(picture.rows) - 1);
    EXPECT_LT(picture.cursor_column, std::max<int64_t>(columns, 2));
  }
}

}  // namespace
}  // namespace k3::cli
