#pragma once
// StopMatcher: ends a stream of bytes before the first of several stop strings in it.
//
//   K3_TRY(StopMatcher matcher, StopMatcher::Create({"\nUser:", "</s>"}));
//   for (int32_t id : ids) {
//     out += utf8.Feed(matcher.Feed(tokenizer.TokenBytes(id)));
//     if (matcher.matched()) break;  // which one
//   }
//   out += utf8.Feed(matcher.Finish());
//   out += utf8.Finish();  // on its own: the operands of + come in any order
//
// The match whose last byte comes first ends the stream, the longest of those that end there. Bytes
// that may still become part of a match are held back; what was before the match is given out, the
// match and everything behind it is not. However the bytes are split over calls, the joined output
// is the same. Stop strings are any bytes, also a part of a character, so the matcher comes before
// Utf8Stream.
//
// A step of Knuth, Morris and Pratt for each stop string and byte: time is linear in the bytes fed,
// times the number of stop strings. Owns 5 bytes a byte of stop string, and no text: what is held
// back is the start of a stop string. A value; one thread at a time.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3 {

inline constexpr int64_t kStopStringsMax = 64;
inline constexpr int64_t kStopStringBytesMax = 4096;

class StopMatcher {
 public:
  /// Up to kStopStringsMax strings of 1 to kStopStringBytesMax bytes; none lets everything through.
  /// InvalidArgument names the one that is empty or too long.
  static Result<StopMatcher> Create(const std::vector<std::string>& stops);

  /// Takes the next bytes and returns those that no match can hold any more; after a match nothing.
  std::string Feed(std::string_view bytes);

  /// Ends the stream: returns the bytes held back, which became no match; after a match nothing.
  std::string Finish();

  /// The stop string that ended the stream, by its place in the list: the first of equal ones.
  std::optional<size_t> matched() const { return matched_; }

  /// Bytes held back now.
  int64_t held_bytes() const { return static_cast<int64_t>(Held().size()); }

 private:
  struct Stop {
    std::string bytes;
    /// borders[n]: the longest proper prefix that is also a suffix of the first n bytes. [size + 1]
    std::vector<int32_t> borders;
    size_t reached = 0;  // the longest prefix that the stream ends in
  };

  bool Step(char byte);
  std::string_view Held() const;

  std::vector<Stop> stops_;
  std::optional<size_t> matched_;
};

}  // namespace k3
