#pragma once
// FieldReader: takes typed, range-checked fields out of one JSON object and remembers which names
// it was asked for, so that the rest can be reported as unknown. The first failure is kept in a
// Status shared by all readers of a file, later ones are dropped: a parser reads all fields plainly
// and looks at the Status before it relies on them. A failed read gives the smallest value allowed.
//
//   Status failure;
//   FieldReader reader(root, "config.json", "", &failure);
//   config.layers = reader.Integer("num_hidden_layers", {1, limits::kLayersCountMax});
//   K3_RETURN_IF_ERROR(failure);
//
// Does not own the object or the Status. One thread. Failures are InvalidArgument and say file,
// field, expected and found.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/json.h"

namespace k3 {

/// Both ends are allowed.
struct IntegerRange {
  int64_t min = 0;
  int64_t max = 0;
};

/// A finite number above `above` (at least, when `inclusive`) and at most `max`.
struct FloatRange {
  double above = 0;
  double max = 0;
  bool inclusive = false;
};

class FieldReader {
 public:
  /// `path` is what stands before a field's name in messages, such as "text_config.".
  FieldReader(const JsonValue& object, std::string_view where, std::string path, Status* failure)
      : object_(&object), where_(where), path_(std::move(path)), failure_(failure) {}

  /// The value, or null when the field is absent or null. Marks the name as known.
  const JsonValue* Get(std::string_view name);
  /// Marks names as known that need no check.
  void Ignore(std::initializer_list<std::string_view> names);

  int64_t Integer(std::string_view name, IntegerRange range);
  /// `fallback` when absent or null.
  int64_t IntegerOr(std::string_view name, int64_t fallback, IntegerRange range);
  std::optional<int64_t> OptionalInteger(std::string_view name, IntegerRange range);
  float Float(std::string_view name, FloatRange range);
  std::optional<float> OptionalFloat(std::string_view name, FloatRange range);
  bool Bool(std::string_view name);
  bool BoolOr(std::string_view name, bool fallback);
  /// Fails unless the field is one of `allowed`; absent or null is fine when `optional`.
  void ExpectString(std::string_view name, std::initializer_list<std::string_view> allowed,
                    bool optional);
  /// One integer or an array of integers. Empty when absent or null.
  std::vector<int64_t> IntegerList(std::string_view name, IntegerRange range, int64_t count_max);
  /// The object, or null when absent or null; another kind fails.
  const JsonValue* Object(std::string_view name);

  /// Records "<where>: <path><name>: expected <expected>, found <found>" unless one is recorded.
  void Fail(std::string_view name, std::string_view expected, std::string_view found);

  /// Fields of the object nobody asked for, with their path.
  std::vector<std::string> UnknownFields() const;
  const std::string& path() const { return path_; }

 private:
  const JsonValue* object_;
  std::string_view where_;
  std::string path_;
  Status* failure_;
  std::vector<std::string> known_;
};

}  // namespace k3
