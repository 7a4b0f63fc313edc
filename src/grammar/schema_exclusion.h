#pragma once
// SchemaExclusion: whether two schemas of one grammar surely have no value in common, which is what
// the branches of a oneOf need.
//
//   SchemaExclusion exclusion(grammar);
//   if (!exclusion.Exclude(node, other)) ...   // they may share a value
//   if (exclusion.is_exhausted()) ...          // what was said last counts for nothing
//
// It knows types, fixed values and required properties with fixed values. Values are compared as
// JSON Schema does: 1 and 1.0 are one number, the order of an object's members says nothing. Pairs
// are remembered and the work is counted, so that schemas which refer to the same long enums over
// and over cost no more than kComparisonsMax. It borrows the grammar, whose nodes are flat by then;
// one thread.
// Source: JSON Schema 2020-12, Core 4.2.2.

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/json_grammar.h"

namespace k3 {

class SchemaExclusion {
 public:
  /// Pairs of branches, of names and of values that are looked at for one schema: well below a
  /// second of work.
  static constexpr int64_t kComparisonsMax = 1'000'000;

  explicit SchemaExclusion(const JsonGrammar& grammar) : grammar_(grammar) {}

  /// Whether surely no value satisfies both nodes.
  bool Exclude(int32_t a, int32_t b);
  /// More comparisons were needed than there may be.
  bool is_exhausted() const { return comparisons_count_ > kComparisonsMax; }

 private:
  using Values = std::vector<int32_t>;

  bool FormsExclude(int32_t a, int32_t b);
  bool ObjectsExclude(const JsonForm& a, const JsonForm& b);
  bool ShareNone(int32_t a, int32_t b);
  bool IsFixed(int32_t node) const;
  const Values& ValuesOf(int32_t form);

  const JsonGrammar& grammar_;
  std::map<std::pair<int32_t, int32_t>, bool> known_;  // by two forms, the lower first
  std::unordered_map<int32_t, Values> values_;         // by form: numbers of its values, ascending
  std::unordered_map<std::string, int32_t> numbers_;   // of all values met, by their one spelling
  int64_t comparisons_count_ = 0;
};

}  // namespace k3
