#pragma once
// ChatSession: a conversation with a model, the session that knows it, and the thread that runs the
// last answer once more (SettleChat) while nobody waits.
//
// Borrows the engine. One thread at a time may call it; every call first stops the thread behind
// it. Failures leave the conversation as it was before the call.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/chat.h"

namespace k3::cli {

class ChatSession {
 public:
  ChatSession(Engine& engine, ChatRequest request, ChatOptions options);
  ~ChatSession() { StopSettling(); }
  ChatSession(const ChatSession&) = delete;
  ChatSession& operator=(const ChatSession&) = delete;

  const ChatRequest& request() const { return request_; }
  const ChatOptions& options() const { return options_; }

  /// Adds a message and answers it. When the run fails, or stops before the first token of an
  /// answer, the message is taken back.
  Result<ChatAnswer> Say(ChatMessage message, ChatSink& sink);
  /// Answers the last message again, with the next seed; for the first time, if it has no answer.
  /// InvalidArgument when there is no message.
  Result<ChatAnswer> Retry(ChatSink& sink);

  /// Takes another conversation, or other options for this one.
  void SetRequest(ChatRequest request);
  /// Begins to run the answer once more behind the caller's back, unless that is done.
  void StartSettling();
  /// Waits until that is done, and shows how far it is, or ends it when the user interrupts.
  void FinishSettling();

  /// Calls of the last answer without a result, in order.
  std::vector<ToolCall> OpenCalls() const;

  /// Tokens that the session holds, and bytes of its state.
  int64_t session_tokens() const { return session_.length(); }
  int64_t session_bytes() { return session_.state().bytes(); }

 private:
  Result<ChatAnswer> Answer(ChatSink& sink);
  void StopSettling();

  Session session_;
  ChatRequest request_;
  ChatOptions options_;
  std::atomic<bool> keep_settling_ = false;
  std::atomic<bool> is_settling_ = false;
  std::atomic<int64_t> settled_tokens_ = 0;
  std::atomic<int64_t> settling_tokens_ = 0;
  std::thread settling_;
};

}  // namespace k3::cli
