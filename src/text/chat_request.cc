#include "text/chat_request.h"

#include <fmt/format.h>

#include <array>

#include "text/python_json.h"

namespace k3 {
namespace {

constexpr std::array<std::string_view, 3> kEffortNames = {"low", "high", "max"};

Status Fail(std::string_view path, std::string_view expected, const JsonValue& found) {
  return InvalidArgument(
      fmt::format("{}: expected {}, found {}", path, expected, found.Describe()));
}

/// The member, or null when it is absent or null.
const JsonValue* Get(const JsonValue& object, std::string_view name) {
  const JsonValue* value = object.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

/// Strings as they are; numbers and booleans, which some clients use as ids, as JSON.
Result<std::string> IdText(const JsonValue& value, std::string_view path) {
  if (value.string() != nullptr) return *value.string();
  if (value.items() != nullptr || value.members() != nullptr) return Fail(path, "a string", value);
  return DumpJson(value);
}

Result<std::string> OptionalString(const JsonValue& object, std::string_view name,
                                   std::string_view path) {
  const JsonValue* value = Get(object, name);
  if (value == nullptr) return std::string();
  if (value->string() == nullptr) return Fail(fmt::format("{}.{}", path, name), "a string", *value);
  return *value->string();
}

Result<std::vector<std::string>> ReadContent(const JsonValue& message, const std::string& path) {
  const JsonValue* content = Get(message, "content");
  if (content == nullptr) return std::vector<std::string>();
  if (content->string() != nullptr) return std::vector<std::string>{*content->string()};
  if (content->items() == nullptr) {
    return Fail(path + ".content", "a string or an array of parts", *content);
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content->items()->size(); ++i) {
    const JsonValue& part = (*content->items())[i];
    const std::string part_path = fmt::format("{}.content[{}]", path, i);
    if (part.members() == nullptr) return Fail(part_path, "an object", part);
    const JsonValue* type = Get(part, "type");
    const std::string type_name =
        type == nullptr || type->string() == nullptr ? "" : *type->string();
    const bool has_image = Get(part, "image_url") != nullptr || Get(part, "image") != nullptr;
    if (has_image || type_name == "image" || type_name == "image_url") {
      return Unimplemented(
          fmt::format("{}: images are not supported yet; leave this part out", part_path));
    }
    const JsonValue* text = Get(part, "text");
    if (text == nullptr || text->string() == nullptr) {
      return Fail(part_path + ".text", "a string", text == nullptr ? JsonValue() : *text);
    }
    texts.push_back(*text->string());
  }
  return texts;
}

Result<ToolCall> ReadToolCall(const JsonValue& json, const std::string& path) {
  if (json.members() == nullptr) return Fail(path, "an object", json);
  const JsonValue* nested = Get(json, "function");
  if (nested != nullptr && nested->members() == nullptr) {
    return Fail(path + ".function", "an object", *nested);
  }
  const JsonValue& function = nested == nullptr ? json : *nested;
  const std::string function_path = nested == nullptr ? path : path + ".function";
  ToolCall call;
  const JsonValue* name = Get(function, "name");
  if (name == nullptr || name->string() == nullptr) {
    return Fail(function_path + ".name", "a string", name == nullptr ? JsonValue() : *name);
  }
  call.name = *name->string();
  if (const JsonValue* id = Get(json, "id"); id != nullptr) {
    K3_TRY(call.id, IdText(*id, path + ".id"));
  }
  const JsonValue* arguments = Get(function, "arguments");
  if (arguments == nullptr) return call;
  const std::string arguments_path = function_path + ".arguments";
  if (arguments->members() != nullptr) {
    call.arguments = *arguments->members();
  } else if (arguments->string() != nullptr) {
    const Status set = SetToolArguments(*arguments->string(), call);
    if (!set.ok()) return set.WithContext(arguments_path);
  } else {
    return Fail(arguments_path, "a string, an object or null", *arguments);
  }
  return call;
}

Status ReadAssistant(const JsonValue& json, const std::string& path, ChatMessage& message) {
  K3_TRY(message.reasoning, OptionalString(json, "reasoning_content", path));
  if (message.reasoning.empty()) {
    K3_TRY(message.reasoning, OptionalString(json, "reasoning", path));
  }
  if (const JsonValue* old = Get(json, "function_call"); old != nullptr) {
    return Fail(path + ".function_call", "tool_calls in its place", *old);
  }
  const JsonValue* calls = Get(json, "tool_calls");
  if (calls == nullptr) return OkStatus();
  if (calls->items() == nullptr) return Fail(path + ".tool_calls", "an array", *calls);
  for (size_t i = 0; i < calls->items()->size(); ++i) {
    K3_TRY(ToolCall call,
           ReadToolCall((*calls->items())[i], fmt::format("{}.tool_calls[{}]", path, i)));
    message.tool_calls.push_back(std::move(call));
  }
  return OkStatus();
}

Status ReadTool(const JsonValue& json, const std::string& path, ChatMessage& message) {
  // The first of the two keys that is there counts, also when it is null.
  const bool has_call_id = json.Find("tool_call_id") != nullptr;
  const std::string_view id_name = has_call_id ? "tool_call_id" : "id";
  if (const JsonValue* id = Get(json, id_name); id != nullptr) {
    K3_TRY(message.call_id, IdText(*id, fmt::format("{}.{}", path, id_name)));
  }
  const std::string_view tool_name = json.Find("tool") != nullptr ? "tool" : "name";
  if (const JsonValue* tool = Get(json, tool_name); tool != nullptr) {
    K3_TRY(message.tool, OptionalString(json, tool_name, path));
  }
  return OkStatus();
}

Result<ChatRole> ReadRole(const JsonValue& json, const std::string& path) {
  const JsonValue* role = json.Find("role");
  const std::string* name = role == nullptr ? nullptr : role->string();
  if (name != nullptr) {
    if (*name == "system" || *name == "developer") return ChatRole::kSystem;
    if (*name == "user") return ChatRole::kUser;
    if (*name == "assistant") return ChatRole::kAssistant;
    if (*name == "tool") return ChatRole::kTool;
  }
  return Fail(path + ".role", "system, developer, user, assistant or tool",
              role == nullptr ? JsonValue() : *role);
}

Result<ChatMessage> ReadMessage(const JsonValue& json, const std::string& path) {
  if (json.members() == nullptr) return Fail(path, "an object", json);
  ChatMessage message;
  K3_TRY(message.role, ReadRole(json, path));
  if (message.role == ChatRole::kSystem) {
    if (const JsonValue* tools = Get(json, "tools"); tools != nullptr) {
      K3_RETURN_IF_ERROR(CheckTools(*tools, path + ".tools"));
      message.tools = *tools;
      return message;
    }
  }
  K3_TRY(message.content, ReadContent(json, path));
  if (message.role == ChatRole::kTool) {
    K3_RETURN_IF_ERROR(ReadTool(json, path, message));
    return message;
  }
  K3_TRY(message.name, OptionalString(json, "name", path));
  if (message.role == ChatRole::kAssistant) {
    K3_RETURN_IF_ERROR(ReadAssistant(json, path, message));
  }
  return message;
}

}  // namespace

std::optional<ThinkingEffort> ParseThinkingEffort(std::string_view name) {
  for (size_t i = 0; i < kEffortNames.size(); ++i) {
    if (name == kEffortNames[i]) return static_cast<ThinkingEffort>(i);
  }
  return std::nullopt;
}

std::string_view ThinkingEffortName(ThinkingEffort effort) {
  return kEffortNames[static_cast<size_t>(effort)];
}

Status SetToolArguments(std::string_view text, ToolCall& call) {
  call.arguments.clear();
  call.raw_arguments.reset();
  if (IsBlank(text)) return OkStatus();
  K3_TRY(std::optional<JsonValue> value, ParsePythonJson(text));
  if (!value.has_value()) {
    call.raw_arguments = text;
    return OkStatus();
  }
  if (value->members() == nullptr) {
    return InvalidArgument(
        fmt::format("expected the JSON text of an object, found {}", value->Describe()));
  }
  call.arguments = std::move(*value->members());
  return OkStatus();
}

Status CheckTools(const JsonValue& tools, std::string_view path) {
  if (tools.is_null()) return OkStatus();
  if (tools.items() == nullptr) return Fail(path, "an array of tools", tools);
  for (size_t i = 0; i < tools.items()->size(); ++i) {
    const JsonValue& tool = (*tools.items())[i];
    if (tool.members() == nullptr) return Fail(fmt::format("{}[{}]", path, i), "an object", tool);
  }
  return OkStatus();
}

Result<std::vector<ChatMessage>> ParseChatMessages(const JsonValue& json, std::string_view where) {
  if (json.items() == nullptr) {
    return Fail(where, "an array of messages", json);
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < json.items()->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", where, i);
    K3_TRY(ChatMessage message, ReadMessage((*json.items())[i], path));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace k3
