#include "grammar/json_grammar.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/limits.h"
#include "grammar/schema_compiler.h"

namespace k3 {

std::string_view JsonTypeName(JsonType type) {
  constexpr std::array<std::string_view, 6> kNames = {"null",   "boolean", "number",
                                                      "string", "object",  "array"};
  return kNames[static_cast<size_t>(type)];
}

Result<JsonGrammar> JsonGrammar::Compile(const JsonValue& schema,
                                         const JsonGrammarOptions& options) {
  return SchemaCompiler(schema, options).Compile();
}

JsonGrammar JsonGrammar::AnyObject() {
  JsonValue schema(JsonValue::Members{{"type", JsonValue(std::string("object"))}});
  Result<JsonGrammar> grammar = Compile(schema, {});
  K3_CHECK(grammar.ok(), "any object is a schema");
  return std::move(grammar).value();
}

bool JsonGrammar::HasType(int32_t index, JsonType type, int32_t depth) const {
  return std::ranges::any_of(node(index).forms, [&](int32_t at) {
    return form(at).type == type && form(at).height + depth <= limits::kJsonDepthMax;
  });
}

}  // namespace k3
