#pragma once
// JsonText: the inside of a string byte by byte, of JSON or raw: whether it stays valid UTF-8 with
// whole escapes, and how many code points it has. A state never has to be left again: whatever was
// accepted can be completed. A plain value of a few bytes; any thread.

#include <cstdint>
#include <string>

namespace k3 {

class JsonText {
 public:
  enum class Step {
    kInside,     // in the middle of a character or an escape
    kCharacter,  // a character was completed
    kQuote,      // an unescaped quotation mark between two characters
    kBad,        // cannot stand here
  };

  /// Takes one byte of JSON's string syntax and appends to `decoded`, if given, what it completes.
  Step Feed(uint8_t byte, std::string* decoded);
  /// The same where quotes, backslashes and control characters are ordinary.
  Step FeedRaw(uint8_t byte);

  bool is_between_characters() const { return needed_ == 0 && escape_ == Escape::kNone; }

  bool operator==(const JsonText&) const = default;

 private:
  enum class Escape : uint8_t { kNone, kStart, kDigits, kLowStart, kLowU };

  Step FeedUtf8(uint8_t byte);
  Step FeedEscape(uint8_t byte, std::string* decoded);
  Step FeedDigit(uint8_t byte, std::string* decoded);

  // UTF-8: how many more bytes, and the range of the next one.
  uint8_t needed_ = 0;
  uint8_t least_ = 0;
  uint8_t most_ = 0;
  // \uXXXX: how many digits were read of `unit_`; `high_` is the first half of a pair, or 0.
  Escape escape_ = Escape::kNone;
  uint8_t digits_ = 0;
  uint16_t unit_ = 0;
  uint16_t high_ = 0;
};

}  // namespace k3
