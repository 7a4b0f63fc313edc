#include "config/field_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace k3 {
namespace {

constexpr std::string_view kNothing = "nothing";

std::string Describe(IntegerRange range) {
  if (range.min == range.max) return fmt::format("{}", range.min);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string Describe(FloatRange range) {
  return fmt::format("a number {} {} and at most {}", range.inclusive ? "from" : "above",
                     range.above, range.max);
}

bool Contains(IntegerRange range, int64_t value) {
  return value >= range.min && value <= range.max;
}

bool Contains(FloatRange range, double value) {
  if (!std::isfinite(value) || value > range.max) return false;
  return range.inclusive ? value >= range.above : value > range.above;
}

}  // namespace

const JsonValue* FieldReader::Get(std::string_view name) {
  known_.emplace_back(name);
  const JsonValue* value = object_->Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::Ignore(std::initializer_list<std::string_view> names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

std::optional<int64_t> FieldReader::OptionalInteger(std::string_view name, IntegerRange range) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->integer() == nullptr || !Contains(range, *value->integer())) {
    Fail(name, Describe(range), value->Describe());
    return range.min;
  }
  return *value->integer();
}

int64_t FieldReader::Integer(std::string_view name, IntegerRange range) {
  const std::optional<int64_t> value = OptionalInteger(name, range);
  if (!value.has_value()) Fail(name, Describe(range), kNothing);
  return value.value_or(range.min);
}

int64_t FieldReader::IntegerOr(std::string_view name, int64_t fallback, IntegerRange range) {
  return OptionalInteger(name, range).value_or(fallback);
}

std::optional<float> FieldReader::OptionalFloat(std::string_view name, FloatRange range) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->number();
  // A number that rounds to zero or infinity in float32 would slip past the range.
  const float rounded = static_cast<float>(number.value_or(0));
  if (!number.has_value() || !Contains(range, *number) || !Contains(range, rounded)) {
    Fail(name, Describe(range), value->Describe());
    return static_cast<float>(range.max);
  }
  return rounded;
}

float FieldReader::Float(std::string_view name, FloatRange range) {
  const std::optional<float> value = OptionalFloat(name, range);
  if (!value.has_value()) Fail(name, Describe(range), kNothing);
  return value.value_or(static_cast<float>(range.max));
}

bool FieldReader::BoolOr(std::string_view name, bool fallback) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return fallback;
  if (value->boolean() == nullptr) {
    Fail(name, "true or false", value->Describe());
    return fallback;
  }
  return *value->boolean();
}

bool FieldReader::Bool(std::string_view name) {
  if (Get(name) == nullptr) Fail(name, "true or false", kNothing);
  return BoolOr(name, false);
}

void FieldReader::ExpectString(std::string_view name,
                               std::initializer_list<std::string_view> allowed, bool optional) {
  const JsonValue* value = Get(name);
  if (value == nullptr && optional) return;
  const std::string* text = value == nullptr ? nullptr : value->string();
  if (text != nullptr && std::find(allowed.begin(), allowed.end(), *text) != allowed.end()) return;
  Fail(name, fmt::format("\"{}\"", fmt::join(allowed, "\" or \"")),
       value == nullptr ? std::string(kNothing) : value->Describe());
}

std::vector<int64_t> FieldReader::IntegerList(std::string_view name, IntegerRange range,
                                              int64_t count_max) {
  const JsonValue* value = Get(name);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  if (value->integer() != nullptr) {
    numbers.push_back(*value->integer());
  } else if (value->items() == nullptr || std::ssize(*value->items()) > count_max) {
    Fail(name, fmt::format("an integer or an array of at most {}", count_max), value->Describe());
  } else {
    for (const JsonValue& item : *value->items()) {
      if (item.integer() == nullptr) Fail(name, Describe(range), item.Describe());
      numbers.push_back(item.integer() == nullptr ? range.min : *item.integer());
    }
  }
  for (int64_t& number : numbers) {
    if (Contains(range, number)) continue;
    Fail(name, Describe(range), fmt::format("{}", number));
    number = range.min;
  }
  return numbers;
}

const JsonValue* FieldReader::Object(std::string_view name) {
  const JsonValue* value = Get(name);
  if (value == nullptr || value->members() != nullptr) return value;
  Fail(name, "an object", value->Describe());
  return nullptr;
}

void FieldReader::Fail(std::string_view name, std::string_view expected, std::string_view found) {
  if (!failure_->ok()) return;
  *failure_ = InvalidArgument(
      fmt::format("{}: {}{}: expected {}, found {}", where_, path_, name, expected, found));
}

std::vector<std::string> FieldReader::UnknownFields() const {
  std::vector<std::string> unknown;
  if (object_->members() == nullptr) return unknown;
  for (const auto& [name, value] : *object_->members()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      unknown.push_back(path_ + name);
    }
  }
  return unknown;
}

}  // namespace k3
