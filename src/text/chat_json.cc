#include "text/chat_json.h"

#include <array>

namespace k3 {
namespace {

constexpr std::array<std::string_view, 4> kRoleNames = {"system", "user", "assistant", "tool"};

JsonValue Text(std::string_view text) { return JsonValue(std::string(text)); }

JsonValue ContentJson(const std::vector<std::string>& parts) {
  if (parts.empty()) return Text("");
  if (parts.size() == 1) return Text(parts.front());
  JsonValue::Items items;
  for (const std::string& part : parts) {
    items.emplace_back(JsonValue::Members{{"type", Text("text")}, {"text", Text(part)}});
  }
  return JsonValue(std::move(items));
}

JsonValue ToolCallJson(const ToolCall& call) {
  const std::string arguments =
      call.raw_arguments.has_value() ? *call.raw_arguments : DumpJson(JsonValue(call.arguments));
  JsonValue::Members members;
  if (call.id.has_value()) members.emplace_back("id", Text(*call.id));
  members.emplace_back("type", Text("function"));
  members.emplace_back("function", JsonValue(JsonValue::Members{{"name", Text(call.name)},
                                                                {"arguments", Text(arguments)}}));
  return JsonValue(std::move(members));
}

/// What the fields of a named choice and of a schema look like in a request.
void AddOptions(const ChatRequest& request, JsonValue::Members& members) {
  if (request.tool_choice == ToolChoice::kNone) members.emplace_back("tool_choice", Text("none"));
  if (request.tool_choice == ToolChoice::kRequired) {
    members.emplace_back("tool_choice", Text("required"));
  }
  if (request.tool_choice == ToolChoice::kNamed) {
    JsonValue::Members name = {{"name", Text(request.tool_choice_name)}};
    members.emplace_back("tool_choice",
                         JsonValue(JsonValue::Members{{"type", Text("function")},
                                                      {"function", JsonValue(std::move(name))}}));
  }
  if (request.response_format != ResponseFormat::kText) {
    const bool has_schema = request.response_format == ResponseFormat::kJsonSchema;
    JsonValue::Members format = {{"type", Text(has_schema ? "json_schema" : "json_object")}};
    members.emplace_back("response_format", JsonValue(std::move(format)));
    if (has_schema) members.emplace_back("response_schema", request.response_schema);
  }
  if (!request.add_generation_prompt) {
    members.emplace_back("add_generation_prompt", JsonValue(false));
  }
}

}  // namespace

JsonValue ChatMessageJson(const ChatMessage& message) {
  JsonValue::Members members = {{"role", Text(kRoleNames[static_cast<size_t>(message.role)])}};
  if (message.tools.has_value()) {
    members.emplace_back("tools", *message.tools);
    return JsonValue(std::move(members));
  }
  if (!message.name.empty()) members.emplace_back("name", Text(message.name));
  if (message.call_id.has_value()) members.emplace_back("tool_call_id", Text(*message.call_id));
  if (message.tool.has_value()) members.emplace_back("tool", Text(*message.tool));
  if (!message.reasoning.empty()) {
    members.emplace_back("reasoning_content", Text(message.reasoning));
  }
  members.emplace_back("content", ContentJson(message.content));
  if (!message.tool_calls.empty()) {
    JsonValue::Items calls;
    for (const ToolCall& call : message.tool_calls) calls.push_back(ToolCallJson(call));
    members.emplace_back("tool_calls", JsonValue(std::move(calls)));
  }
  return JsonValue(std::move(members));
}

JsonValue ChatRequestJson(const ChatRequest& request) {
  JsonValue::Items messages;
  for (const ChatMessage& message : request.messages) messages.push_back(ChatMessageJson(message));
  JsonValue::Members members = {{"messages", JsonValue(std::move(messages))}};
  if (!request.tools.is_null()) members.emplace_back("tools", request.tools);
  JsonValue::Members kwargs = {{"thinking", JsonValue(request.thinking)}};
  if (request.thinking) {
    kwargs.emplace_back("thinking_effort", request.effort.has_value()
                                               ? Text(ThinkingEffortName(*request.effort))
                                               : JsonValue());
  }
  members.emplace_back("chat_template_kwargs", JsonValue(std::move(kwargs)));
  AddOptions(request, members);
  return JsonValue(std::move(members));
}

}  // namespace k3
