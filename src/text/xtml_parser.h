#pragma once
// XtmlParser: the ids a model generates in K3's chat form, as reasoning, content and tool calls
// while they come.
//
//   XtmlParser parser(tokenizer, markers, {.start = XtmlChannel::kThink});
//   std::vector<XtmlEvent> events;
//   for (int32_t id : ids) parser.Feed(id, events);
//   parser.Finish(events);
//
// It works on ids, so text that spells a marker is text. No id makes it fail; no marker and no
// other control token reaches an event; text is valid UTF-8, unfinished characters are held back.
// AnswerBuilder puts the events together; how the ids were split over calls of Feed does not
// matter. Tool arguments come as JSON text, `{"city": "Oslo", "days": 2}`, typed as the markup
// says.
//
// What is forgiven, and how: see the tables above the functions of xtml_parser.cc. A value that
// borrows the tokenizer and the tools, which must outlive it; one thread at a time.
// Source: ../docs/formats.md, "XTML"; technical report, appendix F.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "config/json.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"
#include "text/xtml_markers.h"

namespace k3 {

/// The channel in which an answer starts: the one that the prompt has opened.
enum class XtmlChannel { kThink, kResponse };

struct XtmlEvent {
  enum class Kind {
    kReasoning,          // text: the next piece of the think channel
    kContent,            // text: the next piece of the response
    kToolCallStart,      // text: the tool's name
    kToolCallArguments,  // text: the next piece of the arguments' JSON
    kToolCallEnd,        // the call was closed; one without this event is not to be run
  };
  Kind kind;
  int32_t call = 0;  // which tool call, from 0
  std::string text;

  bool operator==(const XtmlEvent&) const = default;
};

struct ParsedToolCall {
  std::string name;
  std::string arguments;  // JSON text, an object, unless the model wrote a broken json block
  bool complete = false;

  bool operator==(const ParsedToolCall&) const = default;
};

struct ParsedAnswer {
  std::string reasoning;
  std::string content;
  std::vector<ParsedToolCall> tool_calls;  // in the order in which they started

  bool operator==(const ParsedAnswer&) const = default;
};

/// Adds one event to `answer`. Events must come in the parser's order.
void AddXtmlEvent(const XtmlEvent& event, ParsedAnswer& answer);

struct XtmlParserOptions {
  XtmlChannel start = XtmlChannel::kThink;
  /// Tools as in a request ([{"type": "function", "function": {"name", "parameters"}}, ...]): where
  /// an argument carries no type, its schema tells. May be null.
  const JsonValue* tools = nullptr;
};

}  // namespace k3
