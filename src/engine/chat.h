#pragma once
// Chat: answers to conversations on a session that is kept between turns.
//
//   Session session(engine, Session::Boundaries::kKept);
//   K3_TRY(const ChatAnswer answer, AnswerChat(session, request, options, sink));
//   AddAnswer(answer.parsed, request.messages);
//   K3_TRY(const bool done, SettleChat(session, request, keep_going));  // any time before the next
//
// The prompt is rendered and encoded whole; what the session already knows of it is not run again
// (Session::Reuse). So a turn costs its new tokens, and its answer has the bits of a cold run of
// the same conversation: generated tokens are run once more, in prefill form and as the history is
// rendered, by SettleChat or else by the next AnswerChat.
//
// Stop strings are looked for in the response alone, not in the reasoning. The sink belongs to the
// caller and is called from the calling thread. Failures: those of ParseChatRequest's values
// (RenderXtml, EncodeXtml) and of Generate; a prompt beyond the context is InvalidArgument before
// anything runs.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "text/chat_request.h"
#include "text/xtml_parser.h"

namespace k3 {

struct ChatOptions {
  SamplingOptions sampling;
  int64_t max_tokens = kDefaultGeneratedTokens;
  std::vector<std::string> stop;  // ends the response, and is not part of it
  std::vector<int64_t> stop_ids;  // beside <|end_of_msg|>
  int64_t prefill_chunk = kDefaultPrefillChunk;
};

/// Receives an answer as it comes. Returning false cancels it; what was generated is kept.
class ChatSink {
 public:
  virtual ~ChatSink() = default;
  /// `done` of `total` tokens that have to be run before the first generated one.
  virtual bool OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) { return true; }
  virtual bool OnEvent(const XtmlEvent& event) = 0;
  /// Every generated token, before its events, of which it may have none.
  virtual bool OnToken(const SampledToken& /*token*/) { return true; }
};

struct ChatAnswer {
  ParsedAnswer parsed;
  FinishReason finish_reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;     // of the whole conversation
  int64_t cached_tokens = 0;     // of them, those that were not run again
  int64_t generated_tokens = 0;  // without the stop id
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t decode_passes = 0;

  /// OpenAI's name: stop, length, tool_calls, or cancelled.
  std::string_view FinishName() const;
};

Result<ChatAnswer> AnswerChat(Session& session, const ChatRequest& request,
                              const ChatOptions& options, ChatSink& sink);

/// Appends the answer to a conversation. Calls get the ids call_1, call_2, ...; unfinished ones are
/// left out, as are those whose arguments could not be shown again.
void AddAnswer(const ParsedAnswer& answer, std::vector<ChatMessage>& messages);

/// Runs a conversation that ends with an answer in prefill form, so that the next turn need not.
/// `keep_going` is asked before each chunk, when `done` of `total` tokens have been run; false ends
/// it with false, and what was run is kept.
Result<bool> SettleChat(Session& session, const ChatRequest& request,
                        const std::function<bool(int64_t done, int64_t total)>& keep_going);

/// The ids that every later turn of a conversation begins with: those of its messages, without what
/// is said about this turn alone and without an open answer.
Result<std::vector<int32_t>> EncodeHistory(const Engine& engine, const ChatRequest& request);

/// The ids of a request's prompt.
Result<std::vector<int32_t>> EncodeChat(const Engine& engine, const ChatRequest& request);

}  // namespace k3
