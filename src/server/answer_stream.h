#pragma once
// AnswerStream: the tokens of one choice, as the pieces of its answer while they come.
//
//   ChatAnswerStream stream(tokenizer, markers, chat, std::move(matcher));
//   for (;;) {
//     AnswerDelta delta;
//     const bool goes_on = stream.Feed(token, delta);
//     send(delta);
//     if (!goes_on) break;  // a stop string: finish with FinishReason::kStop
//   }
//   AnswerDelta rest;
//   stream.Finish(rest);
//   send(rest); ... stream.FinishName(reason) ... stream.answer() for an answer in one piece
//
// The deltas joined are answer(), whatever the tokens were. A token's log-probability comes with
// the first delta that holds any of its text: one that only began a character, or whose text may
// still become a stop string, waits, and one whose text is never sent (markup, a stop string) has
// none. Of a chat answer only the response has log-probabilities, not reasoning and calls.
//
// Values that borrow the tokenizer and the chat's tools, which must outlive them; one thread at a
// time. Nothing fails, whatever the ids are. Memory follows the answer.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/answer_reader.h"
#include "engine/generate.h"
#include "text/chat_request.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"
#include "text/xtml_parser.h"

namespace k3::server {

/// A token's bytes and log-probability; bytes need not be whole characters.
struct TokenChance {
  std::string bytes;
  float log_prob = 0.0f;

  bool operator==(const TokenChance&) const = default;
};

/// A token of the answer with its alternatives, most probable first.
struct AnswerToken {
  TokenChance chosen;
  std::vector<TokenChance> top;
  int64_t text_offset = 0;  // characters of the text in front of it; of text completions only

  bool operator==(const AnswerToken&) const = default;
};

struct AnswerDelta {
  std::vector<XtmlEvent> events;
  std::vector<AnswerToken> tokens;  // whose text begins in `events`

  bool empty() const { return events.empty() && tokens.empty(); }
};

class AnswerStream {
 public:
  virtual ~AnswerStream() = default;

  /// Takes the next token, which is no stop id, and appends what it adds. False: a stop string
  /// ended the answer, and more tokens add nothing.
  virtual bool Feed(const SampledToken& token, AnswerDelta& delta) = 0;

  /// Appends what was held back. Call it once, last.
  virtual void Finish(AnswerDelta& delta) = 0;

  /// All that was given out; what the body of an unstreamed response holds.
  const ParsedAnswer& answer() const { return answer_; }
  const std::vector<AnswerToken>& tokens() const { return tokens_; }

  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  /// stop, length or tool_calls; the last when a call is complete and the answer ended by itself.
  std::string_view FinishName(FinishReason reason) const;

 protected:
  explicit AnswerStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// A token that is to be given out once more than `begin` bytes of text were.
  void Hold(const SampledToken& token, int64_t begin, int64_t text_offset);
  /// Adds to the answer what was appended to `delta.events` from number `first` on, and to `delta`
  /// the tokens held for the first `sent` bytes.
  void Give(size_t first, int64_t sent, AnswerDelta& delta);
  TokenChance ChanceOf(int32_t id, float log_prob) const;

  const Tokenizer& tokenizer_;
  int64_t completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;

 private:
  struct HeldToken {
    AnswerToken token;
    int64_t begin = 0;
  };

  ParsedAnswer answer_;
  std::vector<AnswerToken> tokens_;
  std::vector<HeldToken> held_;
};

/// An answer in chat form.
class ChatAnswerStream : public AnswerStream {
 public:
  ChatAnswerStream(const Tokenizer& tokenizer, const XtmlMarkers& markers, const ChatRequest& chat,
                   StopMatcher matcher);

  bool Feed(const SampledToken& token, AnswerDelta& delta) override;
  void Finish(AnswerDelta& delta) override;

 private:
  void Sort(std::span<const XtmlEvent> events, int64_t content_before, bool is_marker);

  AnswerReader reader_;
  XtmlMarkers markers_;
  /// Ordinary tokens of which it is not known yet what they belong to.
  std::vector<SampledToken> waiting_;
  int64_t sent_bytes_ = 0;
};

/// Text that goes on from a prompt, as events of content. Control tokens that IsSpecial are left
/// out.
class TextAnswerStream : public AnswerStream {
 public:
  TextAnswerStream(const Tokenizer& tokenizer, StopMatcher matcher);

  bool Feed(const SampledToken& token, AnswerDelta& delta) override;
  void Finish(AnswerDelta& delta) override;

 private:
  void Emit(std::string text, AnswerDelta& delta);

  StopMatcher matcher_;
  Utf8Stream text_;
  Utf8Stream characters_;  // of all tokens, for counting
  int64_t characters_count_ = 0;
  int64_t read_bytes_ = 0;
  int64_t released_bytes_ = 0;  // by the matcher
};

}  // namespace k3::server
