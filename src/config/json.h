#pragma once
// JsonValue and ParseJson: small JSON files (configurations, tokenizer settings) as a tree, with
// the checks that a plain parser leaves out: a key that stands twice in one object, nesting beyond
// limits::kJsonDepthMax, invalid UTF-8 and numbers beyond double are failures with their place.
//
//   K3_TRY(JsonValue root, ParseJson(text, "config.json"));
//   const JsonValue* size = root.Find("hidden_size");
//
// A value owns its children; plain values, any thread. Not for shard headers or indexes, whose
// half a million names would make a large tree: those go through their own streaming parsers.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace k3 {

/// An integer beyond int64, as it was written: an optional minus sign and digits.
struct JsonBigInteger {
  std::string digits;
};

class JsonValue {
 public:
  using Items = std::vector<JsonValue>;
  /// In the order of the file; no name stands twice.
  using Members = std::vector<std::pair<std::string, JsonValue>>;

  JsonValue() = default;  // null
  explicit JsonValue(bool value) : value_(value) {}
  explicit JsonValue(int64_t value) : value_(value) {}
  explicit JsonValue(double value) : value_(value) {}
  explicit JsonValue(JsonBigInteger value) : value_(std::move(value)) {}
  explicit JsonValue(std::string value) : value_(std::move(value)) {}
  explicit JsonValue(Items items) : value_(std::move(items)) {}
  explicit JsonValue(Members members) : value_(std::move(members)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

  // The value as one kind; null when it is of another.
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* fraction() const { return std::get_if<double>(&value_); }
  const JsonBigInteger* big_integer() const { return std::get_if<JsonBigInteger>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Items* items() const { return std::get_if<Items>(&value_); }
  const Members* members() const { return std::get_if<Members>(&value_); }
  Items* items() { return std::get_if<Items>(&value_); }
  Members* members() { return std::get_if<Members>(&value_); }
  /// An integer of any size or a fraction, as double.
  std::optional<double> number() const;

  /// The member of that name; null when there is none or this is no object.
  const JsonValue* Find(std::string_view name) const;

  /// What a message calls this value: null, 3, "silu", an array of 4.
  std::string Describe() const;

 private:
  std::variant<std::monostate, bool, int64_t, double, JsonBigInteger, std::string, Items, Members>
      value_;
};

/// How DumpJson lays a value out. The defaults are those of Python's json.dumps.
struct JsonStyle {
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
  bool sort_keys = false;  // by code point, at every level
};

/// JSON text as Python's json.dumps(value, ensure_ascii=False) writes it: only `"`, `\` and
/// control characters are escaped, fractions are the shortest decimal that reads back (1e5 is
/// 100000.0), integers exact. Infinity and NaN have Python's names, which are no JSON. Strings must
/// be UTF-8.
std::string DumpJson(const JsonValue& value, const JsonStyle& style = {});

/// Parses one whole document. Failures are InvalidArgument and name `where` and the place.
Result<JsonValue> ParseJson(std::string_view text, std::string_view where);

/// `text` fit for a message: quoted, everything but printable ASCII replaced, cut after 100 bytes.
std::string QuoteForMessage(std::string_view text);

}  // namespace k3
