#include "config/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/limits.h"

namespace k3 {
namespace {

// Objects up to this size look for a repeated key by walking; a larger one keeps a sorted copy, so
// that a hostile file of many keys does not cost quadratic time.
constexpr size_t kWalkedMembersMax = 32;

/// Builds the tree from the parser's events. Returning false stops the parser; `failure` says why.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add({}); }
  bool boolean(bool value) override { return Add(JsonValue(value)); }
  bool number_integer(int64_t value) override { return Add(JsonValue(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Add(JsonValue(JsonBigInteger{std::to_string(value)}));
    }
    return Add(JsonValue(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    // Integers beyond 64 bits come this way too.
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    return Add(is_integer ? JsonValue(JsonBigInteger{text}) : JsonValue(value));
  }
  bool string(std::string& value) override { return Add(JsonValue(std::move(value))); }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*size*/) override { return Open(JsonValue(JsonValue::Members())); }
  bool start_array(size_t /*size*/) override { return Open(JsonValue(JsonValue::Items())); }
  bool key(std::string& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() override {
    const JsonValue::Members& members = *open_.back().value.members();
    if (members.size() > kWalkedMembersMax) {
      std::vector<std::string_view> names;
      for (const auto& [name, value] : members) names.push_back(name);
      std::sort(names.begin(), names.end());
      const auto twice = std::adjacent_find(names.begin(), names.end());
      if (twice != names.end()) return FailDuplicate(std::string(*twice));
    }
    return Close();
  }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // The library's text starts with its own error class, which tells the reader nothing.
    std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    failure_ = fmt::format("expected valid JSON, found a fault at byte {}: {}", position,
                           QuoteForMessage(what));
    return false;
  }

  JsonValue TakeRoot() { return std::move(root_); }
  const std::string& failure() const { return failure_; }

 private:
  struct OpenValue {
    JsonValue value;
    std::string key;  // of the member being read, when value is an object
  };

  bool FailDuplicate(const std::string& name) {
    failure_ =
        fmt::format("expected every key once, found {} twice in one object", QuoteForMessage(name));
    return false;
  }

  bool Open(JsonValue value) {
    if (std::ssize(open_) >= limits::kJsonDepthMax) {
      failure_ =
          fmt::format("expected at most {} levels of nesting, found more", limits::kJsonDepthMax);
      return false;
    }
    open_.push_back({std::move(value), {}});
    return true;
  }

  bool Close() {
    JsonValue done = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(done));
  }

  bool Add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    OpenValue& parent = open_.back();
    if (JsonValue::Items* items = parent.value.items()) {
      items->push_back(std::move(value));
      return true;
    }
    JsonValue::Members& members = *parent.value.members();
    const bool walk = members.size() <= kWalkedMembersMax;
    if (walk && parent.value.Find(parent.key) != nullptr) return FailDuplicate(parent.key);
    members.emplace_back(std::move(parent.key), std::move(value));
    return true;
  }

  JsonValue root_;
  std::vector<OpenValue> open_;
  std::string failure_;
};

}  // namespace

std::optional<double> JsonValue::number() const {
  if (const int64_t* integer = std::get_if<int64_t>(&value_)) return static_cast<double>(*integer);
  if (const double* fraction = std::get_if<double>(&value_)) return *fraction;
  if (const JsonBigInteger* big = big_integer()) return std::strtod(big->digits.c_str(), nullptr);
  return std::nullopt;
}

const JsonValue* JsonValue::Find(std::string_view name) const {
  if (members() == nullptr) return nullptr;
  for (const auto& [member_name, value] : *members()) {
    if (member_name == name) return &value;
  }
  return nullptr;
}

std::string JsonValue::Describe() const {
  if (boolean() != nullptr) return *boolean() ? "true" : "false";
  if (integer() != nullptr) return fmt::format("{}", *integer());
  if (big_integer() != nullptr) return big_integer()->digits;
  if (number().has_value()) return fmt::format("{}", *number());
  if (string() != nullptr) return QuoteForMessage(*string());
  if (items() != nullptr) return fmt::format("an array of {}", items()->size());
  if (members() != nullptr) return "an object";
  return "null";
}

Result<JsonValue> ParseJson(std::string_view text, std::string_view where) {
  TreeBuilder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument(fmt::format("{}: {}", where, builder.failure()));
  }
  return builder.TakeRoot();
}

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kShownBytesMax = 100;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kShownBytesMax)) {
    quoted += c >= 0x20 && c < 0x7F ? c : '?';
  }
  quoted += text.size() > kShownBytesMax ? "...\"" : "\"";
  return quoted;
}

}  // namespace k3
