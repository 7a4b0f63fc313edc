#include "chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "terminal/terminal.h"

namespace k3::cli {

Result<ChatAnswer> LocalChat::Answer(const ChatRequest& request, const ChatOptions& options,
                                     ChatSink& sink) {
  Result<ChatAnswer> answer = AnswerChat(session_, request, options, sink);
  // What a failed pass leaves behind cannot be gone on with.
  if (!answer.ok()) session_.Reset();
  return answer;
}

void LocalChat::Settle(const ChatRequest& request, const KeepGoing& keep_going) {
  // The next answer will meet the same failure and report it.
  if (!SettleChat(session_, request, keep_going).ok()) session_.Reset();
}

std::string LocalChat::DescribeMemory() {
  return fmt::format("{} tokens, {}", session_.length(), FormatBytes(session_.state().bytes()));
}

ChatSession::ChatSession(ChatBackend& backend, ChatRequest request, ChatOptions options)
    : backend_(backend), request_(std::move(request)), options_(std::move(options)) {}

Result<ChatAnswer> ChatSession::Say(ChatMessage message, ChatSink& sink) {
  FinishSettling();
  request_.messages.push_back(std::move(message));
  Result<ChatAnswer> answer = backend_.Answer(request_, options_, sink);
  if (!answer.ok() || answer->generated_tokens == 0) {
    const bool is_kept = answer.ok() && answer->finish_reason != FinishReason::kCancelled;
    if (!is_kept) {
      request_.messages.pop_back();
      return answer;
    }
  }
  AddAnswer(answer->parsed, request_.messages);
  return answer;
}

Result<ChatAnswer> ChatSession::Retry(ChatSink& sink) {
  StopSettling();
  std::vector<ChatMessage>& messages = request_.messages;
  const auto is_system = [](const ChatMessage& message) {
    return message.role == ChatRole::kSystem;
  };
  if (std::ranges::all_of(messages, is_system)) {
    return InvalidArgument("expected a message to answer, found none");
  }
  std::optional<ChatMessage> old;
  if (messages.back().role == ChatRole::kAssistant) {
    old = std::move(messages.back());
    messages.pop_back();
    ++options_.sampling.seed;
  }
  Result<ChatAnswer> answer = backend_.Answer(request_, options_, sink);
  if (!answer.ok() || answer->generated_tokens == 0) {
    if (old.has_value()) messages.push_back(std::move(*old));
    return answer;
  }
  AddAnswer(answer->parsed, messages);
  return answer;
}

void ChatSession::SetRequest(ChatRequest request) {
  StopSettling();
  request_ = std::move(request);
}

void ChatSession::StartSettling() {
  StopSettling();
  if (request_.messages.empty() || request_.messages.back().role != ChatRole::kAssistant) return;
  keep_settling_ = true;
  is_settling_ = true;
  settling_ = std::thread([this] {
    const auto keep_going = [this](int64_t done, int64_t total) {
      settled_tokens_ = done;
      settling_tokens_ = total;
      return keep_settling_.load() && !WasInterrupted();
    };
    backend_.Settle(request_, keep_going);
    is_settling_ = false;
  });
}

void ChatSession::FinishSettling() {
  constexpr std::chrono::milliseconds kPoll(5);
  ProgressBar bar("reading the last answer once more");
  while (is_settling_) {
    bar.Update(settled_tokens_, settling_tokens_);
    std::this_thread::sleep_for(kPoll);
  }
  bar.Clear();
  if (settling_.joinable()) settling_.join();
}

void ChatSession::StopSettling() {
  keep_settling_ = false;
  if (settling_.joinable()) settling_.join();
}

std::vector<ToolCall> ChatSession::OpenCalls() const {
  std::vector<ToolCall> calls;
  for (const ChatMessage& message : request_.messages) {
    if (message.role == ChatRole::kAssistant) calls = message.tool_calls;
    if (message.role != ChatRole::kTool || calls.empty()) continue;
    // A result without a call of its own answers the first that is open.
    auto answered = std::ranges::find(calls, message.call_id, &ToolCall::id);
    if (!message.call_id.has_value() || answered == calls.end()) answered = calls.begin();
    calls.erase(answered);
  }
  return calls;
}

}  // namespace k3::cli
