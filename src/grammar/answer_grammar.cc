#include "grammar/answer_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/limits.h"
#include "grammar/answer_rules.h"
#include "text/xtml_tag.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

constexpr std::array<JsonType, 6> kTypes = {JsonType::kString,  JsonType::kNumber,
                                            JsonType::kBoolean, JsonType::kNull,
                                            JsonType::kObject,  JsonType::kArray};

/// Markup in the ids of the renderer, which encodes every part alone.
class MarkupWriter {
 public:
  explicit MarkupWriter(const TokenVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  MarkupWriter& Marker(int32_t id) {
    ids_.push_back(id);
    return *this;
  }
  MarkupWriter& Text(std::string_view text) {
    const Ids ids = vocabulary_.Encode(text);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    return *this;
  }
  /// ` key="value`, without the quotation mark that ends it.
  MarkupWriter& Attribute(std::string_view key, std::string_view value) {
    return Text(fmt::format(" {}", key)).Text("=\"").Text(EscapeXtmlAttribute(value));
  }
  Ids Take() { return std::exchange(ids_, {}); }

  Ids OpenTag(std::string_view name) {
    return Marker(vocabulary_.markers().open).Text(name).Marker(vocabulary_.markers().sep).Take();
  }
  Ids CloseTag(std::string_view name) {
    return Marker(vocabulary_.markers().close).Text(name).Marker(vocabulary_.markers().sep).Take();
  }

 private:
  const TokenVocabulary& vocabulary_;
  Ids ids_;
};

void WriteMarkup(AnswerRules& rules) {
  const XtmlMarkers& markers = rules.vocabulary->markers();
  MarkupWriter writer(*rules.vocabulary);
  rules.close_think = writer.CloseTag("think");
  rules.open_response = writer.OpenTag("response");
  rules.close_response = writer.CloseTag("response");
  rules.open_tools = writer.OpenTag("tools");
  rules.close_tools = writer.CloseTag("tools");
  rules.close_call = writer.CloseTag("call");
  rules.close_argument = writer.CloseTag("argument");
  rules.end_message = writer.CloseTag("message");
  rules.end_message.push_back(markers.end_of_message);
  rules.call_end = writer.Text("\"").Marker(markers.sep).Take();
  rules.free_start = writer.Marker(markers.open).Text("argument").Attribute("key", "").Take();
  for (const JsonType type : kTypes) {
    writer.Text("\"").Attribute("type", JsonTypeName(type)).Text("\"").Marker(markers.sep);
    rules.free_argument.openings.push_back({type, writer.Take()});
  }
}

ToolArgument MakeArgument(const TokenVocabulary& vocabulary, const JsonGrammar& grammar,
                          const JsonMember& member) {
  ToolArgument argument = {.node = member.node, .is_required = member.is_required};
  const XtmlMarkers& markers = vocabulary.markers();
  MarkupWriter writer(vocabulary);
  for (const JsonType type : kTypes) {
    if (!grammar.HasType(member.node, type, kArgumentDepth)) continue;
    writer.Marker(markers.open).Text("argument").Attribute("key", member.name).Text("\"");
    writer.Attribute("type", JsonTypeName(type)).Text("\"").Marker(markers.sep);
    argument.openings.push_back({type, writer.Take()});
  }
  return argument;
}

Result<JsonGrammar> CompileParameters(const JsonValue& function, const std::string& path) {
  const JsonValue* parameters = function.Find("parameters");
  const JsonValue* strict = function.Find("strict");
  const bool is_strict = strict != nullptr && strict->boolean() != nullptr && *strict->boolean();
  const JsonGrammarOptions options = {.path = path + ".parameters", .is_relaxed = !is_strict};
  // Without parameters, a tool takes none.
  const JsonValue none(JsonValue::Members{{"type", JsonValue(std::string("object"))},
                                          {"additionalProperties", JsonValue(false)}});
  const bool has_none = parameters == nullptr || parameters->is_null();
  return JsonGrammar::Compile(has_none ? none : *parameters, options);
}

Result<ToolRules> CompileTool(const TokenVocabulary& vocabulary, const JsonValue& tool,
                              const std::string& path) {
  const JsonValue* function = tool.Find("function");
  if (function == nullptr || function->members() == nullptr) {
    return InvalidArgument(fmt::format("{}.function: expected an object, found {}", path,
                                       function == nullptr ? "none" : function->Describe()));
  }
  const JsonValue* name = function->Find("name");
  if (name == nullptr || name->string() == nullptr || name->string()->empty()) {
    return InvalidArgument(fmt::format("{}.function.name: expected a name, found {}", path,
                                       name == nullptr ? "none" : name->Describe()));
  }
  K3_TRY(JsonGrammar grammar, CompileParameters(*function, path + ".function"));
  const JsonForm* object = nullptr;
  for (const int32_t at : grammar.node(grammar.root()).forms) {
    if (grammar.form(at).kind != JsonForm::Kind::kObject) continue;
    if (object != nullptr) {
      return InvalidArgument(
          fmt::format("{}.function.parameters: expected one schema of an object, found a choice of "
                      "several",
                      path));
    }
    object = &grammar.form(at);
  }
  if (object == nullptr || object->height > limits::kJsonDepthMax) {
    return InvalidArgument(fmt::format(
        "{}.function.parameters: expected the schema of an object, found another type", path));
  }
  ToolRules rules = {.name = *name->string(), .grammar = std::move(grammar)};
  for (const JsonMember& member : object->members) {
    rules.arguments.push_back(MakeArgument(vocabulary, rules.grammar, member));
  }
  // `"properties": {}` and `{}` are how a tool without arguments is written.
  const JsonValue* parameters = function->Find("parameters");
  const bool names_others =
      parameters != nullptr &&
      (parameters->Find("additionalProperties") != nullptr ||
       (parameters->Find("type") != nullptr && parameters->Find("properties") == nullptr));
  const bool may_be_free = object->members.empty() && object->rest >= 0 && names_others;
  for (const JsonType type : kTypes) {
    if (may_be_free && rules.grammar.HasType(object->rest, type, kArgumentDepth)) {
      rules.free_node = object->rest;
    }
  }
  MarkupWriter writer(vocabulary);
  writer.Marker(vocabulary.markers().open).Text("call").Attribute("tool", rules.name).Text("\"");
  rules.call_start = writer.Attribute("index", "").Take();
  return rules;
}

/// All tools that the request declares, also in later system messages; the first of a name counts.
Status AddTools(const ChatRequest& request, const AnswerGrammarOptions& options,
                AnswerRules& rules) {
  std::vector<std::pair<const JsonValue*, std::string>> lists = {
      {&request.tools, options.tools_path}};
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].tools.has_value()) continue;
    lists.emplace_back(&*request.messages[i].tools, fmt::format("messages[{}].tools", i));
  }
  for (const auto& [list, path] : lists) {
    if (list->items() == nullptr) continue;
    for (size_t i = 0; i < list->items()->size(); ++i) {
      K3_TRY(ToolRules tool,
             CompileTool(*rules.vocabulary, (*list->items())[i], fmt::format("{}[{}]", path, i)));
      if (request.tool_choice == ToolChoice::kNamed && tool.name != request.tool_choice_name) {
        continue;
      }
      const bool is_known = std::ranges::any_of(
          rules.tools, [&](const ToolRules& other) { return other.name == tool.name; });
      if (!is_known) rules.tools.push_back(std::move(tool));
    }
  }
  return OkStatus();
}

Status SetCalls(const ChatRequest& request, const AnswerGrammarOptions& options,
                AnswerRules& rules) {
  if (request.tool_choice == ToolChoice::kNone) return OkStatus();
  K3_RETURN_IF_ERROR(AddTools(request, options, rules));
  if (request.tool_choice != ToolChoice::kAuto) {
    if (rules.tools.empty()) {
      return InvalidArgument(
          request.tool_choice == ToolChoice::kNamed
              ? fmt::format("tool_choice: expected the name of a tool in tools, found {}",
                            QuoteForMessage(request.tool_choice_name))
              : "tool_choice: required, but the request declares no tools");
    }
    rules.calls_min = 1;
  }
  if (!rules.tools.empty()) {
    rules.calls_max = options.parallel_tool_calls ? limits::kToolCallsMax : 1;
  }
  return OkStatus();
}

}  // namespace

Result<AnswerGrammarPtr> AnswerGrammar::Compile(const TokenVocabulary& vocabulary,
                                                const ChatRequest& request,
                                                const AnswerGrammarOptions& options) {
  // The constraints share it: see AnswerGrammarPtr.
  auto rules = std::make_shared<AnswerRules>();
  rules->vocabulary = &vocabulary;
  rules->start = request.thinking ? XtmlChannel::kThink : XtmlChannel::kResponse;
  if (request.response_format == ResponseFormat::kJsonObject) {
    rules->content = JsonGrammar::AnyObject();
  } else if (request.response_format == ResponseFormat::kJsonSchema) {
    K3_TRY(rules->content,
           JsonGrammar::Compile(request.response_schema, {.path = options.schema_path}));
  }
  K3_RETURN_IF_ERROR(SetCalls(request, options, *rules));
  rules->is_strict = rules->content.has_value() || rules->calls_min > 0;
  WriteMarkup(*rules);
  return AnswerGrammarPtr(std::move(rules));
}

}  // namespace k3
