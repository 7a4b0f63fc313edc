#include "engine/answer_reader.h"

#include <utility>

namespace k3 {
namespace {

bool IsEmptyText(const XtmlEvent& event) {
  const bool is_text =
      event.kind == XtmlEvent::Kind::kContent || event.kind == XtmlEvent::Kind::kReasoning;
  return is_text && event.text.empty();
}

void AddContent(std::string text, std::vector<XtmlEvent>& events) {
  if (text.empty()) return;
  events.push_back({.kind = XtmlEvent::Kind::kContent, .text = std::move(text)});
}

}  // namespace

AnswerReader::AnswerReader(const Tokenizer& tokenizer, const XtmlMarkers& markers,
                           const ChatRequest& request, StopMatcher matcher)
    : parser_(tokenizer, markers,
              {.start = request.thinking ? XtmlChannel::kThink : XtmlChannel::kResponse,
               .tools = &request.tools}),
      matcher_(std::move(matcher)) {}

bool AnswerReader::Feed(int32_t id, std::vector<XtmlEvent>& events) {
  if (matcher_.matched().has_value()) return false;
  std::vector<XtmlEvent> parsed;
  parser_.Feed(id, parsed);
  return Take(parsed, events);
}

void AnswerReader::Finish(std::vector<XtmlEvent>& events) {
  if (matcher_.matched().has_value()) return;
  std::vector<XtmlEvent> parsed;
  parser_.Finish(parsed);
  if (Take(parsed, events)) EndContent(events);
}

bool AnswerReader::Take(std::vector<XtmlEvent>& parsed, std::vector<XtmlEvent>& events) {
  for (XtmlEvent& event : parsed) {
    if (event.kind != XtmlEvent::Kind::kContent) {
      // A tool call behind the response: no stop string can reach over it.
      if (event.kind == XtmlEvent::Kind::kToolCallStart) EndContent(events);
      if (!IsEmptyText(event)) events.push_back(std::move(event));
      continue;
    }
    content_bytes_ += static_cast<int64_t>(event.text.size());
    AddContent(content_.Feed(matcher_.Feed(event.text)), events);
    if (matcher_.matched().has_value()) {
      AddContent(content_.Finish(), events);
      return false;
    }
  }
  return true;
}

void AnswerReader::EndContent(std::vector<XtmlEvent>& events) {
  std::string rest = content_.Feed(matcher_.Finish());
  rest += content_.Finish();
  AddContent(std::move(rest), events);
}

}  // namespace k3
