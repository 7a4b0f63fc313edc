#pragma once
// Utf8Stream: turns the bytes of generated tokens into text that is valid UTF-8 at every step.
//
//   Utf8Stream stream;
//   for (int32_t id : ids) out += stream.Feed(tokenizer.TokenBytes(id));
//   out += stream.Finish();
//
// The start of a character that may still be completed is held back (at most 3 bytes). A byte
// sequence that is not UTF-8 becomes one U+FFFD for each maximal subpart, as in the WHATWG Encoding
// Standard. However the bytes are split over calls, the joined output is the same. A value; one
// thread at a time.

#include <string>
#include <string_view>

namespace k3 {

class Utf8Stream {
 public:
  /// Takes the next bytes and returns the text that they complete, possibly empty.
  std::string Feed(std::string_view bytes);

  /// Ends the stream: an unfinished character becomes U+FFFD. The stream is then ready for reuse.
  std::string Finish();

  /// Bytes held back now, 0 to 3.
  int pending_bytes() const { return static_cast<int>(pending_.size()); }

 private:
  std::string pending_;
};

}  // namespace k3
