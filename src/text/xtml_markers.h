#pragma once
// XtmlMarkers: the four control tokens that K3's chat markup, XTML, is made of. Everything else in
// it (tag names, attributes, bodies) is ordinary text.
//
//   open(t, k=v...) := <|open|> t (space k = " v ")* <|sep|>      close(t) := <|close|> t <|sep|>
//   message         := open(message role=R ...) body close(message) <|end_of_msg|>
//
// Source: technical report, appendix F (messages, channels, typed arguments).

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace k3 {

class Tokenizer;

inline constexpr std::string_view kXtmlOpen = "<|open|>";
inline constexpr std::string_view kXtmlClose = "<|close|>";
inline constexpr std::string_view kXtmlSep = "<|sep|>";
inline constexpr std::string_view kXtmlEndOfMessage = "<|end_of_msg|>";

/// Their ids in one tokenizer.
struct XtmlMarkers {
  int32_t open = -1;
  int32_t close = -1;
  int32_t sep = -1;
  int32_t end_of_message = -1;

  /// NotFound, with the marker's name, for a tokenizer that cannot speak XTML.
  static Result<XtmlMarkers> Find(const Tokenizer& tokenizer);
};

}  // namespace k3
