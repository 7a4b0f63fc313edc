#include "terminal/text_steps.h"

#include <gtest/gtest.h>

#include <clocale>

#include "terminal/wide_text.h"

namespace k3::cli {
namespace {

class TextStepsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr); }
};

TEST_F(TextStepsTest, ACharacterIsWhatLooksLikeOne) {
  const auto before = [](std::string_view text) { return CharacterBefore(ToWide(text)); };
  const auto after = [](std::string_view text) { return CharacterAfter(ToWide(text)); };
  EXPECT_EQ(before(""), 0);
  EXPECT_EQ(after(""), 0);
  EXPECT_EQ(before("ab"), 1);
  EXPECT_EQ(before("한"), 1);
  EXPECT_EQ(before("xe\u0301"), 2);
  EXPECT_EQ(after("e\u0301x"), 2);
  EXPECT_EQ(before("x👍🏽"), 2);
  EXPECT_EQ(before("x👨\u200D👩\u200D👧"), 5);
  EXPECT_EQ(after("👨\u200D👩\u200D👧x"), 5);
  EXPECT_EQ(before("x❤\uFE0F"), 2);
  EXPECT_EQ(before("\u0301"), 1);
  EXPECT_EQ(after("\n\u0301"), 2);
}

TEST_F(TextStepsTest, AWordIsLettersAndDigits) {
  const auto before = [](std::string_view text) { return WordBefore(ToWide(text)); };
  const auto after = [](std::string_view text) { return WordAfter(ToWide(text)); };
  EXPECT_EQ(before(""), 0);
  EXPECT_EQ(after(""), 0);
  EXPECT_EQ(before("one two"), 3);
  EXPECT_EQ(before("one two.  "), 6);
  EXPECT_EQ(before("한글 단어"), 2);
  EXPECT_EQ(before("x cafe\u0301s_1"), 8);
  EXPECT_EQ(before("..."), 3);
  EXPECT_EQ(after("one two"), 3);
  EXPECT_EQ(after(" (one) two"), 5);
  EXPECT_EQ(after("\n한글\n"), 3);
  EXPECT_EQ(after("..."), 3);
}

}  // namespace
}  // namespace k3::cli
