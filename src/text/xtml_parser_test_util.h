#pragma once
// What holds for XtmlParser whatever ids it gets; its unit test and its fuzzer check the same list.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/json.h"
#include "text/utf8.h"
#include "text/xtml_parser.h"

namespace k3 {

/// One parser's surroundings.
struct XtmlSetting {
  const Tokenizer& tokenizer;
  const XtmlMarkers& markers;
  XtmlParserOptions options;
};

inline ParsedAnswer JoinXtmlEvents(std::span<const XtmlEvent> events) {
  ParsedAnswer answer;
  for (const XtmlEvent& event : events) AddXtmlEvent(event, answer);
  return answer;
}

inline std::vector<ParsedToolCall> CompleteCalls(const ParsedAnswer& answer) {
  std::vector<ParsedToolCall> calls;
  std::ranges::copy_if(answer.tool_calls, std::back_inserter(calls), &ParsedToolCall::complete);
  return calls;
}

/// What is wrong with a sequence of events, or nothing. `ids` must not spell a control token.
inline std::string FindFaultInEvents(std::span<const XtmlEvent> events) {
  int32_t started = 0;
  bool is_open = false;  // the last call that started
  for (const XtmlEvent& event : events) {
    const bool is_end = event.kind == XtmlEvent::Kind::kToolCallEnd;
    if (event.text.empty() != is_end) return "an event without text, or an end with text";
    if (FindInvalidUtf8(event.text) >= 0) return "text that is not UTF-8";
    if (event.text.find("<|") != std::string::npos) return "a control token in the text";
    if (event.kind == XtmlEvent::Kind::kToolCallStart) {
      if (event.call != started) return "a call that starts out of order";
      ++started;
      is_open = true;
    } else if (event.kind == XtmlEvent::Kind::kToolCallArguments || is_end) {
      if (!is_open || event.call != started - 1) return "an event of a call that is not open";
      is_open = !is_end;
    }
  }
  return {};
}

/// A prefix of the ids gives the events of the whole up to there, except for what ends: unfinished
/// characters, never a call.
inline std::string FindFaultAtCut(const XtmlSetting& setting, std::span<const int32_t> ids,
                                  std::span<const XtmlEvent> whole, const ParsedAnswer& answer) {
  XtmlParser parser(setting.tokenizer, setting.markers, setting.options);
  std::vector<XtmlEvent> events;
  for (const int32_t id : ids) parser.Feed(id, events);
  if (events.size() > whole.size() || !std::ranges::equal(events, whole.first(events.size()))) {
    return "a prefix of the ids whose events are no prefix";
  }
  const size_t fed = events.size();
  // A copy goes on as the original does.
  XtmlParser copy = parser;
  std::vector<XtmlEvent> copy_events = events;
  parser.Finish(events);
  copy.Finish(copy_events);
  if (copy_events != events) return "a copy that gives other events";
  for (const XtmlEvent& event : std::span(events).subspan(fed)) {
    if (event.text != "\uFFFD") return "the end of the ids adds more than an unfinished character";
  }
  const size_t size = events.size();
  for (const int32_t id : {setting.markers.sep, int32_t{'a'}}) parser.Feed(id, events);
  if (events.size() != size) return "an event after the end";
  const std::vector<ParsedToolCall> calls = CompleteCalls(JoinXtmlEvents(events));
  const std::vector<ParsedToolCall> whole_calls = CompleteCalls(answer);
  if (calls.size() > whole_calls.size() ||
      !std::ranges::equal(calls, std::span(whole_calls).first(calls.size()))) {
    return "a prefix of the ids whose complete calls are no prefix";
  }
  return {};
}

/// What XtmlParser does wrong with `ids`, or nothing. `cuts` are positions in `ids` at which they
/// are cut off as well.
inline std::string FindXtmlParserFault(const XtmlSetting& setting, std::span<const int32_t> ids,
                                       std::span<const size_t> cuts) {
  XtmlParser parser(setting.tokenizer, setting.markers, setting.options);
  std::vector<XtmlEvent> events;
  for (const int32_t id : ids) parser.Feed(id, events);
  parser.Finish(events);
  if (std::string fault = FindFaultInEvents(events); !fault.empty()) return fault;
  const ParsedAnswer answer = JoinXtmlEvents(events);
  if (ParseXtml(setting.tokenizer, setting.markers, setting.options, ids) != answer) {
    return "ParseXtml differs from the events";
  }
  const std::string text = *setting.tokenizer.Decode([&] {
    std::vector<int32_t> ordinary;
    for (const int32_t id : ids) {
      if (id >= 0 && id < setting.tokenizer.ranks_count()) ordinary.push_back(id);
    }
    return ordinary;
  }());
  for (const ParsedToolCall& call : CompleteCalls(answer)) {
    const Result<JsonValue> arguments = ParseJson(call.arguments, "arguments");
    const bool is_block = text.find("json") != std::string::npos;
    if (!arguments.ok() && !is_block) return "arguments that are no JSON: " + call.arguments;
    if (arguments.ok() && arguments->members() == nullptr) return "arguments that are no object";
  }
  for (const size_t cut : cuts) {
    std::string fault = FindFaultAtCut(setting, ids.first(cut), events, answer);
    if (!fault.empty()) return fault;
  }
  // Ids that stand for nothing do nothing.
  const XtmlMarkers& markers = setting.markers;
  std::vector<int32_t> counting;
  for (const int32_t id : ids) {
    const bool is_marker = id == markers.open || id == markers.close || id == markers.sep ||
                           id == markers.end_of_message;
    if (is_marker || (id >= 0 && id < setting.tokenizer.ranks_count())) counting.push_back(id);
  }
  if (ParseXtml(setting.tokenizer, markers, setting.options, counting) != answer) {
    return "an id that should vanish counts";
  }
  return {};
}

}  // namespace k3
