#include "grammar/schema_exclusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/json.h"

namespace k3 {
namespace {

using Kind = JsonForm::Kind;

/// A number in one spelling: an integer where it is one that int64 holds, else the double, else the
/// digits of an integer that no double is.
JsonValue OneNumber(const JsonValue& value) {
  const std::optional<double> number = value.number();
  if (value.integer() != nullptr || !number.has_value()) return value;
  if (value.big_integer() != nullptr) {
    return fmt::format("{:.0f}", *number) == value.big_integer()->digits ? JsonValue(*number)
                                                                         : value;
  }
  constexpr double kInt64End = 0x1p63;
  const bool is_integer =
      std::trunc(*number) == *number && *number >= -kInt64End && *number < kInt64End;
  return is_integer ? JsonValue(static_cast<int64_t>(*number)) : value;
}

JsonValue OneSpelling(const JsonValue& value) {
  if (value.items() != nullptr) {
    JsonValue::Items items;
    for (const JsonValue& item : *value.items()) items.push_back(OneSpelling(item));
    return JsonValue(std::move(items));
  }
  if (value.members() != nullptr) {
    JsonValue::Members members;
    for (const auto& [name, member] : *value.members()) {
      members.emplace_back(name, OneSpelling(member));
    }
    return JsonValue(std::move(members));
  }
  return OneNumber(value);
}

/// The same text for texts of JSON that mean the same value.
std::string OneText(const JsonForm& form, const std::string& literal) {
  const bool has_spellings = form.type == JsonType::kNumber || form.type == JsonType::kObject ||
                             form.type == JsonType::kArray;
  if (!has_spellings) return literal;
  const Result<JsonValue> value = ParseJson(literal, "value");
  return value.ok() ? DumpJson(OneSpelling(*value), {.sort_keys = true}) : literal;
}

}  // namespace

bool SchemaExclusion::Exclude(int32_t a, int32_t b) {
  for (const int32_t form : grammar_.node(a).forms) {
    for (const int32_t other : grammar_.node(b).forms) {
      if (is_exhausted() || !FormsExclude(form, other)) return false;
    }
  }
  return true;
}

bool SchemaExclusion::FormsExclude(int32_t a, int32_t b) {
  ++comparisons_count_;
  const JsonForm& one = grammar_.form(a);
  const JsonForm& other = grammar_.form(b);
  if (one.type != other.type) return true;
  if (a == b || one.kind != other.kind) return false;
  if (one.kind != Kind::kLiterals && one.kind != Kind::kObject) return false;
  const std::pair<int32_t, int32_t> pair = std::minmax(a, b);
  if (const auto found = known_.find(pair); found != known_.end()) return found->second;
  const bool exclude = one.kind == Kind::kObject ? ObjectsExclude(one, other) : ShareNone(a, b);
  known_.emplace(pair, exclude);
  return exclude;
}

/// A property that both must have and that has other fixed values in each.
bool SchemaExclusion::ObjectsExclude(const JsonForm& a, const JsonForm& b) {
  const bool a_is_shorter = a.members.size() <= b.members.size();
  const std::vector<JsonMember>& few = a_is_shorter ? a.members : b.members;
  const std::vector<JsonMember>& many = a_is_shorter ? b.members : a.members;
  for (const JsonMember& member : few) {
    ++comparisons_count_;
    if (is_exhausted()) return false;
    if (!member.is_required || !IsFixed(member.node)) continue;
    const auto other = std::ranges::lower_bound(many, member.text, {}, &JsonMember::text);
    if (other == many.end() || other->text != member.text) continue;
    if (!other->is_required || !IsFixed(other->node)) continue;
    if (Exclude(member.node, other->node)) return true;
  }
  return false;
}

bool SchemaExclusion::IsFixed(int32_t node) const {
  return std::ranges::all_of(grammar_.node(node).forms, [&](int32_t form) {
    return grammar_.form(form).kind == Kind::kLiterals;
  });
}

bool SchemaExclusion::ShareNone(int32_t a, int32_t b) {
  const Values& one = ValuesOf(a);
  const Values& other = ValuesOf(b);
  const Values& few = one.size() <= other.size() ? one : other;
  const Values& many = one.size() <= other.size() ? other : one;
  comparisons_count_ += std::ssize(few);
  if (is_exhausted()) return false;
  return std::ranges::none_of(
      few, [&](int32_t value) { return std::ranges::binary_search(many, value); });
}

const SchemaExclusion::Values& SchemaExclusion::ValuesOf(int32_t form) {
  const auto [entry, is_new] = values_.try_emplace(form);
  if (!is_new) return entry->second;
  Values& values = entry->second;
  for (const std::string& literal : grammar_.form(form).literals) {
    const auto number = static_cast<int32_t>(numbers_.size());
    values.push_back(
        numbers_.try_emplace(OneText(grammar_.form(form), literal), number).first->second);
  }
  std::ranges::sort(values);
  return values;
}

}  // namespace k3
