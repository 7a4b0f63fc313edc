// The options of a request: what is not messages.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/chat_request.h"

namespace k3 {
namespace {

constexpr std::string_view kTemplateFields = "chat_template_kwargs";
constexpr std::array<std::string_view, 7> kTemplateFieldNames = {
    "thinking",        "thinking_effort", "reasoning_effort",     "tool_choice",
    "response_format", "response_schema", "add_generation_prompt"};

/// A field of a request and what messages call it.
struct Field {
  const JsonValue* value = nullptr;  // null: absent, or null in the request
  bool is_there = false;             // also when it is null
  std::string path;
};

class OptionReader {
 public:
  OptionReader(const JsonValue& json, std::string_view where) : json_(json), where_(where) {
    template_fields_ = json.Find(kTemplateFields);
  }

  /// chat_template_kwargs, when it is there, before the request itself.
  Field Get(std::string_view name) const {
    for (const JsonValue* object : {template_fields_, &json_}) {
      const JsonValue* value = object == nullptr ? nullptr : object->Find(name);
      if (value == nullptr) continue;
      const bool is_top = object == &json_;
      return {value->is_null() ? nullptr : value, true,
              is_top ? fmt::format("{}: {}", where_, name)
                     : fmt::format("{}: {}.{}", where_, kTemplateFields, name)};
    }
    return {nullptr, false, fmt::format("{}: {}", where_, name)};
  }

  /// A name that is misspelt or of another model would be lost without a word.
  Status CheckTemplateFields() const {
    if (template_fields_ == nullptr || template_fields_->is_null()) return OkStatus();
    if (template_fields_->members() == nullptr) {
      return InvalidArgument(fmt::format("{}: {}: expected an object, found {}", where_,
                                         kTemplateFields, template_fields_->Describe()));
    }
    for (const auto& [name, value] : *template_fields_->members()) {
      if (std::ranges::count(kTemplateFieldNames, name) > 0) continue;
      return InvalidArgument(fmt::format("{}: {}: expected one of {}, found {}", where_,
                                         kTemplateFields, fmt::join(kTemplateFieldNames, ", "),
                                         QuoteForMessage(name)));
    }
    return OkStatus();
  }

 private:
  const JsonValue& json_;
  std::string_view where_;
  const JsonValue* template_fields_;
};

Status Fail(const Field& field, std::string_view expected) {
  return InvalidArgument(
      fmt::format("{}: expected {}, found {}", field.path, expected, field.value->Describe()));
}

Status ReadBool(const Field& field, bool& value) {
  if (field.value == nullptr) return OkStatus();
  if (field.value->boolean() == nullptr) return Fail(field, "true or false");
  value = *field.value->boolean();
  return OkStatus();
}

/// true, false, or {"type": "enabled"} and {"type": "disabled"}.
Status ReadThinking(const Field& field, bool& thinking) {
  const JsonValue* type = field.value == nullptr ? nullptr : field.value->Find("type");
  if (type == nullptr) return ReadBool(field, thinking);
  if (type->string() == nullptr ||
      (*type->string() != "enabled" && *type->string() != "disabled")) {
    return Fail({type, true, field.path + ".type"}, "enabled or disabled");
  }
  thinking = *type->string() == "enabled";
  return OkStatus();
}

Status ReadEffort(const OptionReader& reader, ChatRequest& request) {
  const Field standard = reader.Get("reasoning_effort");
  const std::string* standard_name = standard.value == nullptr ? nullptr : standard.value->string();
  const bool is_none = standard_name != nullptr && *standard_name == "none";
  if (is_none) request.thinking = false;
  // Without thinking no effort is shown, so that none is wrong.
  if (!request.thinking) return OkStatus();
  const Field own = reader.Get("thinking_effort");
  if (own.is_there && own.value == nullptr) request.effort = std::nullopt;
  const Field& field = own.is_there ? own : standard;
  if (field.value == nullptr || (&field == &standard && is_none)) return OkStatus();
  const std::string* name = field.value->string();
  const std::optional<ThinkingEffort> effort =
      name == nullptr ? std::nullopt : ParseThinkingEffort(*name);
  if (!effort.has_value()) {
    return Fail(field, own.is_there ? "low, high or max" : "none, low, high or max");
  }
  request.effort = effort;
  return OkStatus();
}

Status ReadToolChoice(const Field& field, ChatRequest& request) {
  if (field.value == nullptr) return OkStatus();
  if (const std::string* name = field.value->string(); name != nullptr) {
    if (*name == "auto") return OkStatus();
    if (*name == "none" || *name == "required") {
      request.tool_choice = *name == "none" ? ToolChoice::kNone : ToolChoice::kRequired;
      return OkStatus();
    }
  }
  const JsonValue* function = field.value->Find("function");
  const JsonValue* name = function == nullptr ? field.value->Find("name") : function->Find("name");
  if (name == nullptr || name->string() == nullptr) {
    return Fail(field,
                R"(auto, none, required or {"type": "function", "function": {"name": ...}})");
  }
  request.tool_choice = ToolChoice::kNamed;
  request.tool_choice_name = *name->string();
  return OkStatus();
}

/// In an object {"json_schema": ...}; null for none.
const JsonValue* FindSchema(const JsonValue& format) {
  const auto find = [](const JsonValue& object, std::string_view name) {
    const JsonValue* value = object.Find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  };
  const JsonValue* outer = find(format, "json_schema");
  if (outer == nullptr) return nullptr;
  for (const std::string_view name : {"schema", "json_schema"}) {
    if (const JsonValue* inner = find(*outer, name); inner != nullptr) return inner;
  }
  return outer;
}

Status ReadResponseFormat(const OptionReader& reader, ChatRequest& request) {
  const Field field = reader.Get("response_format");
  if (field.value == nullptr) return OkStatus();
  const JsonValue* type =
      field.value->string() != nullptr ? field.value : field.value->Find("type");
  const std::string* name = type == nullptr ? nullptr : type->string();
  if (name == nullptr || (*name != "text" && *name != "json_object" && *name != "json_schema")) {
    return Fail(field, "the type text, json_object or json_schema");
  }
  if (*name == "text") return OkStatus();
  if (*name == "json_object") {
    request.response_format = ResponseFormat::kJsonObject;
    return OkStatus();
  }
  request.response_format = ResponseFormat::kJsonSchema;
  const JsonValue* found = reader.Get("response_schema").value;
  if (found == nullptr) found = FindSchema(*field.value);
  if (found == nullptr) {
    return InvalidArgument(fmt::format(
        "{}: json_schema needs a schema: expected json_schema.schema or response_schema, found "
        "neither",
        field.path));
  }
  request.response_schema = *found;
  return OkStatus();
}

}  // namespace

Result<ChatRequest> ParseChatRequest(const JsonValue& json, std::string_view where) {
  if (json.members() == nullptr) {
    return InvalidArgument(
        fmt::format("{}: expected an object with messages, found {}", where, json.Describe()));
  }
  const OptionReader reader(json, where);
  K3_RETURN_IF_ERROR(reader.CheckTemplateFields());
  ChatRequest request;
  const JsonValue* messages = json.Find("messages");
  K3_TRY(request.messages, ParseChatMessages(messages == nullptr ? JsonValue() : *messages,
                                             fmt::format("{}: messages", where)));
  if (const JsonValue* tools = json.Find("tools"); tools != nullptr) {
    K3_RETURN_IF_ERROR(CheckTools(*tools, fmt::format("{}: tools", where)));
    request.tools = *tools;
  }
  if (const JsonValue* old = json.Find("functions"); old != nullptr && !old->is_null()) {
    return InvalidArgument(fmt::format("{}: functions: expected tools in its place, found {}",
                                       where, old->Describe()));
  }
  K3_RETURN_IF_ERROR(ReadThinking(reader.Get("thinking"), request.thinking));
  K3_RETURN_IF_ERROR(ReadEffort(reader, request));
  K3_RETURN_IF_ERROR(ReadToolChoice(reader.Get("tool_choice"), request));
  K3_RETURN_IF_ERROR(ReadResponseFormat(reader, request));
  K3_RETURN_IF_ERROR(ReadBool(reader.Get("add_generation_prompt"), request.add_generation_prompt));
  return request;
}

}  // namespace k3
