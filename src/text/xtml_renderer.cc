#include "text/xtml_renderer.h"

#include "text/xtml_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/python_json.h"
#include "text/xtml_bodies.h"

namespace k3 {
namespace {

constexpr JsonStyle kSchemaStyle = {.item_separator = ",", .key_separator = ":", .sort_keys = true};

using Attributes = std::vector<std::pair<std::string_view, std::string>>;

std::string_view ArgumentType(const JsonValue& value) {
  if (value.string() != nullptr) return "string";
  if (value.boolean() != nullptr) return "boolean";
  if (value.is_null()) return "null";
  if (value.members() != nullptr) return "object";
  if (value.items() != nullptr) return "array";
  return "number";
}

/// Writes segments; those written while `is_answer` is set are an assistant's.
class Writer {
 public:
  bool is_answer = false;

  void Text(std::string text) {
    if (!text.empty()) segments_.push_back({std::move(text), false, is_answer});
  }
  void Marker(std::string_view name) { segments_.push_back({std::string(name), true, is_answer}); }

  void Open(std::string_view tag, const Attributes& attributes = {}) {
    Marker(kXtmlOpen);
    Text(std::string(tag));
    for (const auto& [key, value] : attributes) {
      Text(fmt::format(" {}", key));
      Text("=\"");
      Text(EscapeXtmlAttribute(value));
      Text("\"");
    }
    Marker(kXtmlSep);
  }
  void Close(std::string_view tag) {
    Marker(kXtmlClose);
    Text(std::string(tag));
    Marker(kXtmlSep);
  }
  void EndMessage() {
    Close("message");
    Marker(kXtmlEndOfMessage);
  }

  std::vector<XtmlSegment> Take() { return std::move(segments_); }

 private:
  std::vector<XtmlSegment> segments_;
};

void WriteInternal(std::string_view type, std::string body, Writer& writer) {
  writer.Open("message", {{"role", "system"}, {"type", std::string(type)}});
  writer.Text(std::move(body));
  writer.EndMessage();
}

/// An empty list declares nothing.
void WriteTools(const JsonValue& tools, std::string_view header, Writer& writer) {
  if (tools.items() == nullptr || tools.items()->empty()) return;
  WriteInternal("tool-declare",
                fmt::format("{}{}{}", header, DumpJson(tools, kSchemaStyle), xtml::kToolsFooter),
                writer);
}

void WriteContent(const ChatMessage& message, Writer& writer) {
  for (const std::string& part : message.content) writer.Text(part);
}

/// Of a system message or a user's.
void WritePlain(std::string_view role, const ChatMessage& message, Writer& writer) {
  Attributes attributes = {{"role", std::string(role)}};
  if (!message.name.empty()) attributes.emplace_back("name", message.name);
  writer.Open("message", attributes);
  WriteContent(message, writer);
  writer.EndMessage();
}

void WriteCall(const ToolCall& call, size_t index, Writer& writer) {
  writer.Open("call", {{"tool", call.name}, {"index", std::to_string(index)}});
  if (call.raw_arguments.has_value()) {
    // No model shall learn to write what is no JSON.
    writer.is_answer = false;
    writer.Open("json", {{"type", "object"}});
    writer.Text(*call.raw_arguments);
    writer.Close("json");
    writer.is_answer = true;
  } else {
    for (const auto& [key, value] : call.arguments) {
      writer.Open("argument", {{"key", key}, {"type", std::string(ArgumentType(value))}});
      writer.Text(value.string() != nullptr ? *value.string() : DumpJson(value));
      writer.Close("argument");
    }
  }
  writer.Close("call");
}

void WriteAssistant(const ChatMessage& message, bool thinking, Writer& writer) {
  Attributes attributes = {{"role", "assistant"}};
  if (!message.name.empty()) attributes.emplace_back("name", message.name);
  writer.Open("message", attributes);
  writer.is_answer = true;
  if (thinking) {
    writer.Open("think");
    if (!IsBlank(message.reasoning)) writer.Text(message.reasoning);
    writer.Close("think");
  }
  writer.Open("response");
  WriteContent(message, writer);
  writer.Close("response");
  if (!message.tool_calls.empty()) {
    writer.Open("tools");
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      WriteCall(message.tool_calls[i], i + 1, writer);
    }
    writer.Close("tools");
  }
  writer.EndMessage();
  writer.is_answer = false;
}

/// The position of the call that `message` answers; nothing when there is none.
std::optional<size_t> FindCall(const std::vector<ToolCall>& calls, const ChatMessage& message) {
  if (!message.call_id.has_value()) return std::nullopt;
  const auto call = std::ranges::find(calls, message.call_id, &ToolCall::id);
  if (call == calls.end()) return std::nullopt;
  return static_cast<size_t>(call - calls.begin());
}

/// A tool's result, the call it answers if every result of its run answers one, and where it stands
/// in the request.
struct ToolResult {
  const ChatMessage* message;
  size_t place;
  std::optional<size_t> call;
};

/// Writes a run of consecutive results. `results_count` counts those since the last assistant.
Status WriteResults(std::vector<ToolResult> run, const std::vector<ToolCall>& calls,
                    size_t& results_count, Writer& writer) {
  const auto is_matched = [](const ToolResult& result) { return result.call.has_value(); };
  const bool all_matched = std::ranges::all_of(run, is_matched);
  if (all_matched) {
    std::ranges::sort(
        run, {}, [](const ToolResult& result) { return std::pair(*result.call, result.place); });
  }
  for (const ToolResult& result : run) {
    const size_t position = results_count++;
    std::string name;
    if (all_matched) {
      name = calls[*result.call].name;
    } else if (result.message->tool.has_value()) {
      name = *result.message->tool;
    } else if (position < calls.size()) {
      name = calls[position].name;
    } else {
      return InvalidArgument(fmt::format(
          "messages[{}]: expected the result of a tool call, found a tool_call_id that no call of "
          "the assistant has and no tool's name; give `tool` or a matching `tool_call_id`",
          result.place));
    }
    writer.Open("message",
                {{"role", "tool"}, {"tool", name}, {"index", std::to_string(results_count)}});
    WriteContent(*result.message, writer);
    writer.EndMessage();
  }
  return OkStatus();
}

Status WriteMessages(const ChatRequest& request, Writer& writer) {
  const std::vector<ChatMessage>& messages = request.messages;
  const std::vector<ToolCall> no_calls;
  const std::vector<ToolCall>* calls = &no_calls;  // of the last assistant
  size_t results_count = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    switch (message.role) {
      case ChatRole::kSystem:
        if (message.tools.has_value()) {
          WriteTools(*message.tools, xtml::kMoreToolsHeader, writer);
        } else {
          WritePlain("system", message, writer);
        }
        break;
      case ChatRole::kUser:
        WritePlain("user", message, writer);
        break;
      case ChatRole::kAssistant:
        calls = &message.tool_calls;
        results_count = 0;
        WriteAssistant(message, request.thinking, writer);
        break;
      case ChatRole::kTool: {
        std::vector<ToolResult> run;
        for (; i < messages.size() && messages[i].role == ChatRole::kTool; ++i) {
          run.push_back({&messages[i], i, FindCall(*calls, messages[i])});
        }
        --i;
        K3_RETURN_IF_ERROR(WriteResults(std::move(run), *calls, results_count, writer));
        break;
      }
    }
  }
  return OkStatus();
}

/// Behind the messages, so that a change of them keeps the prefix that a cache knows.
void WriteOptions(const ChatRequest& request, Writer& writer) {
  if (request.tool_choice == ToolChoice::kRequired) {
    WriteInternal("tool-choice", std::string(xtml::kToolChoiceRequired), writer);
  } else if (request.tool_choice == ToolChoice::kNone) {
    WriteInternal("tool-choice", std::string(xtml::kToolChoiceNone), writer);
  }
  if (request.response_format == ResponseFormat::kJsonObject) {
    WriteInternal("response-format", std::string(xtml::kJsonObject), writer);
  } else if (request.response_format == ResponseFormat::kJsonSchema) {
    WriteInternal(
        "response-format",
        fmt::format("{}{}{}", xtml::kJsonSchemaHeader,
                    DumpJson(request.response_schema, kSchemaStyle), xtml::kJsonSchemaFooter),
        writer);
  }
}

}  // namespace

Result<std::vector<XtmlSegment>> RenderXtml(const ChatRequest& request) {
  Writer writer;
  WriteTools(request.tools, xtml::kToolsHeader, writer);
  if (request.thinking && request.effort.has_value()) {
    WriteInternal("thinking-effort",
                  fmt::format("{}{}{}", xtml::kEffortBeforeValue,
                              ThinkingEffortName(*request.effort), xtml::kEffortAfterValue),
                  writer);
  }
  K3_RETURN_IF_ERROR(WriteMessages(request, writer));
  WriteOptions(request, writer);
  if (request.add_generation_prompt) {
    writer.Open("message", {{"role", "assistant"}});
    writer.Open(request.thinking ? "think" : "response");
  }
  return writer.Take();
}

std::string JoinXtml(std::span<const XtmlSegment> segments) {
  std::string joined;
  for (const XtmlSegment& segment : segments) joined += segment.text;
  return joined;
}

Result<std::vector<int32_t>> EncodeXtml(const Tokenizer& tokenizer,
                                        std::span<const XtmlSegment> segments) {
  std::vector<int32_t> ids;
  for (const XtmlSegment& segment : segments) {
    if (segment.is_marker) {
      K3_TRY(const int32_t id, tokenizer.SpecialId(segment.text));
      ids.push_back(id);
      continue;
    }
    K3_TRY(const std::vector<int32_t> text_ids, tokenizer.Encode(segment.text));
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  }
  return ids;
}

}  // namespace k3
