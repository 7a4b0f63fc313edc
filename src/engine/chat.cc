#include "engine/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/stop_matcher.h"
#include "text/utf8_stream.h"
#include "text/xtml_renderer.h"

namespace k3 {
namespace {

/// Passes the parser's events on, with the response cut at the first stop string.
class AnswerReader : public TokenSink {
 public:
  AnswerReader(const Tokenizer& tokenizer, const XtmlMarkers& markers, const ChatRequest& request,
               StopMatcher matcher, ChatSink& sink)
      : parser_(tokenizer, markers,
                {.start = request.thinking ? XtmlChannel::kThink : XtmlChannel::kResponse,
                 .tools = &request.tools}),
        matcher_(std::move(matcher)),
        sink_(sink) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override {
    return sink_.OnPrefillProgress(done, total);
  }

  SinkVerdict OnToken(const SampledToken& token) override {
    if (!sink_.OnToken(token)) return SinkVerdict::kCancel;
    std::vector<XtmlEvent> events;
    parser_.Feed(token.id, events);
    return Take(events);
  }

  /// The end of the answer: what was held back, unless a stop string ended it. The sink can no
  /// longer cancel.
  void Finish() {
    if (matcher_.matched().has_value()) return;
    std::vector<XtmlEvent> events;
    parser_.Finish(events);
    Take(events);
    EndContent();
  }

  ParsedAnswer TakeAnswer() { return std::move(answer_); }

 private:
  SinkVerdict Take(std::vector<XtmlEvent>& events) {
    for (XtmlEvent& event : events) {
      if (event.kind != XtmlEvent::Kind::kContent) {
        // A tool call behind the response: no stop string can reach over it.
        if (event.kind == XtmlEvent::Kind::kToolCallStart) EndContent();
        if (!Emit(event)) return SinkVerdict::kCancel;
        continue;
      }
      event.text = content_.Feed(matcher_.Feed(event.text));
      if (!Emit(event)) return SinkVerdict::kCancel;
      if (matcher_.matched().has_value()) {
        EmitContent(content_.Finish());
        return SinkVerdict::kStop;
      }
    }
    return SinkVerdict::kContinue;
  }

  void EndContent() {
    std::string rest = content_.Feed(matcher_.Finish());
    rest += content_.Finish();
    EmitContent(std::move(rest));
  }

  void EmitContent(std::string text) {
    Emit({.kind = XtmlEvent::Kind::kContent, .text = std::move(text)});
  }

  bool Emit(const XtmlEvent& event) {
    const bool is_text =
        event.kind == XtmlEvent::Kind::kContent || event.kind == XtmlEvent::Kind::kReasoning;
    if (is_text && event.text.empty()) return true;
    AddXtmlEvent(event, answer_);
    return sink_.OnEvent(event);
  }

  XtmlParser parser_;
  StopMatcher matcher_;
  // Behind the matcher: a stop string may be half a character.
  Utf8Stream content_;
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
  AnswerReader reader(engine.tokenizer(), markers, request, std::move(matcher), sink);
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
  // What every later turn begins with: no options of this turn, and no open answer.
  ChatRequest history = request;
  history.tool_choice = ToolChoice::kAuto;
  history.response_format = ResponseFormat::kText;
  history.add_generation_prompt = false;
  K3_TRY(const std::vector<int32_t> ids, EncodeChat(session.engine(), history));
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
