#include "terminal/terminal.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "text/utf8.h"

namespace k3::cli {
namespace {

TEST(ForTerminal, LeavesTextAsItIs) {
  const std::string text = "line\n\ttab 한글 🌍 é \u00A0 ~";
  EXPECT_EQ(ForTerminal(text), text);
  EXPECT_EQ(ForTerminal(""), "");
}

TEST(ForTerminal, NothingDrivesTheTerminal) {
  using namespace std::string_view_literals;
  EXPECT_EQ(ForTerminal("\033[2J\033]0;t\007"), "^[[2J^[]0;t^G");
  EXPECT_EQ(ForTerminal("a\0b\b\x7F"sv), "a^@b^H^?");
  EXPECT_EQ(ForTerminal("\u009B2J\u0085\u0080\u009F"), "\uFFFD2J\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ForTerminal("\x9B"
                        "2J\xED"),
            "\uFFFD2J\uFFFD");
  EXPECT_EQ(ForTerminal("a\r\nb\rc\r"), "a\nb^Mc^M");
}

TEST(ForTerminal, ThePiecesDoNotMatter) {
  const std::string bytes = "a\r\n\r\xC2\x9B한\xC2\xA0\033[A\r\r\n\xF0\x9F\xFF\xED\x95";
  const std::string whole = ForTerminal(bytes);
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    TerminalText stream;
    std::string joined;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      joined += stream.Feed(std::string_view(bytes).substr(at, piece));
      EXPECT_EQ(FindInvalidUtf8(joined), -1);
    }
    EXPECT_EQ(joined + stream.Finish(), whole) << piece;
  }
}

TEST(ForTerminal, EveryByteAndPairIsSafe) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes = {static_cast<char>(first), static_cast<char>(second)};
      const std::string safe = ForTerminal(bytes);
      EXPECT_EQ(FindInvalidUtf8(safe), -1);
      for (size_t i = 0; i < safe.size(); ++i) {
        const auto byte = static_cast<uint8_t>(safe[i]);
        EXPECT_TRUE(byte >= 0x20 || byte == '\n' || byte == '\t') << first << " " << second;
        EXPECT_NE(byte, 0x7F);
        EXPECT_TRUE(byte != 0xC2 || static_cast<uint8_t>(safe[i + 1]) >= 0xA0);
      }
    }
  }
}

TEST(InterruptScope, EachOneIsInterruptedForItself) {
  for (int answer = 0; answer < 3; ++answer) {
    const InterruptScope scope;
    EXPECT_FALSE(WasInterrupted());
    raise(SIGINT);
    EXPECT_TRUE(WasInterrupted());
  }
  EXPECT_FALSE(WasInterrupted());
}

TEST(InterruptScope, LeavesWhatWasThereBefore) {
  signal(SIGINT, SIG_IGN);
  {
    const InterruptScope scope;
  }
  EXPECT_EQ(signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(InterruptScopeDeathTest, ASecondOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        raise(SIGINT);
        raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace k3::cli
