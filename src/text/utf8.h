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

/// The byte offset of the first sequence that is not valid UTF-8, or -1. A sequence cut off by the
/// end is not valid.
int64_t FindInvalidUtf8(std::string_view bytes);

/// Appends one code point (not a surrogate) as UTF-8.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace k3
