#include "grammar/json_text.h"

#include "text/utf8.h"

namespace k3 {

namespace {

void Append(char32_t code_point, std::string* decoded) {
  if (decoded != nullptr) AppendUtf8(code_point, decoded);
}

int HexDigit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  const int lower = byte | 0x20;
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool IsHighSurrogate(uint16_t unit) { return unit >> 10 == 0x36; }

}  // namespace

JsonText::Step JsonText::Feed(uint8_t byte, std::string* decoded) {
  if (escape_ != Escape::kNone) return FeedEscape(byte, decoded);
  if (needed_ == 0) {
    if (byte == '"') return Step::kQuote;
    if (byte < 0x20) return Step::kBad;
    if (byte == '\\') {
      escape_ = Escape::kStart;
      return Step::kInside;
    }
  }
  const Step step = FeedUtf8(byte);
  if (step != Step::kBad && decoded != nullptr) *decoded += static_cast<char>(byte);
  return step;
}

JsonText::Step JsonText::FeedRaw(uint8_t byte) { return FeedUtf8(byte); }

/// Table 3-7 of the Unicode Standard.
JsonText::Step JsonText::FeedUtf8(uint8_t byte) {
  if (needed_ > 0) {
    if (byte < least_ || byte > most_) return Step::kBad;
    least_ = 0x80;
    most_ = 0xBF;
    --needed_;
    if (needed_ > 0) return Step::kInside;
    least_ = most_ = 0;
    return Step::kCharacter;
  }
  if (byte < 0x80) return Step::kCharacter;
  if (byte < 0xC2 || byte > 0xF4) return Step::kBad;
  least_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  most_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  needed_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  return Step::kInside;
}

JsonText::Step JsonText::FeedEscape(uint8_t byte, std::string* decoded) {
  switch (escape_) {
    case Escape::kDigits:
      return FeedDigit(byte, decoded);
    case Escape::kLowStart:
      if (byte != '\\') return Step::kBad;
      escape_ = Escape::kLowU;
      return Step::kInside;
    case Escape::kLowU:
      if (byte != 'u') return Step::kBad;
      escape_ = Escape::kDigits;
      return Step::kInside;
    case Escape::kNone:
    case Escape::kStart:
      break;
  }
  if (byte == 'u') {
    escape_ = Escape::kDigits;
    return Step::kInside;
  }
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const size_t at = kNames.find(static_cast<char>(byte));
  if (at == std::string_view::npos) return Step::kBad;
  escape_ = Escape::kNone;
  Append(static_cast<char32_t>(kMeanings[at]), decoded);
  return Step::kCharacter;
}

/// One of four digits. A second half of a pair without its first, and the reverse, are refused at
/// the digit that would make them.
JsonText::Step JsonText::FeedDigit(uint8_t byte, std::string* decoded) {
  const int digit = HexDigit(byte);
  if (digit < 0) return Step::kBad;
  if (high_ != 0 && digits_ == 0 && digit != 0xD) return Step::kBad;
  if (digits_ == 1 && unit_ == 0xD) {
    const bool is_low = digit >= 0xC;
    if (is_low != (high_ != 0)) return Step::kBad;
  }
  unit_ = static_cast<uint16_t>(unit_ << 4 | digit);
  if (++digits_ < 4) return Step::kInside;
  const uint16_t unit = unit_;
  unit_ = 0;
  digits_ = 0;
  if (IsHighSurrogate(unit)) {
    high_ = unit;
    escape_ = Escape::kLowStart;
    return Step::kInside;
  }
  char32_t code_point = unit;
  if (high_ != 0) {
    code_point = 0x10000 + ((high_ & 0x3FFu) << 10 | (unit & 0x3FFu));
  }
  high_ = 0;
  escape_ = Escape::kNone;
  Append(code_point, decoded);
  return Step::kCharacter;
}

}  // namespace k3
