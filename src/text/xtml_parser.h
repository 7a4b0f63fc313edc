#pragma once
// XtmlParser: the ids a model generates in K3's chat form, as reasoning, content and tool calls
// while they come.
//
//   XtmlParser parser(tokenizer, markers, {.start = XtmlChannel::kThink});
//   std::vector<XtmlEvent> events;
//   for (int32_t id : ids) parser.Feed(id, events);
//   parser.Finish(events);
//
// It works on ids, so text that spells a marker is text. No id makes it fail: ids outside the
// vocabulary and control tokens other than the markers are as good as absent, and no control token
// reaches an event. Text is valid UTF-8; an unfinished character is held back until it is complete
// or a marker cuts it off. AddXtmlEvent puts the events together. Tool arguments come as JSON text,
// `{"city": "Oslo", "days": 2}`, typed as the markup says. A call without kToolCallEnd was cut off
// or cannot be understood: more ids never take an end back, and the end of the ids makes none.
//
// What is forgiven, and how: see the table in xtml_parser.cc. Memory and time follow the input,
// whatever it is. A value that borrows the tokenizer and the tools, which must outlive it; one
// thread at a time.
// Source: technical report, appendix F (messages, channels, typed arguments).

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/json.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"
#include "text/xtml_arguments.h"
#include "text/xtml_markers.h"

namespace k3 {

struct XtmlTag;

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
  /// an argument carries no type, its schema tells. May be null; anything else in it is ignored.
  const JsonValue* tools = nullptr;
};

class XtmlParser {
 public:
  XtmlParser(const Tokenizer& tokenizer, const XtmlMarkers& markers,
             const XtmlParserOptions& options);

  /// Takes the next id and appends the events that it completes.
  void Feed(int32_t id, std::vector<XtmlEvent>& events);

  /// Ends the ids. Call it once, last; what is fed later is ignored.
  void Finish(std::vector<XtmlEvent>& events);

  /// <|end_of_msg|> was seen: the answer is over and what follows is ignored.
  bool ended() const { return ended_; }

  /// The next ordinary id will be content.
  bool in_response() const { return place_ == Place::kResponse && tag_kind_ == TagKind::kNone; }

 private:
  enum class Place {
    kThink,
    kResponse,
    kBetween,  // channels or calls
    kCall,
    kValue,  // an argument or a json block
    kOver,   // the message
  };
  enum class TagKind { kNone, kOpen, kClose };
  using Events = std::vector<XtmlEvent>;

  void FeedMarker(int32_t id, Events& events);
  void FeedTag(std::string_view bytes, Events& events);
  void EndTag(bool has_sep, Events& events);
  bool Open(const XtmlTag& tag, Events& events);
  bool Close(const XtmlTag& tag, Events& events);
  void CloseInnermost(Events& events);
  void OpenCall(const XtmlTag& tag, Events& events);
  void OpenValue(const XtmlTag& tag, Events& events);
  void CloseValue(Events& events);
  void CloseCall(Events& events);
  void LeaveThink();
  void AddText(std::string_view bytes, Events& events);
  void EndText(Events& events);
  void AddValidText(std::string text, Events& events);
  void AddCallEvent(XtmlEvent::Kind kind, std::string text, Events& events);
  bool IsStringArgument(const XtmlTag& tag, const std::string& key) const;

  const Tokenizer* tokenizer_;
  XtmlMarkers markers_;
  /// The arguments that a tool's schema calls strings; views into the options' tools.
  std::map<std::string_view, std::set<std::string_view>> string_arguments_;

  Place place_;
  bool started_ = false;         // an id that counts was fed
  bool ended_ = false;           // <|end_of_msg|> was fed
  bool response_waits_ = false;  // in kThink: it was opened inside the response
  Utf8Stream utf8_;              // of the text since the last marker
  TagKind tag_kind_ = TagKind::kNone;
  bool tag_is_first_ = false;  // its marker is the first id that counts
  std::string tag_;            // the bytes since the marker that began it
  std::string call_name_;      // in kCall and kValue; a call without name gives no events
  int32_t calls_count_ = 0;    // started so far
  XtmlArguments arguments_;    // in kCall and kValue
};

/// The answer that whole `ids` make.
ParsedAnswer ParseXtml(const Tokenizer& tokenizer, const XtmlMarkers& markers,
                       const XtmlParserOptions& options, std::span<const int32_t> ids);

/// The same with a parser of the caller's, which tells more of the answer afterwards.
ParsedAnswer ReadAnswer(XtmlParser& parser, std::span<const int32_t> ids);

}  // namespace k3
