#include "terminal/key_decoder.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/limits.h"
#include "text/utf8.h"

namespace k3::cli {
namespace {

using Kind = Key::Kind;

std::vector<Key> Decode(std::string_view bytes) {
  KeyDecoder decoder;
  decoder.Push(bytes);
  std::vector<Key> keys;
  while (std::optional<Key> key = decoder.Next()) keys.push_back(*key);
  EXPECT_FALSE(decoder.waiting()) << bytes;
  return keys;
}

Kind Only(std::string_view bytes) {
  const std::vector<Key> keys = Decode(bytes);
  EXPECT_EQ(keys.size(), 1u) << bytes;
  return keys.empty() ? Kind::kIgnored : keys[0].kind;
}

std::string TextOf(std::string_view bytes) {
  std::string text;
  for (const Key& key : Decode(bytes)) {
    EXPECT_EQ(key.kind, Kind::kText) << bytes;
    text += key.text;
  }
  return text;
}

TEST(KeyDecoder, KnowsTheKeysOfTerminals) {
  for (const char* up : {"\033[A", "\033OA"}) EXPECT_EQ(Only(up), Kind::kUp);
  for (const char* home : {"\033[H", "\033OH", "\033[1~", "\033[7~", "\001"}) {
    EXPECT_EQ(Only(home), Kind::kHome);
  }
  EXPECT_EQ(Only("\033[3~"), Kind::kDelete);
  EXPECT_EQ(Only("\033[1;5C"), Kind::kWordRight);
  EXPECT_EQ(Only("\033b"), Kind::kWordLeft);
  EXPECT_EQ(Only("\033\r"), Kind::kNewline);
  EXPECT_EQ(Only("\033[13;2u"), Kind::kNewline);
  EXPECT_EQ(Only("\177"), Kind::kBackspace);
  EXPECT_EQ(Only("\b"), Kind::kBackspace);
  EXPECT_EQ(Only("\r"), Kind::kEnter);
  EXPECT_EQ(Only("\n"), Kind::kEnter);
  EXPECT_EQ(Only("\003"), Kind::kInterrupt);
}

TEST(KeyDecoder, TextComesInRuns) {
  const std::vector<Key> keys = Decode("so 한\033[D🌍\r");
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(keys[0].text, "so 한");
  EXPECT_EQ(keys[1].kind, Kind::kLeft);
  EXPECT_EQ(keys[2].text, "🌍");
  EXPECT_EQ(keys[3].kind, Kind::kEnter);
}

TEST(KeyDecoder, DropsUnknownSequencesWhole) {
  for (const char* odd : {"\033[1;2R", "\033[<0;3;4M", "\033[[A", "\033OP", "\033x", "\033[20~",
                          "\033[201~", "\033\033", "\033[?62;c"}) {
    EXPECT_EQ(TextOf(std::string(odd) + "\033[Zy"), "y") << odd + 1;
  }
  // A byte that no sequence holds breaks it off and counts for itself.
  EXPECT_EQ(Only("\033[1;\003"), Kind::kInterrupt);
}

TEST(KeyDecoder, ATabInABurstIsText) {
  EXPECT_EQ(Only("\t"), Kind::kTab);
  EXPECT_EQ(TextOf("\tif x:"), "\tif x:");
  EXPECT_EQ(TextOf("a\tb"), "a\tb");
  EXPECT_EQ(Decode("/he\t").back().kind, Kind::kTab);
}

TEST(KeyDecoder, WhatIsNotTextBecomesAReplacement) {
  EXPECT_EQ(TextOf("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(TextOf("\xC3("), "\uFFFD(");
  EXPECT_EQ(TextOf("\xED\xA0\x80z"), "\uFFFD\uFFFD\uFFFDz");  // a surrogate
  EXPECT_EQ(TextOf("\xC2\x9B"
                   "A"),
            "\uFFFDA");  // CSI in one byte of Latin-1
  EXPECT_EQ(TextOf("\xC3\xA9"), "é");
}

TEST(KeyDecoder, APasteIsOneKeyWhateverIsInIt) {
  const std::vector<Key> keys = Decode("a\033[200~x\033[A\003\tb\r\nc\rd\n\033[201~b");
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[1].kind, Kind::kPaste);
  EXPECT_EQ(keys[1].text, "x\033[A\003\tb\nc\nd\n");
  EXPECT_EQ(keys[2].text, "b");
  using namespace std::string_view_literals;
  EXPECT_EQ(Decode("\033[200~\xFF\0\033[201\033[201~"sv)[0].text, "\uFFFD\uFFFD\033[201");
  EXPECT_EQ(Decode("\033[200~\033[201~")[0].text, "");
}

TEST(KeyDecoder, ThePiecesDoNotMatter) {
  const std::string bytes =
      "h\xC3\xA9 한글\033[A\033[1;5D\033[200~p\r\nq\033[20\033[A\033[201~🌍\xFF!\033OF\tz\r\004";
  const auto join = [](const std::vector<Key>& keys) {
    std::string all;
    for (const Key& key : keys) {
      const bool text = key.kind == Kind::kText;
      all += text ? key.text : "<" + std::to_string(static_cast<int>(key.kind)) + key.text + ">";
    }
    return all;
  };
  const std::string whole = join(Decode(bytes));
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    KeyDecoder decoder;
    std::vector<Key> keys;
    for (size_t at = 0; at < bytes.size();) {
      // A tab before more of a burst needs that to be there.
      const size_t tab = bytes.find('\t');
      size_t length = 1 + random() % (trial % 2 == 0 ? 3 : 12);
      if (at <= tab && at + length == tab + 1) ++length;
      length = std::min(length, bytes.size() - at);
      decoder.Push(std::string_view(bytes).substr(at, length));
      at += length;
      while (std::optional<Key> key = decoder.Next()) keys.push_back(*key);
    }
    EXPECT_EQ(join(keys), whole);
  }
}

TEST(KeyDecoder, NothingStaysUnfinishedForEver) {
  KeyDecoder decoder;
  decoder.Push("\033[");
  EXPECT_FALSE(decoder.Next().has_value());
  EXPECT_TRUE(decoder.waiting());
  decoder.Settle();
  EXPECT_FALSE(decoder.Next().has_value());
  EXPECT_FALSE(decoder.waiting());

  decoder.Push("\xED\x95");
  EXPECT_FALSE(decoder.Next().has_value());
  decoder.Settle();
  EXPECT_EQ(decoder.Next()->text, "\uFFFD");

  decoder.Push("\033[200~lost end");
  EXPECT_FALSE(decoder.Next().has_value());
  decoder.Push("\003");  // still in the paste
  EXPECT_FALSE(decoder.Next().has_value());
  decoder.Settle();
  decoder.Push("\003");
  EXPECT_EQ(decoder.Next()->kind, Kind::kInterrupt);
  EXPECT_FALSE(decoder.waiting());
}

TEST(KeyDecoder, APasteHasALimit) {
  KeyDecoder decoder;
  decoder.Push("\033[200~");
  const std::string piece(1 << 20, 'x');
  for (int64_t sent = 0; sent <= limits::kLineBytesMax; sent += std::ssize(piece)) {
    decoder.Push(piece);
    EXPECT_FALSE(decoder.Next().has_value());
  }
  decoder.Push("\033[201~y");
  EXPECT_EQ(decoder.Next()->kind, Kind::kPasteTooLong);
  EXPECT_EQ(decoder.Next()->text, "y");
}

TEST(KeyDecoder, AnyBytesGiveValidText) {
  std::mt19937 random(11);
  const std::string likely = "\033\033[[O~20012;5ABu\r\n\t\003\177\xED\x95\x9C\xC2\x9B\xF0";
  for (int trial = 0; trial < 2000; ++trial) {
    KeyDecoder decoder;
    for (int push = 0; push < 4; ++push) {
      std::string bytes;
      for (size_t i = random() % 20; i > 0; --i) {
        const bool any = random() % 4 == 0;
        bytes += any ? static_cast<char>(random()) : likely[random() % likely.size()];
      }
      decoder.Push(bytes);
      if (random() % 8 == 0) decoder.Settle();
      while (std::optional<Key> key = decoder.Next()) {
        EXPECT_EQ(FindInvalidUtf8(key->text), -1);
        EXPECT_NE(key->kind, Kind::kIgnored);
        EXPECT_TRUE(key->kind != Kind::kText || key->text.find('\033') == std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace k3::cli
