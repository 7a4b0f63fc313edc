#include "grammar/schema_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/limits.h"

namespace k3 {
namespace {

using Kind = JsonForm::Kind;

constexpr int32_t kAnything = 0;  // the node of any value

constexpr std::array<std::string_view, 12> kAnnotations = {
    "title",    "description", "default",  "examples",  "$schema", "$id",
    "$comment", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions"};

constexpr std::array<std::string_view, 16> kSupported = {
    "type",        "enum",     "const",      "anyOf",    "oneOf",    "allOf",
    "$ref",        "required", "properties", "items",    "minItems", "additionalProperties",
    "prefixItems", "maxItems", "minLength",  "maxLength"};

bool IsAnnotation(std::string_view keyword) {
  return std::ranges::find(kAnnotations, keyword) != kAnnotations.end();
}

JsonType TypeOf(const JsonValue& value) {
  if (value.is_null()) return JsonType::kNull;
  if (value.boolean() != nullptr) return JsonType::kBoolean;
  if (value.string() != nullptr) return JsonType::kString;
  if (value.members() != nullptr) return JsonType::kObject;
  if (value.items() != nullptr) return JsonType::kArray;
  return JsonType::kNumber;
}

/// 10.0 is the integer 10 to JSON Schema.
bool IsWhole(double fraction) { return std::trunc(fraction) == fraction; }

bool FitsType(const JsonValue& value, const std::set<std::string>& types) {
  const JsonType type = TypeOf(value);
  if (types.contains(std::string(JsonTypeName(type)))) return true;
  const bool is_integer = value.integer() != nullptr || value.big_integer() != nullptr ||
                          (value.fraction() != nullptr && IsWhole(*value.fraction()));
  return is_integer && types.contains("integer");
}

int32_t NestingOf(const JsonValue& value) {
  int32_t inside = 0;
  if (value.members() != nullptr) {
    for (const auto& [name, member] : *value.members()) {
      inside = std::max(inside, NestingOf(member));
    }
    return inside + 1;
  }
  if (value.items() != nullptr) {
    for (const JsonValue& item : *value.items()) inside = std::max(inside, NestingOf(item));
    return inside + 1;
  }
  return 0;
}

/// A name in a path, cut where it is long: every schema below it has a path of its own.
std::string_view PathPart(std::string_view name) {
  constexpr size_t kShownBytesMax = 100;
  return name.substr(0, kShownBytesMax);
}

/// Whether a relaxed grammar goes by what stands beside $ref, anyOf, oneOf or allOf instead.
bool IsLeftOut(const JsonValue& schema, std::string_view keyword, const JsonValue& value) {
  if (keyword == "allOf" && value.items() != nullptr && value.items()->size() != 1) return true;
  return schema.Find("type") != nullptr || schema.Find("properties") != nullptr;
}

void SortUnique(std::vector<std::string>& texts) {
  std::ranges::sort(texts);
  const auto repeated = std::ranges::unique(texts);
  texts.erase(repeated.begin(), repeated.end());
}

}  // namespace

SchemaCompiler::SchemaCompiler(const JsonValue& schema, const JsonGrammarOptions& options)
    : schema_(schema), options_(options) {}

Result<JsonGrammar> SchemaCompiler::Compile() {
  AddAnything();
  grammar_.root_ = NodeOf(schema_, options_.path);
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    K3_RETURN_IF_ERROR(Fill(task));
    if (std::ssize(grammar_.nodes_) > limits::kSchemaNodesMax) {
      return InvalidArgument(fmt::format("{}: expected at most {} schemas in one, found more",
                                         options_.path, limits::kSchemaNodesMax));
    }
  }
  K3_RETURN_IF_ERROR(Flatten());
  FindHeights();
  K3_RETURN_IF_ERROR(CheckChoices());
  if (grammar_.node(grammar_.root_).height > limits::kJsonDepthMax) {
    return InvalidArgument(
        fmt::format("{}: no value within {} levels of nesting satisfies this schema", options_.path,
                    limits::kJsonDepthMax));
  }
  return std::move(grammar_);
}

int32_t SchemaCompiler::NewNode() {
  grammar_.nodes_.emplace_back();
  branches_.emplace_back();
  return static_cast<int32_t>(grammar_.nodes_.size()) - 1;
}

/// The node of a schema, which is compiled later if it is new.
int32_t SchemaCompiler::NodeOf(const JsonValue& schema, const std::string& path) {
  const auto [entry, is_new] = known_.try_emplace(&schema, 0);
  if (is_new) {
    entry->second = NewNode();
    tasks_.push_back({&schema, path, entry->second});
  }
  return entry->second;
}

void SchemaCompiler::AddForm(int32_t node, JsonForm form) {
  std::ranges::sort(form.members, {}, &JsonMember::text);
  for (int32_t i = 0; i < std::ssize(form.members); ++i) form.by_name.push_back(i);
  std::ranges::sort(form.by_name, {}, [&](int32_t i) -> const std::string& {
    return form.members[static_cast<size_t>(i)].name;
  });
  grammar_.nodes_[static_cast<size_t>(node)].forms.push_back(
      static_cast<int32_t>(grammar_.forms_.size()));
  grammar_.forms_.push_back(std::move(form));
}

void SchemaCompiler::AddAnything() {
  const int32_t node = NewNode();
  AddForm(node, {.kind = Kind::kLiterals, .type = JsonType::kNull, .literals = {"null"}});
  AddForm(node,
          {.kind = Kind::kLiterals, .type = JsonType::kBoolean, .literals = {"false", "true"}});
  AddForm(node, {.kind = Kind::kNumber, .type = JsonType::kNumber});
  AddForm(node, {.kind = Kind::kString, .type = JsonType::kString});
  AddForm(node, {.kind = Kind::kObject, .type = JsonType::kObject, .rest = node});
  AddForm(node, {.kind = Kind::kArray, .type = JsonType::kArray, .rest = node});
}

Status SchemaCompiler::Refuse(const std::string& path, std::string_view why) const {
  return InvalidArgument(fmt::format("{}: {}", path, why));
}

Status SchemaCompiler::SpendBytes(size_t bytes, const std::string& path) {
  bytes_count_ += bytes;
  if (static_cast<int64_t>(bytes_count_) <= limits::kSchemaValueBytesMax) return OkStatus();
  return Refuse(path, fmt::format("expected at most {} bytes of names and values in one schema, "
                                  "found more",
                                  limits::kSchemaValueBytesMax));
}

Status SchemaCompiler::Fill(const Task& task) {
  const JsonValue& schema = *task.schema;
  if (const bool* anything = schema.boolean(); anything != nullptr) {
    if (*anything) branches_[static_cast<size_t>(task.node)].push_back(kAnything);
    return OkStatus();
  }
  if (schema.members() == nullptr) {
    return Refuse(task.path, fmt::format("expected a schema: an object, true or false, found {}",
                                         schema.Describe()));
  }
  K3_RETURN_IF_ERROR(CheckKeywords(task));
  for (const std::string_view keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
    const JsonValue* value = schema.Find(keyword);
    if (value == nullptr) continue;
    if (options_.is_relaxed && IsLeftOut(schema, keyword, *value)) continue;
    K3_RETURN_IF_ERROR(CheckAlone(task, keyword));
    return keyword == "$ref" ? FillReference(task, *value) : FillBranches(task, keyword, *value);
  }
  if (const JsonValue* values = schema.Find("enum"); values != nullptr) {
    return FillFixed(task, *values, task.path + ".enum");
  }
  if (const JsonValue* value = schema.Find("const"); value != nullptr) {
    return FillFixed(task, JsonValue(JsonValue::Items{*value}), task.path + ".const");
  }
  K3_TRY(const std::set<std::string> types, ReadTypes(task));
  return FillTypes(task, types);
}

Status SchemaCompiler::CheckKeywords(const Task& task) const {
  if (options_.is_relaxed) return OkStatus();
  for (const auto& [keyword, value] : *task.schema->members()) {
    if (IsAnnotation(keyword)) continue;
    if (std::ranges::find(kSupported, keyword) != kSupported.end()) continue;
    if (keyword == "uniqueItems" && value.boolean() != nullptr && !*value.boolean()) continue;
    return Refuse(fmt::format("{}.{}", task.path, PathPart(keyword)),
                  "not supported in a schema that constrains the answer; leave it out");
  }
  return OkStatus();
}

/// What stands beside $ref, anyOf and the like would have to hold as well.
Status SchemaCompiler::CheckAlone(const Task& task, std::string_view keyword) const {
  if (options_.is_relaxed) return OkStatus();
  for (const auto& [other, value] : *task.schema->members()) {
    if (other == keyword || IsAnnotation(other)) continue;
    return Refuse(fmt::format("{}.{}", task.path, other),
                  fmt::format("not supported beside {}; move it into the branches", keyword));
  }
  return OkStatus();
}

/// What #, #/$defs/NAME or #/definitions/NAME refers to; null when it is not there.
const JsonValue* SchemaCompiler::FindDefinition(std::string_view reference) {
  if (reference == "#") return &schema_;
  if (!definitions_.has_value()) {
    definitions_.emplace();
    for (const std::string_view place : {"$defs", "definitions"}) {
      const JsonValue* definitions = schema_.Find(place);
      if (definitions == nullptr || definitions->members() == nullptr) continue;
      for (const auto& [name, schema] : *definitions->members()) {
        definitions_->emplace(fmt::format("#/{}/{}", place, name), &schema);
      }
    }
  }
  const auto found = definitions_->find(reference);
  return found == definitions_->end() ? nullptr : found->second;
}

Status SchemaCompiler::FillReference(const Task& task, const JsonValue& reference) {
  const std::string path = task.path + ".$ref";
  const auto add_branch = [&](int32_t node) {
    branches_[static_cast<size_t>(task.node)].push_back(node);
  };
  if (reference.string() == nullptr) {
    return Refuse(path, fmt::format("expected a string, found {}", reference.Describe()));
  }
  const std::string_view text = *reference.string();
  if (const JsonValue* target = FindDefinition(text); target != nullptr) {
    std::string target_path = options_.path;
    if (text != "#") target_path += fmt::format(".{}", PathPart(text.substr(2)));
    std::ranges::replace(target_path, '/', '.');
    add_branch(NodeOf(*target, target_path));
    return OkStatus();
  }
  if (options_.is_relaxed) {
    add_branch(kAnything);
    return OkStatus();
  }
  return Refuse(path, fmt::format("expected #, #/$defs/NAME or #/definitions/NAME of a schema that "
                                  "is there, found {}",
                                  QuoteForMessage(text)));
}

Status SchemaCompiler::FillBranches(const Task& task, std::string_view keyword,
                                    const JsonValue& branches) {
  const std::string path = fmt::format("{}.{}", task.path, keyword);
  const JsonValue::Items* items = branches.items();
  if (items == nullptr || items->empty()) {
    return Refuse(path, fmt::format("expected an array of schemas, found {}", branches.Describe()));
  }
  if (keyword == "allOf" && items->size() != 1) {
    return Refuse(path, "more than one schema is not supported; merge them into one");
  }
  std::vector<int32_t> nodes;
  for (size_t i = 0; i < items->size(); ++i) {
    nodes.push_back(NodeOf((*items)[i], fmt::format("{}[{}]", path, i)));
  }
  if (keyword == "oneOf") choices_.push_back({path, nodes});
  branches_[static_cast<size_t>(task.node)] = std::move(nodes);
  return OkStatus();
}

/// `values` is an array of the only values that may be; a type beside it leaves some of them.
Status SchemaCompiler::FillFixed(const Task& task, const JsonValue& values,
                                 const std::string& path) {
  const JsonValue::Items* items = values.items();
  if (items == nullptr || items->empty()) {
    return Refuse(path, fmt::format("expected an array of values, found {}", values.Describe()));
  }
  for (const auto& [keyword, value] : *task.schema->members()) {
    if (options_.is_relaxed || keyword == "type" || IsAnnotation(keyword)) continue;
    if (path == fmt::format("{}.{}", task.path, keyword)) continue;
    return Refuse(fmt::format("{}.{}", task.path, keyword), "not supported beside enum or const");
  }
  const bool has_type = task.schema->Find("type") != nullptr;
  std::set<std::string> types;
  if (has_type) {
    K3_TRY(types, ReadTypes(task));
  }
  std::map<JsonType, JsonForm> forms;
  for (const JsonValue& value : *items) {
    if (has_type && !FitsType(value, types)) continue;
    const JsonType type = TypeOf(value);
    JsonForm& form = forms[type];
    form.type = type;
    form.literals.push_back(DumpJson(value));
    if (value.string() != nullptr) form.raw_literals.push_back(*value.string());
    form.height = std::max(form.height, NestingOf(value));
    K3_RETURN_IF_ERROR(SpendBytes(form.literals.back().size(), path));
  }
  for (auto& [type, form] : forms) {
    SortUnique(form.literals);
    SortUnique(form.raw_literals);
    AddForm(task.node, std::move(form));
  }
  return OkStatus();
}

/// The names in `type`, or those that the other keywords are for, or all.
Result<std::set<std::string>> SchemaCompiler::ReadTypes(const Task& task) const {
  static constexpr std::array<std::string_view, 7> kNames = {
      "null", "boolean", "integer", "number", "string", "object", "array"};
  std::set<std::string> types;
  const JsonValue* type = task.schema->Find("type");
  if (type == nullptr) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kHints = {
        {{"properties", "object"},
         {"required", "object"},
         {"additionalProperties", "object"},
         {"items", "array"},
         {"prefixItems", "array"},
         {"minItems", "array"},
         {"maxItems", "array"},
         {"minLength", "string"},
         {"maxLength", "string"}}};
    for (const auto& [keyword, name] : kHints) {
      if (task.schema->Find(keyword) != nullptr) types.emplace(name);
    }
    return types;
  }
  const JsonValue::Items one = {*type};
  for (const JsonValue& name : type->items() != nullptr ? *type->items() : one) {
    if (name.string() == nullptr || std::ranges::find(kNames, *name.string()) == kNames.end()) {
      return Refuse(task.path + ".type",
                    fmt::format("expected one of {} or an array of them, found {}",
                                fmt::join(kNames, ", "), name.Describe()));
    }
    types.insert(*name.string());
  }
  if (types.empty()) return Refuse(task.path + ".type", "expected a type, found none");
  return types;
}

Status SchemaCompiler::FillTypes(const Task& task, const std::set<std::string>& types) {
  const int32_t node = task.node;
  if (types.empty()) {
    branches_[static_cast<size_t>(node)].push_back(kAnything);
    return OkStatus();
  }
  if (types.contains("null")) {
    AddForm(node, {.kind = Kind::kLiterals, .type = JsonType::kNull, .literals = {"null"}});
  }
  if (types.contains("boolean")) {
    AddForm(node,
            {.kind = Kind::kLiterals, .type = JsonType::kBoolean, .literals = {"false", "true"}});
  }
  if (types.contains("number")) {
    AddForm(node, {.kind = Kind::kNumber, .type = JsonType::kNumber});
  } else if (types.contains("integer")) {
    AddForm(node, {.kind = Kind::kInteger, .type = JsonType::kNumber});
  }
  if (types.contains("string")) K3_RETURN_IF_ERROR(FillString(task));
  if (types.contains("array")) K3_RETURN_IF_ERROR(FillArray(task));
  if (types.contains("object")) K3_RETURN_IF_ERROR(FillObject(task));
  return OkStatus();
}

Result<std::optional<int64_t>> SchemaCompiler::ReadCount(const Task& task,
                                                         std::string_view keyword) const {
  const JsonValue* value = task.schema->Find(keyword);
  if (value == nullptr) return std::optional<int64_t>();
  constexpr double kExactEnd = 0x1p53;  // a larger one may have been another integer
  const double* fraction = value->fraction();
  if (fraction != nullptr && IsWhole(*fraction) && *fraction >= 0 && *fraction < kExactEnd) {
    return std::optional<int64_t>(static_cast<int64_t>(*fraction));
  }
  if (value->integer() == nullptr || *value->integer() < 0) {
    return Refuse(fmt::format("{}.{}", task.path, keyword),
                  fmt::format("expected an integer of at least 0, found {}", value->Describe()));
  }
  return std::optional<int64_t>(*value->integer());
}

Status SchemaCompiler::ReadCounts(const Task& task, std::string_view least, std::string_view most,
                                  JsonForm& form) const {
  K3_TRY(const std::optional<int64_t> count_min, ReadCount(task, least));
  K3_TRY(const std::optional<int64_t> count_max, ReadCount(task, most));
  form.count_min = count_min.value_or(form.count_min);
  form.count_max = count_max.value_or(form.count_max);
  return OkStatus();
}

Status SchemaCompiler::FillString(const Task& task) {
  JsonForm form = {.kind = Kind::kString, .type = JsonType::kString};
  K3_RETURN_IF_ERROR(ReadCounts(task, "minLength", "maxLength", form));
  AddForm(task.node, std::move(form));
  return OkStatus();
}

Status SchemaCompiler::FillArray(const Task& task) {
  JsonForm form = {.kind = Kind::kArray, .type = JsonType::kArray, .rest = kAnything};
  K3_RETURN_IF_ERROR(ReadCounts(task, "minItems", "maxItems", form));
  if (const JsonValue* prefix = task.schema->Find("prefixItems"); prefix != nullptr) {
    const std::string path = task.path + ".prefixItems";
    if (prefix->items() == nullptr) {
      return Refuse(path,
                    fmt::format("expected an array of schemas, found {}", prefix->Describe()));
    }
    for (size_t i = 0; i < prefix->items()->size(); ++i) {
      form.prefix.push_back(NodeOf((*prefix->items())[i], fmt::format("{}[{}]", path, i)));
    }
  }
  if (const JsonValue* items = task.schema->Find("items"); items != nullptr) {
    if (items->items() != nullptr && !options_.is_relaxed) {
      return Refuse(task.path + ".items",
                    "expected one schema, found an array; use prefixItems for a schema of each");
    }
    if (items->items() == nullptr) form.rest = NodeOf(*items, task.path + ".items");
  }
  AddForm(task.node, std::move(form));
  return OkStatus();
}

Status SchemaCompiler::FillObject(const Task& task) {
  JsonForm form = {.kind = Kind::kObject, .type = JsonType::kObject, .rest = kAnything};
  if (const JsonValue* rest = task.schema->Find("additionalProperties"); rest != nullptr) {
    const bool is_none = rest->boolean() != nullptr && !*rest->boolean();
    form.rest = is_none ? -1 : NodeOf(*rest, task.path + ".additionalProperties");
  }
  std::set<std::string> declared;
  if (const JsonValue* properties = task.schema->Find("properties"); properties != nullptr) {
    const std::string path = task.path + ".properties";
    if (properties->members() == nullptr) {
      return Refuse(path,
                    fmt::format("expected an object of schemas, found {}", properties->Describe()));
    }
    for (const auto& [name, schema] : *properties->members()) {
      K3_RETURN_IF_ERROR(SpendBytes(name.size(), path));
      form.members.push_back({.name = name,
                              .text = DumpJson(JsonValue(name)),
                              .node = NodeOf(schema, fmt::format("{}.{}", path, PathPart(name)))});
      declared.insert(name);
    }
  }
  K3_RETURN_IF_ERROR(ReadRequired(task, form, declared));
  AddForm(task.node, std::move(form));
  return OkStatus();
}

Status SchemaCompiler::ReadRequired(const Task& task, JsonForm& form,
                                    const std::set<std::string>& declared) {
  const JsonValue* required = task.schema->Find("required");
  if (required == nullptr) return OkStatus();
  const std::string path = task.path + ".required";
  if (required->items() == nullptr) {
    return Refuse(path, fmt::format("expected an array of names, found {}", required->Describe()));
  }
  std::set<std::string> names;
  for (const JsonValue& name : *required->items()) {
    if (name.string() == nullptr) {
      return Refuse(path, fmt::format("expected names, found {}", name.Describe()));
    }
    names.insert(*name.string());
  }
  for (JsonMember& member : form.members) member.is_required = names.contains(member.name);
  for (const std::string& name : names) {
    if (declared.contains(name)) continue;
    if (form.rest < 0) {
      if (options_.is_relaxed) continue;
      return Refuse(path, fmt::format("{} is not in properties, and additionalProperties is false",
                                      QuoteForMessage(name)));
    }
    K3_RETURN_IF_ERROR(SpendBytes(name.size(), path));
    form.members.push_back(
        {.name = name, .text = DumpJson(JsonValue(name)), .node = form.rest, .is_required = true});
  }
  return OkStatus();
}

}  // namespace k3
