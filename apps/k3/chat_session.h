#pragma once
// ChatSession: a conversation, and the thread that prepares its next turn (ChatBackend::Settle)
// while nobody waits. ChatBackend: who answers; a model in this process (LocalChat) or a server
// (remote_chat.h).
//
// A session borrows its backend, a LocalChat its engine. One thread at a time may call a session;
// every call first stops the thread behind it, so that a backend is never called by two. Failures
// leave the conversation as it was before the call.

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/chat.h"

namespace k3::cli {

class ChatBackend {
 public:
  using KeepGoing = std::function<bool(int64_t done, int64_t total)>;

  virtual ~ChatBackend() = default;
  /// As AnswerChat. What a failure leaves behind must not reach the next answer.
  virtual Result<ChatAnswer> Answer(const ChatRequest& request, const ChatOptions& options,
                                    ChatSink& sink) = 0;
  /// As SettleChat, where that is left to the caller.
  virtual void Settle(const ChatRequest& /*request*/, const KeepGoing& /*keep_going*/) {}
  /// What is kept of the conversation, and where: for the user.
  virtual std::string DescribeMemory() = 0;
};

class LocalChat : public ChatBackend {
 public:
  explicit LocalChat(Engine& engine) : session_(engine, Session::Boundaries::kKept) {}

  Result<ChatAnswer> Answer(const ChatRequest& request, const ChatOptions& options,
                            ChatSink& sink) override;
  void Settle(const ChatRequest& request, const KeepGoing& keep_going) override;
  std::string DescribeMemory() override;

 private:
  Session session_;
};

class ChatSession {
 public:
  ChatSession(ChatBackend& backend, ChatRequest request, ChatOptions options);
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

  std::string DescribeMemory() { return backend_.DescribeMemory(); }

 private:
  void StopSettling();

  ChatBackend& backend_;
  ChatRequest request_;
  ChatOptions options_;
  std::atomic<bool> keep_settling_ = false;
  std::atomic<bool> is_settling_ = false;
  std::atomic<int64_t> settled_tokens_ = 0;
  std::atomic<int64_t> settling_tokens_ = 0;
  std::thread settling_;
};

}  // namespace k3::cli
