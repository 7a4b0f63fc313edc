#include "text/random_text.h"

#include "text/utf8.h"

namespace k3 {
namespace {

using Group = std::vector<std::u32string_view>;

// Strings of a group are drawn whole, so that contractions and sequences occur.
std::vector<Group> Groups() {
  return {
      {U"A", U"Z", U"É", U"Я", U"Ω", U"\U00010400"},                       // Lu
      {U"a", U"z", U"s", U"ß", U"ſ", U"я", U"ﬅ", U"\U00010428"},           // Ll
      {U"ǅ", U"ᾈ", U"ǲ"},                                                  // Lt
      {U"ʰ", U"ˈ", U"ー", U"々", U"〻", U"ᵃ"},                             // Lm, two of them Han
      {U"ª", U"א", U"ع", U"あ", U"カ", U"한", U"ก", U"ǃ"},                 // Lo
      {U"\u0301", U"\u0903", U"\u20DD", U"\uFE0F", U"\u302A", U"\u3099"},  // M
      {U"世", U"界", U"㐀", U"\U00020000", U"〇", U"〡", U"⺀", U"\U00016FF0", U"豈"},  // Han
      {U"0", U"7", U"٣", U"५", U"Ⅷ", U"½", U"²", U"\U0001D7D8", U"①"},                  // N
      {U" ", U"  ", U"\t", U"\v", U"\f", U"\u0085", U"\u00A0", U"\u1680", U"\u2003"},
      {U"\u2028", U"\u2029", U"\u202F", U"\u205F", U"\u3000", U" ", U"\u180E", U"\u200B"},
      {U"\x1C", U"\x1D", U"\x1E", U"\x1F", U"\x01", U"\x7F", U" ", U"\n"},
      {U"\n", U"\r", U"\r\n", U"\n\n", U" \n", U"\n "},
      {U"'s", U"'S", U"'t", U"'T", U"'re", U"'RE", U"'rE", U"'ve", U"'Ve", U"'m", U"'M"},
      {U"'ll", U"'LL", U"'lL", U"'l", U"'d", U"'D", U"'ſ", U"'", U"''", U"’s", U"'r", U"'v"},
      {U"\u212A", U"İ", U"ı", U"ﬁ", U"ǆ", U"K"},
      {U"!", U"...", U"—", U"“", U"$", U"+", U"/", U"_", U"^", U"\u0345", U"€", U"<|open|>"},
      {U"🌍", U"👩", U"\u200D", U"🏽", U"🇦", U"1\uFE0F\u20E3", U"\U000E0041"},
      {U"\uE000", U"\uFFFD", U"\uFFFF", U"\U0010FFFF", U"\U000F0000", U"\uFDD0"},
  };
}

char32_t AnyCodePoint(Random& random) {
  const auto code_point = static_cast<char32_t>(random.NextBelow(0x110000 - 0x800));
  return code_point < 0xD800 ? code_point : code_point + 0x800;
}

}  // namespace

std::string RandomText(Random& random, int64_t characters) {
  static const std::vector<Group> groups = Groups();
  std::string out;
  size_t group = random.NextBelow(groups.size());
  // How often the group changes differs from string to string.
  const uint64_t stay = 1 + random.NextBelow(8);
  for (int64_t i = 0; i < characters; ++i) {
    if (random.NextBelow(stay) == 0) group = random.NextBelow(groups.size());
    if (random.NextBelow(16) == 0) {
      AppendUtf8(AnyCodePoint(random), &out);
      continue;
    }
    const std::u32string_view drawn = groups[group][random.NextBelow(groups[group].size())];
    for (const char32_t c : drawn) AppendUtf8(c, &out);
  }
  return out;
}

std::string Repeat(std::string_view unit, int64_t count) {
  std::string out;
  out.reserve(unit.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out += unit;
  return out;
}

}  // namespace k3
