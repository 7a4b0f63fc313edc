#pragma once
// JsonGrammar: the JSON texts that a schema allows, compiled for JsonState to walk.
//
//   K3_TRY(JsonGrammar grammar, JsonGrammar::Compile(schema, {.path = "response_format.schema"}));
//   JsonState state(grammar);
//
// A node is a schema, a form one way in which a value of it may look; a node with several forms is
// an anyOf, a list of types or an enum. Everything that can be generated satisfies the schema and
// is read by ParseJson; the reverse does not hold: numbers have few digits, blanks are bounded
// (json_state.h), fixed values are written as DumpJson writes them.
//
// What is supported: type, enum, const, anyOf, oneOf whose branches exclude each other, allOf of
// one, $ref to #, #/$defs/... and #/definitions/..., properties, required, additionalProperties,
// items, prefixItems, minItems, maxItems, minLength, maxLength, and annotations, which are ignored.
// Any other keyword is InvalidArgument with its path, or is left out when the options say so; a
// schema that no value satisfies is InvalidArgument. Immutable, any thread; memory and the time to
// compile follow the schema's length, within limits::kSchemaNodesMax, kSchemaValueBytesMax and
// kSchemaFormsMax, and SchemaExclusion::kComparisonsMax for its oneOf.
// Source: JSON Schema 2020-12.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/json.h"

namespace k3 {

/// The types of JSON, which are also those of XTML's arguments.
enum class JsonType : uint8_t { kNull, kBoolean, kNumber, kString, kObject, kArray };

std::string_view JsonTypeName(JsonType type);

struct JsonMember {
  std::string name;
  std::string text;  // the name as it is written, with its quotes
  int32_t node = 0;
  bool is_required = false;
};

struct JsonForm {
  enum class Kind : uint8_t { kLiterals, kString, kNumber, kInteger, kObject, kArray };

  Kind kind = Kind::kLiterals;
  JsonType type = JsonType::kNull;
  /// Levels of nesting that a value needs at least; kNever when there is none.
  int32_t height = 0;

  std::vector<std::string> literals;      // kLiterals: texts of JSON, ascending, none twice
  std::vector<std::string> raw_literals;  // kLiterals of strings: their contents, ascending

  int64_t count_min = 0;  // kString: code points; kArray: items
  int64_t count_max = std::numeric_limits<int64_t>::max();

  std::vector<JsonMember> members;  // kObject, ascending by text
  std::vector<int32_t> by_name;     // kObject: indices of `members`, ascending by name
  std::vector<int32_t> prefix;      // kArray: nodes of the first items
  int32_t rest = -1;                // node of every other member or item; -1: none may be
};

struct JsonNode {
  std::vector<int32_t> forms;
  int32_t height = 0;  // of its lowest form
};

struct JsonGrammarOptions {
  /// What messages call the schema.
  std::string path = "schema";
  /// Leaves out what is not supported, so that more is allowed than the schema says.
  bool is_relaxed = false;
};

class JsonGrammar {
 public:
  static constexpr int32_t kNever = 1 << 20;

  static Result<JsonGrammar> Compile(const JsonValue& schema, const JsonGrammarOptions& options);

  /// Any object.
  static JsonGrammar AnyObject();

  int32_t root() const { return root_; }
  const JsonNode& node(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
  const JsonForm& form(int32_t index) const { return forms_[static_cast<size_t>(index)]; }

  /// Whether a node has a value of that type that fits inside `depth` containers.
  bool HasType(int32_t node, JsonType type, int32_t depth) const;

 private:
  friend class SchemaCompiler;
  JsonGrammar() = default;

  std::vector<JsonNode> nodes_;
  std::vector<JsonForm> forms_;
  int32_t root_ = 0;
};

}  // namespace k3
