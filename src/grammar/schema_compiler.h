#pragma once
// SchemaCompiler: a JSON schema as the nodes and forms of a JsonGrammar. What it supports and how
// it fails is said in json_grammar.h. It borrows the schema while it works; one thread, used once.
//
// Schemas are queued rather than compiled inside each other, so that neither a long chain of $ref
// nor one that goes round costs stack; each schema is one node, however often it is referred to.

#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/json.h"
#include "grammar/json_grammar.h"

namespace k3 {

class SchemaCompiler {
 public:
  SchemaCompiler(const JsonValue& schema, const JsonGrammarOptions& options);

  Result<JsonGrammar> Compile();

 private:
  struct Task {
    const JsonValue* schema;
    std::string path;
    int32_t node;
  };
  /// A oneOf, whose branches have to exclude each other.
  struct Choice {
    std::string path;
    std::vector<int32_t> nodes;
  };

  int32_t NewNode();
  int32_t NodeOf(const JsonValue& schema, const std::string& path);
  void AddForm(int32_t node, JsonForm form);
  void AddAnything();

  Status Fill(const Task& task);
  Status CheckKeywords(const Task& task) const;
  Status CheckAlone(const Task& task, std::string_view keyword) const;
  Status Refuse(const std::string& path, std::string_view why) const;
  Status SpendBytes(size_t bytes, const std::string& path);

  const JsonValue* FindDefinition(std::string_view reference);
  Status FillReference(const Task& task, const JsonValue& reference);
  Status FillBranches(const Task& task, std::string_view keyword, const JsonValue& branches);
  Status FillFixed(const Task& task, const JsonValue& values, const std::string& path);
  Status FillTypes(const Task& task, const std::set<std::string>& types);
  Result<std::set<std::string>> ReadTypes(const Task& task) const;
  Status FillString(const Task& task);
  Status FillArray(const Task& task);
  Status FillObject(const Task& task);
  Status ReadRequired(const Task& task, JsonForm& form, const std::set<std::string>& declared);
  Result<std::optional<int64_t>> ReadCount(const Task& task, std::string_view keyword) const;
  Status ReadCounts(const Task& task, std::string_view least, std::string_view most,
                    JsonForm& form) const;

  std::vector<size_t> FindTargets() const;
  Status Flatten();
  void FindHeights();
  int32_t HeightOf(const JsonForm& form) const;
  Status CheckChoices() const;
  Status RefuseChoice(const Choice& choice, size_t first, size_t second, bool is_exhausted) const;

  const JsonValue& schema_;
  const JsonGrammarOptions& options_;
  JsonGrammar grammar_;
  std::vector<std::vector<int32_t>> branches_;  // by node: nodes whose forms are its own too
  std::map<const JsonValue*, int32_t> known_;
  /// Every definition by its reference, once there is one: walking them for each would take long.
  std::optional<std::map<std::string, const JsonValue*, std::less<>>> definitions_;
  std::deque<Task> tasks_;
  std::vector<Choice> choices_;
  size_t bytes_count_ = 0;
};

}  // namespace k3
