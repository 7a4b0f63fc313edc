#pragma once
// ChatRequest: a conversation and its options as the prompt's renderer (xtml_renderer.h) needs
// them, checked; and its reader from an OpenAI-style request.
//
//   K3_TRY(const JsonValue json, ParseJson(text, "request.json"));
//   K3_TRY(const ChatRequest request, ParseChatRequest(json, "request.json"));
//
// Fields that do not shape the prompt (temperature, stream, ...) are left to others. Failures are
// InvalidArgument ("request.json: messages[2].content: expected ..., found ..."), Unimplemented for
// images. Plain values that own their text; any thread. Strings must be valid UTF-8, which
// ParseJson sees to. Source: technical report, appendix F; the fields are described in
// docs/formats.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/json.h"

namespace k3 {

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

struct ToolCall {
  std::optional<std::string> id;
  std::string name;
  /// In the order in which they are shown.
  JsonValue::Members arguments;
  /// Arguments that are no JSON, shown as they are in place of `arguments`.
  std::optional<std::string> raw_arguments;
};

/// `arguments` of a tool call from its JSON text. Blank text gives none, text that Python's json
/// cannot parse is kept raw; JSON that is no object is InvalidArgument.
Status SetToolArguments(std::string_view text, ToolCall& call);

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string name;                    // empty: none
  std::vector<std::string> content;    // text parts, each tokenised on its own
  std::string reasoning;               // of an assistant
  std::vector<ToolCall> tool_calls;    // of an assistant
  std::optional<JsonValue> tools;      // of a system message: tools added here, an array
  std::optional<std::string> call_id;  // of a tool: the call it answers
  std::optional<std::string> tool;     // of a tool: its name, for results that match no call
};

enum class ThinkingEffort { kLow, kHigh, kMax };
enum class ToolChoice { kAuto, kNone, kRequired, kNamed };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

struct ChatRequest {
  std::vector<ChatMessage> messages;
  JsonValue tools;       // an array, or null
  bool thinking = true;  // whether the answer, and every one before it, has a think channel
  /// Shown when thinking; nothing shows nothing.
  std::optional<ThinkingEffort> effort = ThinkingEffort::kMax;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name;  // with kNamed
  ResponseFormat response_format = ResponseFormat::kText;
  JsonValue response_schema;          // with kJsonSchema
  bool add_generation_prompt = true;  // ends with an assistant's message that is open
};

/// Reads messages, tools, tool_choice, response_format, response_schema, reasoning_effort, thinking
/// and add_generation_prompt, the latter six also from chat_template_kwargs, which wins.
Result<ChatRequest> ParseChatRequest(const JsonValue& json, std::string_view where);

/// An array of messages in the same form.
Result<std::vector<ChatMessage>> ParseChatMessages(const JsonValue& json, std::string_view where);

/// low, high or max.
std::optional<ThinkingEffort> ParseThinkingEffort(std::string_view name);
std::string_view ThinkingEffortName(ThinkingEffort effort);

/// Checks that `tools` is an array of objects, or null. `path` is what messages call it.
Status CheckTools(const JsonValue& tools, std::string_view path);

}  // namespace k3
