#pragma once
// AnswerReader: the ids of an answer in chat form as the parser's events, with the response cut at
// the first stop string.
//
//   AnswerReader reader(tokenizer, markers, request, std::move(matcher));
//   for (int32_t id : ids) {
//     if (!reader.Feed(id, events)) break;  // a stop string ended the answer
//   }
//   reader.Finish(events);
//
// Stop strings are looked for in the response alone. Events without text are left out. A value that
// borrows the tokenizer and the request's tools, which must outlive it; one thread at a time.
// Nothing fails, whatever the ids are.

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_request.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"
#include "text/xtml_parser.h"

namespace k3 {

class AnswerReader {
 public:
  AnswerReader(const Tokenizer& tokenizer, const XtmlMarkers& markers, const ChatRequest& request,
               StopMatcher matcher);

  /// Takes the next id and appends the events that it completes. False: a stop string ended the
  /// answer, and more ids add nothing.
  bool Feed(int32_t id, std::vector<XtmlEvent>& events);

  /// The end of the answer: what was held back, unless a stop string ended it.
  void Finish(std::vector<XtmlEvent>& events);

  /// How many bytes of response were read, also those that are held back or in a stop string.
  int64_t content_bytes() const { return content_bytes_; }

 private:
  bool Take(std::vector<XtmlEvent>& parsed, std::vector<XtmlEvent>& events);
  void EndContent(std::vector<XtmlEvent>& events);

  XtmlParser parser_;
  StopMatcher matcher_;
  // Behind the matcher: a stop string may be half a character.
  Utf8Stream content_;
  int64_t content_bytes_ = 0;
};

}  // namespace k3
