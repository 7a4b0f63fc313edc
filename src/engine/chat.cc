#include "engine/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/answer_reader.h"
#include "text/stop_matcher.h"
#include "text/xtml_renderer.h"

namespace k3 {
namespace {

/// Passes an answer's events on to a chat's sink.
class AnswerSink : public TokenSink {
 public:
  AnswerSink(AnswerReader reader, ChatSink& sink) : reader_(std::move(reader)), sink_(sink) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override {
    return sink_.OnPrefillProgress(done, total);
  }

  SinkVerdict OnToken(const SampledToken& token) override {
    if (!sink_.OnToken(token)) return SinkVerdict::kCancel;
    std::vector<XtmlEvent> events;
    const bool goes_on = reader_.Feed(token.id, events);
    if (!Emit(events)) return SinkVerdict::kCancel;
    return goes_on ? SinkVerdict::kContinue : SinkVerdict::kStop;
  }

  /// What was held back. The sink can no longer cancel.
  void Finish() {
    std::vector<XtmlEvent> events;
    reader_.Finish(events);
    Emit(events);
  }

  ParsedAnswer TakeAnswer() { return std::move(answer_); }

 private:
  bool Emit(const std::vector<XtmlEvent>& events) {
    bool is_wanted = true;
    for (const XtmlEvent& event : events) {
      AddXtmlEvent(event, answer_);
      is_wanted = is_wanted && sink_.OnEvent(event);
    }
    return is_wanted;
  }

  AnswerReader reader_;
  ChatSink& sink_;
  ParsedAnswer answer_;
};

}  // namespace

std::string_view ChatAnswer::FinishName() const {
  const auto is_complete = [](const ParsedToolCall& call) { return call.complete; };
  switch (finish_reason) {
    case FinishReason::kStop:
      return std::ranges::any_of(parsed.tool_calls, is_complete) ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Result<std::vector<int32_t>> EncodeChat(const Engine& engine, const ChatRequest& request) {
  K3_TRY(const std::vector<XtmlSegment> segments, RenderXtml(request));
  return EncodeXtml(engine.tokenizer(), segments);
}

Result<std::vector<int32_t>> EncodeHistory(const Engine& engine, const ChatRequest& request) {
  ChatRequest history = request;
  history.tool_choice = ToolChoice::kAuto;
  history.response_format = ResponseFormat::kText;
  history.add_generation_prompt = false;
  return EncodeChat(engine, history);
}

Result<ChatAnswer> AnswerChat(Session& session, const ChatRequest& request,
                              const ChatOptions& options, ChatSink& sink) {
  const Engine& engine = session.engine();
  K3_TRY(const XtmlMarkers markers, XtmlMarkers::Find(engine.tokenizer()));
  ChatRequest open = request;
  // Whatever a file says: without an open answer a model would go on with the last message.
  open.add_generation_prompt = true;
  K3_TRY(const std::vector<int32_t> prompt, EncodeChat(engine, open));
  if (std::ssize(prompt) >= engine.config().context_max) {
    return InvalidArgument(fmt::format(
        "the conversation has {} tokens, which leaves no room in the model's context of "
        "{}; shorten it",
        prompt.size(), engine.config().context_max));
  }
  K3_TRY(StopMatcher matcher, StopMatcher::Create(options.stop));
  GenerateOptions generate{.sampling = options.sampling,
                           .max_tokens = options.max_tokens,
                           .stop_ids = options.stop_ids,
                           .prefill_chunk = options.prefill_chunk};
  generate.stop_ids.push_back(markers.end_of_message);
  ChatAnswer answer;
  answer.prompt_tokens = std::ssize(prompt);
  answer.cached_tokens = session.Reuse(prompt);
  AnswerSink reader({engine.tokenizer(), markers, request, std::move(matcher)}, sink);
  K3_TRY(const GenerateResult result,
         Generate(session, std::span(prompt).subspan(static_cast<size_t>(answer.cached_tokens)),
                  generate, reader));
  reader.Finish();
  answer.parsed = reader.TakeAnswer();
  answer.finish_reason = result.finish_reason;
  answer.generated_tokens = result.generated_tokens;
  answer.prefill_seconds = result.prefill_seconds;
  answer.decode_seconds = result.decode_seconds;
  answer.decode_passes = result.decode_passes;
  return answer;
}

void AddAnswer(const ParsedAnswer& answer, std::vector<ChatMessage>& messages) {
  ChatMessage message{.role = ChatRole::kAssistant, .reasoning = answer.reasoning};
  if (!answer.content.empty()) message.content.push_back(answer.content);
  for (const ParsedToolCall& parsed : answer.tool_calls) {
    ToolCall call{.id = fmt::format("call_{}", message.tool_calls.size() + 1), .name = parsed.name};
    if (!parsed.complete || !SetToolArguments(parsed.arguments, call).ok()) continue;
    message.tool_calls.push_back(std::move(call));
  }
  messages.push_back(std::move(message));
}

Result<bool> SettleChat(Session& session, const ChatRequest& request,
                        const std::function<bool(int64_t done, int64_t total)>& keep_going) {
  K3_TRY(const std::vector<int32_t> ids, EncodeHistory(session.engine(), request));
  // A conversation that fills the context cannot go on: its next turn says so.
  if (std::ssize(ids) > session.engine().config().context_max) return true;
  if (session.Holds(ids)) return true;
  const size_t step = static_cast<size_t>(kDefaultPrefillChunk);
  const size_t kept = static_cast<size_t>(session.Reuse(ids));
  for (size_t at = kept; at < ids.size(); at += step) {
    if (!keep_going(static_cast<int64_t>(at - kept), static_cast<int64_t>(ids.size() - kept))) {
      return false;
    }
    const size_t count = std::min(step, ids.size() - at);
    K3_RETURN_IF_ERROR(session.Prefill(std::span(ids).subspan(at, count), {}));
  }
  session.MarkBoundary();
  return true;
}

}  // namespace k3
