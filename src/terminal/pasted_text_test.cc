#include "terminal/pasted_text.h"

#include <gtest/gtest.h>

namespace k3::cli {
namespace {

TEST(PastedText, StandsForItsText) {
  PastedText pastes;
  const std::string one = pastes.Add("pasted", "a\nb\n");
  const std::string two = pastes.Add("recalled", std::string(1234567, 'x'));
  EXPECT_EQ(one, "[pasted #1, 2 lines, 4 bytes]");
  EXPECT_EQ(two, "[recalled #2, 1 line, 1,234,567 bytes]");
  EXPECT_EQ(pastes.Expand("[" + one + "]" + two + one),
            "[a\nb\n]" + std::string(1234567, 'x') + "a\nb\n");
}

TEST(PastedText, EditedItIsPlainText) {
  PastedText pastes;
  std::string placeholder = pastes.Add("pasted", "a\nb");
  placeholder.erase(5, 1);
  EXPECT_EQ(pastes.Expand(placeholder), placeholder);
}

TEST(PastedText, TextIsNotLookedAtAgain) {
  PastedText pastes;
  const std::string one = pastes.Add("pasted", "x\ny");
  const std::string two = pastes.Add("pasted", one + "\n");
  EXPECT_EQ(pastes.Expand(two), one + "\n");
}

TEST(PastedText, AnOldPlaceholderStandsForNothing) {
  PastedText pastes;
  const std::string old = pastes.Add("pasted", "a\nb");
  pastes.Clear();
  const std::string now = pastes.Add("pasted", "c\nd");
  EXPECT_NE(old, now);
  EXPECT_EQ(pastes.Expand(old + now), old + "c\nd");
}

TEST(PastedText, FindsThePlaceholderAtTheCursor) {
  PastedText pastes;
  const std::string one = pastes.Add("pasted", "a\nb");
  EXPECT_EQ(pastes.PlaceholderAtEnd("x" + one), std::ssize(one));
  EXPECT_EQ(pastes.PlaceholderAtEnd(one + "x"), 0);
  EXPECT_EQ(pastes.PlaceholderAtStart(one + "x"), std::ssize(one));
  EXPECT_EQ(pastes.PlaceholderAtStart("x" + one), 0);
}

}  // namespace
}  // namespace k3::cli
