#include "text/xtml_parser.h"

#include <utility>

#include "base/check.h"
#include "text/xtml_tag.h"

namespace k3 {
namespace {

// A tag that is longer is none: nothing that a marker begins may grow for ever.
constexpr size_t kTagBytesMax = 64 << 10;

/// The arguments that each tool's schema calls strings; the first tool of a name counts.
std::map<std::string_view, std::set<std::string_view>> FindStringArguments(const JsonValue* tools) {
  std::map<std::string_view, std::set<std::string_view>> found;
  if (tools == nullptr || tools->items() == nullptr) return found;
  for (const JsonValue& tool : *tools->items()) {
    const JsonValue* function = tool.Find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
    if (name == nullptr || name->string() == nullptr) continue;
    const auto [entry, is_new] = found.try_emplace(*name->string());
    const JsonValue* parameters = function->Find("parameters");
    const JsonValue* properties = parameters == nullptr ? nullptr : parameters->Find("properties");
    if (!is_new || properties == nullptr || properties->members() == nullptr) continue;
    for (const auto& [key, schema] : *properties->members()) {
      const JsonValue* type = schema.Find("type");
      const std::string* type_name = type == nullptr ? nullptr : type->string();
      if (type_name != nullptr && *type_name == "string") entry->second.insert(key);
    }
  }
  return found;
}

}  // namespace

void AddXtmlEvent(const XtmlEvent& event, ParsedAnswer& answer) {
  if (event.kind == XtmlEvent::Kind::kReasoning) {
    answer.reasoning += event.text;
    return;
  }
  if (event.kind == XtmlEvent::Kind::kContent) {
    answer.content += event.text;
    return;
  }
  const auto call = static_cast<size_t>(event.call);
  if (event.kind == XtmlEvent::Kind::kToolCallStart) {
    K3_CHECK(call == answer.tool_calls.size(), "calls start in order");
    answer.tool_calls.push_back({.name = event.text});
    return;
  }
  K3_CHECK(call < answer.tool_calls.size(), "a call starts before it goes on");
  if (event.kind == XtmlEvent::Kind::kToolCallArguments) {
    answer.tool_calls[call].arguments += event.text;
  } else {
    answer.tool_calls[call].complete = true;
  }
}

ParsedAnswer ParseXtml(const Tokenizer& tokenizer, const XtmlMarkers& markers,
                       const XtmlParserOptions& options, std::span<const int32_t> ids) {
  XtmlParser parser(tokenizer, markers, options);
  return ReadAnswer(parser, ids);
}

ParsedAnswer ReadAnswer(XtmlParser& parser, std::span<const int32_t> ids) {
  ParsedAnswer answer;
  std::vector<XtmlEvent> events;
  const auto take_events = [&] {
    for (const XtmlEvent& event : events) AddXtmlEvent(event, answer);
    events.clear();
  };
  for (const int32_t id : ids) {
    parser.Feed(id, events);
    take_events();
  }
  parser.Finish(events);
  take_events();
  return answer;
}

XtmlParser::XtmlParser(const Tokenizer& tokenizer, const XtmlMarkers& markers,
                       const XtmlParserOptions& options)
    : tokenizer_(&tokenizer),
      markers_(markers),
      string_arguments_(FindStringArguments(options.tools)),
      place_(options.start == XtmlChannel::kThink ? Place::kThink : Place::kResponse) {}

void XtmlParser::Feed(int32_t id, Events& events) {
  if (id < 0 || id >= tokenizer_->vocab_size()) return;
  if (id >= tokenizer_->ranks_count()) {
    FeedMarker(id, events);
    return;
  }
  started_ = true;
  if (tag_kind_ == TagKind::kNone) {
    AddText(tokenizer_->TokenBytes(id), events);
  } else {
    FeedTag(tokenizer_->TokenBytes(id), events);
  }
}

void XtmlParser::Finish(Events& events) {
  EndText(events);
  // A tag that the end cut off has no effect: a call must not become complete by being cut.
  tag_kind_ = TagKind::kNone;
  place_ = Place::kOver;
}

/// Takes a control token; all but the four markers vanish.
void XtmlParser::FeedMarker(int32_t id, Events& events) {
  const bool opens = id == markers_.open;
  const bool ends = id == markers_.end_of_message;
  if (!opens && !ends && id != markers_.close && id != markers_.sep) return;
  const bool is_first = !std::exchange(started_, true);
  EndText(events);
  if (tag_kind_ != TagKind::kNone) EndTag(id == markers_.sep, events);
  if (ends) {
    place_ = Place::kOver;
    ended_ = true;
  }
  if (place_ == Place::kOver || id == markers_.sep) return;
  tag_kind_ = opens ? TagKind::kOpen : TagKind::kClose;
  tag_is_first_ = is_first;
  tag_.clear();
}

/// Takes more of a tag's inside. What cannot become a known tag is text at once: a marker that the
/// model wrote by mistake must not hold back the answer.
void XtmlParser::FeedTag(std::string_view bytes, Events& events) {
  tag_ += bytes;
  const bool is_known = StartsKnownXtmlTag(tag_);
  if (is_known && tag_.size() <= kTagBytesMax) return;
  // Without this tag it is not known what the call was to be.
  if (is_known) arguments_.Break();
  tag_kind_ = TagKind::kNone;
  AddText(tag_, events);
}

/// Gives a tag its effect, at its <|sep|> or at the marker that came instead.
void XtmlParser::EndTag(bool has_sep, Events& events) {
  const TagKind kind = std::exchange(tag_kind_, TagKind::kNone);
  const XtmlTag tag = ParseXtmlTag(tag_);
  const bool counts = has_sep || tag.name != XtmlTagName::kUnnamed;
  if (counts && (kind == TagKind::kOpen ? Open(tag, events) : Close(tag, events))) {
    // Where <|sep|> was left out, the text behind the tag is not part of it.
    if (!has_sep) AddText(tag.rest, events);
  } else {
    AddText(tag_, events);
  }
  EndText(events);
}

// What a tag does, by the place where it stands. A word is the place that comes next; "text" means
// that the markers vanish and the inside of the tag is text like that around it; "-" that the tag
// is ignored. "between" lies between channels or calls, "value" is an argument or a json block, and
// "over" comes after the message. Text counts in think, response and value and is dropped
// elsewhere.
//
//                  think        response     between    call         value
//   open message   over (1)     over (1)     over (1)   over (2)     text
//   open think     -            think        think      think (2)    text
//   open response  response     -            response   response (2) text
//   open tools     between      between      -          -            text
//   open call      call         call         call       call (2)     call (2)
//   open argument  -            -            -          value        value (3)
//   open json      -            -            -          value        value (3)
//   close message  over         over         over       over (2)     over (2)
//   close think    between (4)  -            -          -            text
//   close response between      between      -          -            text
//   close tools    -            -            -          between (2)  between (2)
//   close call     -            -            -          between (5)  between (3, 5)
//   close argument -            -            -          -            call
//   close json     -            -            -          -            call
//   close unnamed  between (4)  between      -          between (5)  call
//   unknown tag    text         text         -          -            text
//
// (1) Between when it is the first id: a whole message is parsed, not a completion. Later, what a
//     model writes beyond its message is no part of the answer.
// (2) The call stays incomplete.
// (3) The open value is closed first.
// (4) Response when the thinking was opened inside it.
// (5) The call is complete.
//
// So a channel or call that starts where another was not closed ends it, and a call without its
// tools section is still a call. Inside a value only what ends it counts: it may be a document
// about this very markup, and nothing in it should be lost. A <|sep|> without a tag vanishes. A tag
// without <|sep|> counts at the next marker if it has a name, at the end of the ids not at all.

/// Returns whether the tag was one; otherwise its inside is text.
bool XtmlParser::Open(const XtmlTag& tag, Events& events) {
  const bool in_value = place_ == Place::kValue;
  switch (tag.name) {
    case XtmlTagName::kMessage:
      if (in_value) return false;
      place_ = tag_is_first_ ? Place::kBetween : Place::kOver;
      return true;
    case XtmlTagName::kThink:
      if (in_value) return false;
      if (place_ == Place::kThink) return true;
      response_waits_ = place_ == Place::kResponse;
      place_ = Place::kThink;
      return true;
    case XtmlTagName::kResponse:
      if (in_value) return false;
      place_ = Place::kResponse;
      return true;
    case XtmlTagName::kTools:
      if (in_value) return false;
      if (place_ != Place::kCall) place_ = Place::kBetween;
      return true;
    case XtmlTagName::kCall:
      OpenCall(tag, events);
      return true;
    case XtmlTagName::kArgument:
    case XtmlTagName::kJson:
      if (in_value) CloseValue(events);
      if (place_ == Place::kCall) OpenValue(tag, events);
      return true;
    case XtmlTagName::kUnnamed:
    case XtmlTagName::kUnknown:
      return false;
  }
  return false;
}

/// Returns whether the tag was one; otherwise its inside is text.
bool XtmlParser::Close(const XtmlTag& tag, Events& events) {
  const bool in_value = place_ == Place::kValue;
  switch (tag.name) {
    case XtmlTagName::kMessage:
      place_ = Place::kOver;
      return true;
    case XtmlTagName::kThink:
      if (place_ == Place::kThink) LeaveThink();
      return !in_value;
    case XtmlTagName::kResponse:
      if (place_ == Place::kThink || place_ == Place::kResponse) place_ = Place::kBetween;
      return !in_value;
    case XtmlTagName::kTools:
      if (in_value || place_ == Place::kCall) place_ = Place::kBetween;
      return true;
    case XtmlTagName::kCall:
      if (in_value) CloseValue(events);
      if (place_ == Place::kCall) CloseCall(events);
      return true;
    case XtmlTagName::kArgument:
    case XtmlTagName::kJson:
      if (in_value) CloseValue(events);
      return true;
    case XtmlTagName::kUnnamed:
      CloseInnermost(events);
      return true;
    case XtmlTagName::kUnknown:
      return false;
  }
  return false;
}

void XtmlParser::CloseInnermost(Events& events) {
  switch (place_) {
    case Place::kThink:
      LeaveThink();
      break;
    case Place::kResponse:
      place_ = Place::kBetween;
      break;
    case Place::kCall:
      CloseCall(events);
      break;
    case Place::kValue:
      CloseValue(events);
      break;
    case Place::kBetween:
    case Place::kOver:
      break;
  }
}

void XtmlParser::LeaveThink() { place_ = response_waits_ ? Place::kResponse : Place::kBetween; }

void XtmlParser::OpenCall(const XtmlTag& tag, Events& events) {
  const std::string* name = tag.Find("tool");
  call_name_ = name == nullptr ? std::string() : *name;
  arguments_ = XtmlArguments();
  place_ = Place::kCall;
  if (call_name_.empty()) return;
  ++calls_count_;
  AddCallEvent(XtmlEvent::Kind::kToolCallStart, call_name_, events);
}

void XtmlParser::OpenValue(const XtmlTag& tag, Events& events) {
  place_ = Place::kValue;
  if (tag.name == XtmlTagName::kJson) {
    arguments_.OpenBlock();
    return;
  }
  const std::string* key = tag.Find("key");
  if (key == nullptr) {
    // Running the call without a value that the model gave would be another call.
    arguments_.Break();
    return;
  }
  AddCallEvent(XtmlEvent::Kind::kToolCallArguments,
               arguments_.OpenArgument(*key, IsStringArgument(tag, *key)), events);
}

bool XtmlParser::IsStringArgument(const XtmlTag& tag, const std::string& key) const {
  if (const std::string* type = tag.Find("type")) return *type == "string";
  const auto tool = string_arguments_.find(call_name_);
  return tool != string_arguments_.end() && tool->second.contains(key);
}

void XtmlParser::CloseValue(Events& events) {
  AddCallEvent(XtmlEvent::Kind::kToolCallArguments, arguments_.CloseValue(), events);
  place_ = Place::kCall;
}

void XtmlParser::CloseCall(Events& events) {
  place_ = Place::kBetween;
  if (arguments_.broken()) return;
  AddCallEvent(XtmlEvent::Kind::kToolCallArguments, arguments_.Close(), events);
  AddCallEvent(XtmlEvent::Kind::kToolCallEnd, {}, events);
}

void XtmlParser::AddCallEvent(XtmlEvent::Kind kind, std::string text, Events& events) {
  if (call_name_.empty()) return;
  if (text.empty() && kind == XtmlEvent::Kind::kToolCallArguments) return;
  events.push_back({.kind = kind, .call = calls_count_ - 1, .text = std::move(text)});
}

/// Text of the place, as bytes; EndText ends it.
void XtmlParser::AddText(std::string_view bytes, Events& events) {
  if (!bytes.empty()) AddValidText(utf8_.Feed(bytes), events);
}

void XtmlParser::EndText(Events& events) { AddValidText(utf8_.Finish(), events); }

void XtmlParser::AddValidText(std::string text, Events& events) {
  if (text.empty()) return;
  switch (place_) {
    case Place::kThink:
      events.push_back({.kind = XtmlEvent::Kind::kReasoning, .text = std::move(text)});
      break;
    case Place::kResponse:
      events.push_back({.kind = XtmlEvent::Kind::kContent, .text = std::move(text)});
      break;
    case Place::kValue:
      AddCallEvent(XtmlEvent::Kind::kToolCallArguments, arguments_.Append(text), events);
      break;
    case Place::kBetween:
    case Place::kCall:
    case Place::kOver:
      break;
  }
}

}  // namespace k3
