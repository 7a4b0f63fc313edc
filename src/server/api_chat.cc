#include "server/api_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "server/api_fields.h"

namespace k3::server {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 4> kSystemFields = {"role", "content", "name", "tools"};
constexpr std::array<std::string_view, 3> kUserFields = {"role", "content", "name"};
constexpr std::array<std::string_view, 6> kAssistantFields = {
    "role", "content", "name", "reasoning_content", "reasoning", "tool_calls"};
constexpr std::array<std::string_view, 6> kToolFields = {"role", "content",      "name",
                                                         "tool", "tool_call_id", "id"};
// What clients put beside an answer that they send back. Null, empty or, for what a client derived
// from the answer itself, anything: nothing of it would be shown to the model.
constexpr std::array<std::string_view, 4> kNullFields = {"refusal", "annotations", "audio",
                                                         "function_call"};
constexpr std::string_view kDerivedField = "parsed";

constexpr std::array<std::string_view, 2> kPartFields = {"type", "text"};
constexpr std::array<std::string_view, 7> kCallFields = {"id",   "type",      "function",  "index",
                                                         "name", "arguments", "incomplete"};
constexpr std::array<std::string_view, 3> kCallFunctionFields = {"name", "arguments",
                                                                 "parsed_arguments"};
constexpr std::array<std::string_view, 2> kFormatFields = {"type", "json_schema"};
constexpr std::array<std::string_view, 4> kSchemaFields = {"name", "description", "schema",
                                                           "strict"};
constexpr std::array<std::string_view, 3> kChoiceFields = {"type", "function", "name"};
constexpr std::array<std::string_view, 1> kNameFields = {"name"};

bool IsEmpty(const JsonValue& value) {
  return value.is_null() || (value.items() != nullptr && value.items()->empty()) ||
         (value.string() != nullptr && value.string()->empty());
}

/// Any field of a message is known when it is empty; else it must belong to the role.
Status CheckMessageNames(const JsonValue& message, const std::string& path, std::string_view role) {
  Names known = kUserFields;
  if (role == "system" || role == "developer") known = kSystemFields;
  if (role == "assistant") known = kAssistantFields;
  if (role == "tool") known = kToolFields;
  for (const auto& [name, value] : *message.members()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const bool is_elsewhere = std::ranges::count(kSystemFields, name) > 0 ||
                              std::ranges::count(kAssistantFields, name) > 0 ||
                              std::ranges::count(kToolFields, name) > 0 ||
                              std::ranges::count(kNullFields, name) > 0;
    if (is_elsewhere && IsEmpty(value)) continue;
    if (name == kDerivedField && role == "assistant") continue;
    return Unimplemented(fmt::format("{}.{}: not supported in a message of this role; leave it out",
                                     path, NameForPath(name)));
  }
  return OkStatus();
}

Status CheckParts(const JsonValue& message, const std::string& path) {
  const JsonValue* content = message.Find("content");
  if (content == nullptr || content->items() == nullptr) return OkStatus();
  for (size_t i = 0; i < content->items()->size(); ++i) {
    const JsonValue& part = (*content->items())[i];
    const std::string part_path = fmt::format("{}.content[{}]", path, i);
    if (part.members() == nullptr) return Expected(part_path, "an object", part);
    const FieldsReader reader(part, part_path);
    std::string type = "text";
    K3_RETURN_IF_ERROR(reader.Read("type", type));
    if (type != "text") {
      return Unimplemented(fmt::format("{}: parts of type {} are not supported, text alone is",
                                       part_path, QuoteForMessage(type)));
    }
    K3_RETURN_IF_ERROR(CheckNames(part, part_path, kPartFields));
  }
  return OkStatus();
}

Status CheckCalls(const JsonValue& message, const std::string& path) {
  const JsonValue* calls = message.Find("tool_calls");
  if (calls == nullptr || calls->items() == nullptr) return OkStatus();
  for (size_t i = 0; i < calls->items()->size(); ++i) {
    const JsonValue& call = (*calls->items())[i];
    const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
    if (call.members() == nullptr) return Expected(call_path, "an object", call);
    K3_RETURN_IF_ERROR(CheckNames(call, call_path, kCallFields));
    const FieldsReader reader(call, call_path);
    std::string type = "function";
    K3_RETURN_IF_ERROR(reader.Read("type", type));
    if (type != "function") {
      return Unimplemented(
          fmt::format("{}.type: expected function, found {}", call_path, QuoteForMessage(type)));
    }
    const JsonValue* function = reader.Get("function");
    if (function == nullptr || function->members() == nullptr) continue;
    K3_RETURN_IF_ERROR(CheckNames(*function, call_path + ".function", kCallFunctionFields));
  }
  return OkStatus();
}

/// Adds the names of `tools`, which are an array of objects, to `names`.
Status CheckTools(const JsonValue& tools, const std::string& path, std::set<std::string>& names) {
  if (std::ssize(*tools.items()) > limits::kApiToolsMax) {
    return Expected(path, fmt::format("at most {} tools", limits::kApiToolsMax), tools);
  }
  for (size_t i = 0; i < tools.items()->size(); ++i) {
    const JsonValue& tool = (*tools.items())[i];
    const std::string tool_path = fmt::format("{}[{}]", path, i);
    const FieldsReader reader(tool, tool_path);
    std::string type = "function";
    K3_RETURN_IF_ERROR(reader.Read("type", type));
    if (type != "function") {
      return Unimplemented(
          fmt::format("{}.type: expected function, found {}; the server has no "
                      "tools of its own",
                      tool_path, QuoteForMessage(type)));
    }
    const JsonValue* function = reader.Get("function");
    if (function == nullptr || function->members() == nullptr) {
      return Expected(tool_path + ".function", "an object with a name",
                      function == nullptr ? JsonValue() : *function);
    }
    const FieldsReader function_reader(*function, tool_path + ".function");
    std::string name;
    K3_RETURN_IF_ERROR(function_reader.Read("name", name));
    if (name.empty()) {
      return InvalidArgument(
          fmt::format("{}.function.name: expected a name, found none", tool_path));
    }
    const JsonValue* parameters = function_reader.Get("parameters");
    if (parameters != nullptr && parameters->members() == nullptr) {
      return Expected(tool_path + ".function.parameters", "a JSON schema", *parameters);
    }
    if (!names.insert(name).second) {
      return InvalidArgument(
          fmt::format("{}.function.name: {} was declared before; expected every "
                      "tool once",
                      tool_path, QuoteForMessage(name)));
    }
  }
  return OkStatus();
}

/// What was asked for the answer as a whole, at the top level or in chat_template_kwargs.
const JsonValue* FindOption(const JsonValue& json, std::string_view name) {
  const JsonValue* template_fields = json.Find("chat_template_kwargs");
  const JsonValue* value = template_fields == nullptr ? nullptr : template_fields->Find(name);
  if (value == nullptr) value = json.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Status CheckResponseFormat(const JsonValue& json) {
  const JsonValue* format = FindOption(json, "response_format");
  if (format == nullptr || format->members() == nullptr) return OkStatus();
  K3_RETURN_IF_ERROR(CheckNames(*format, "response_format", kFormatFields));
  const FieldsReader reader(*format, "response_format");
  std::string type;
  K3_RETURN_IF_ERROR(reader.Read("type", type));
  const JsonValue* outer = reader.Get("json_schema");
  if (type != "json_schema") {
    if (outer == nullptr) return OkStatus();
    return Expected("response_format.json_schema", "nothing without the type json_schema", *outer);
  }
  const bool has_other = FindOption(json, "response_schema") != nullptr;
  if (outer == nullptr) return OkStatus();
  if (outer->members() == nullptr) {
    return Expected("response_format.json_schema", "an object with a schema", *outer);
  }
  K3_RETURN_IF_ERROR(CheckNames(*outer, "response_format.json_schema", kSchemaFields));
  const FieldsReader schema_reader(*outer, "response_format.json_schema");
  std::string text;
  bool is_strict = false;
  K3_RETURN_IF_ERROR(schema_reader.Read("name", text));
  K3_RETURN_IF_ERROR(schema_reader.Read("description", text));
  K3_RETURN_IF_ERROR(schema_reader.Read("strict", is_strict));
  const JsonValue* schema = schema_reader.Get("schema");
  if (schema == nullptr ? has_other : !has_other && schema->members() != nullptr) {
    return OkStatus();
  }
  return Expected("response_format.json_schema.schema", "one JSON schema, here or elsewhere",
                  schema == nullptr ? JsonValue() : *schema);
}

/// The schema that was found, wherever it stood.
Status CheckResponseSchema(const JsonValue& json, const ChatRequest& chat) {
  const JsonValue* other = FindOption(json, "response_schema");
  if (other != nullptr && chat.response_format != ResponseFormat::kJsonSchema) {
    return Expected("response_schema", "nothing without a response_format of type json_schema",
                    *other);
  }
  if (other != nullptr && other->members() == nullptr) {
    return Expected("response_schema", "a JSON schema", *other);
  }
  return CheckResponseFormat(json);
}

Status CheckToolChoice(const JsonValue& json, const ChatRequest& chat,
                       const std::set<std::string>& names) {
  const JsonValue* choice = FindOption(json, "tool_choice");
  if (choice != nullptr && choice->members() != nullptr) {
    K3_RETURN_IF_ERROR(CheckNames(*choice, "tool_choice", kChoiceFields));
    const FieldsReader reader(*choice, "tool_choice");
    std::string type = "function";
    K3_RETURN_IF_ERROR(reader.Read("type", type));
    if (type != "function") {
      return Unimplemented(
          fmt::format("tool_choice.type: expected function, found {}", QuoteForMessage(type)));
    }
    const JsonValue* function = reader.Get("function");
    const JsonValue* name = reader.Get("name");
    if (function != nullptr && name != nullptr) {
      return Expected("tool_choice.name", "nothing beside function", *name);
    }
    if (function != nullptr && function->members() != nullptr) {
      K3_RETURN_IF_ERROR(CheckNames(*function, "tool_choice.function", kNameFields));
    }
  }
  if (chat.tool_choice == ToolChoice::kRequired && names.empty()) {
    return InvalidArgument("tool_choice: required needs tools, found none");
  }
  if (chat.tool_choice == ToolChoice::kNamed && !names.contains(chat.tool_choice_name)) {
    return InvalidArgument(fmt::format("tool_choice: expected a tool that is declared, found {}",
                                       QuoteForMessage(chat.tool_choice_name)));
  }
  return OkStatus();
}

/// The names of all tools, also of those that system messages add.
Result<std::set<std::string>> CheckMessages(const JsonValue& json, const ChatRequest& chat) {
  std::set<std::string> names;
  if (chat.tools.items() != nullptr) K3_RETURN_IF_ERROR(CheckTools(chat.tools, "tools", names));
  const JsonValue::Items& messages = *json.Find("messages")->items();
  if (messages.empty()) {
    return InvalidArgument("messages: expected at least one message, found none");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const JsonValue& message = messages[i];
    const std::string path = fmt::format("messages[{}]", i);
    K3_RETURN_IF_ERROR(CheckMessageNames(message, path, *message.Find("role")->string()));
    if (!chat.messages[i].tools.has_value()) continue;
    for (const std::string_view name : {"content", "name"}) {
      const JsonValue* value = message.Find(name);
      if (value == nullptr || IsEmpty(*value)) continue;
      return Unimplemented(
          fmt::format("{}.{}: not shown beside tools; send a message of its own", path, name));
    }
    K3_RETURN_IF_ERROR(CheckTools(*chat.messages[i].tools, path + ".tools", names));
  }
  return names;
}

/// Kinds of parts and calls that are not supported, before the reader looks for what they lack.
Status CheckKinds(const JsonValue& json) {
  const JsonValue* messages = json.Find("messages");
  if (messages == nullptr || messages->items() == nullptr) return OkStatus();
  for (size_t i = 0; i < messages->items()->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    K3_RETURN_IF_ERROR(CheckParts((*messages->items())[i], path));
    K3_RETURN_IF_ERROR(CheckCalls((*messages->items())[i], path));
  }
  return OkStatus();
}

/// The reader names its source in front of the field.
Status WithoutSource(const Status& status, std::string_view source) {
  const std::string& message = status.message();
  const size_t size = source.size() + 2;
  return message.starts_with(source) ? Status(status.code(), message.substr(size)) : status;
}

}  // namespace

Result<ChatRequest> ReadChat(const JsonValue& json) {
  constexpr std::string_view kSource = "request";
  K3_RETURN_IF_ERROR(CheckKinds(json));
  Result<ChatRequest> chat = ParseChatRequest(json, kSource);
  if (!chat.ok()) return WithoutSource(chat.status(), kSource);
  K3_TRY(const std::set<std::string> names, CheckMessages(json, *chat));
  K3_RETURN_IF_ERROR(CheckToolChoice(json, *chat, names));
  K3_RETURN_IF_ERROR(CheckResponseSchema(json, *chat));
  return chat;
}

}  // namespace k3::server
