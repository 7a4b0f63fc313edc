#pragma once
// Strict UTF-8: one decoder for validation, splitting and streaming. No surrogates, no overlong
// forms, nothing above U+10FFFF. Pure functions on the caller's bytes, any thread.
// Source: The Unicode Standard, table 3-7 (well-formed sequences) and "maximal subparts" (3.9).

#include <cstdint>
#include <string>
#include <string_view>

namespace k3 {

struct Utf8Step {
  enum class Kind {
    kValid,       // `code_point` was read
    kInvalid,     // `length` bytes are a maximal subpart: they stand for one U+FFFD
    kIncomplete,  // all bytes given are the start of a sequence that more bytes may complete
  };
  Kind kind;
  int32_t length;       // bytes, 1 to 4
  char32_t code_point;  // 0 unless valid
};

/// Reads the first character of `bytes`, which must not be empty.
Utf8Step DecodeUtf8(std::string_view bytes);

/// Reads the first character of text that is known to be valid UTF-8.
inline Utf8Step ReadValidUtf8(const char* bytes) {
  const auto at = [&](int i) { return static_cast<char32_t>(static_cast<uint8_t>(bytes[i])); };
  const char32_t first = at(0);
  if (first < 0x80) return {Utf8Step::Kind::kValid, 1, first};
  const char32_t second = at(1) & 0x3F;
  if (first < 0xE0) return {Utf8Step::Kind::kValid, 2, (first & 0x1F) << 6 | second};
  const char32_t third = at(2) & 0x3F;
  if (first < 0xF0) {
    return {Utf8Step::Kind::kValid, 3, (first & 0x0F) << 12 | second << 6 | third};
  }
  const char32_t fourth = at(3) & 0x3F;
  return {Utf8Step::Kind::kValid, 4, (first & 0x07) << 18 | second << 12 | third << 6 | fourth};
}

/// The byte offset of the first sequence that is not valid UTF-8, or -1. A sequence cut off by the
/// end is not valid.
int64_t FindInvalidUtf8(std::string_view bytes);

/// Appends one code point (not a surrogate) as UTF-8.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace k3
