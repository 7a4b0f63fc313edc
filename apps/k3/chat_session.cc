#include "chat_session.h"

#include <algorithm>

#include "terminal.h"

namespace k3::cli {

ChatSession::ChatSession(Engine& engine, ChatRequest request, ChatOptions options)
    : session_(engine, Session::Boundaries::kKept),
      request_(std::move(request)),
      options_(std::move(options)) {}

Result<ChatAnswer> ChatSession::Answer(ChatSink& sink) {
  Result<ChatAnswer> answer = AnswerChat(session_, request_, options_, sink);
  // What a failed pass leaves behind cannot be gone on with.
  if (!answer.ok()) session_.Reset();
  return answer;
}

Result<ChatAnswer> ChatSession::Say(ChatMessage message, ChatSink& sink) {
  FinishSettling();
  request_.messages.push_back(std::move(message));
  Result<ChatAnswer> answer = Answer(sink);
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
  if (request_.messages.empty() || request_.messages.back().role != ChatRole::kAssistant) {
    return InvalidArgument("expected an answer to try again, found none");
  }
  ChatMessage old = std::move(request_.messages.back());
  request_.messages.pop_back();
  ++options_.sampling.seed;
  Result<ChatAnswer> answer = Answer(sink);
  if (!answer.ok() || answer->generated_tokens == 0) {
    request_.messages.push_back(std::move(old));
    return answer;
  }
  AddAnswer(answer->parsed, request_.messages);
  return answer;
}

void ChatSession::SetRequest(ChatRequest request) {
  StopSettling();
  request_ = std::move(request);
}

void ChatSession::SetSystem(std::string text) {
  StopSettling();
  std::vector<ChatMessage>& messages = request_.messages;
  const bool has_one = !messages.empty() && messages.front().role == ChatRole::kSystem &&
                       !messages.front().tools.has_value();
  if (has_one) messages.erase(messages.begin());
  if (text.empty()) return;
  messages.insert(messages.begin(),
                  ChatMessage{.role = ChatRole::kSystem, .content = {std::move(text)}});
}

void ChatSession::StartSettling() {
  StopSettling();
  if (request_.messages.empty() || request_.messages.back().role != ChatRole::kAssistant) return;
  keep_settling_ = true;
  settling_ = std::thread([this] {
    const Result<bool> done = SettleChat(
        session_, request_, [this] { return keep_settling_.load() && !WasInterrupted(); });
    // The next answer will meet the same failure and report it.
    if (!done.ok()) session_.Reset();
  });
}

void ChatSession::FinishSettling() {
  if (settling_.joinable()) settling_.join();
}

void ChatSession::StopSettling() {
  keep_settling_ = false;
  FinishSettling();
}

std::vector<ToolCall> ChatSession::OpenCalls() const {
  std::vector<ToolCall> calls;
  for (const ChatMessage& message : request_.messages) {
    if (message.role == ChatRole::kAssistant) calls = message.tool_calls;
    if (message.role != ChatRole::kTool || !message.call_id.has_value()) continue;
    std::erase_if(calls, [&](const ToolCall& call) { return call.id == message.call_id; });
  }
  return calls;
}

}  // namespace k3::cli
