#include "text/xtml_arguments.h"

#include "config/json.h"

namespace k3 {
namespace {

std::string_view TrimJsonSpace(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string Quote(std::string_view text) { return DumpJson(JsonValue(std::string(text))); }

/// Parsed inside an array, because inside an object it will stand: its nesting has to leave room
/// for one level, and a byte order mark, which may start a document, is no value.
bool IsOneJsonValue(std::string_view text) {
  std::string array = "[";
  array += text;
  array += ']';
  const Result<JsonValue> parsed = ParseJson(array, "argument");
  return parsed.ok() && parsed->items()->size() == 1;
}

}  // namespace

std::string XtmlArguments::OpenArgument(const std::string& key, bool is_string) {
  value_ = Value::kDropped;
  if (has_block_ || !keys_.insert(key).second) return {};
  member_ = (keys_.size() == 1 ? "{" : ", ") + Quote(key) + ": ";
  held_.clear();
  value_ = is_string ? Value::kString : Value::kHeld;
  return is_string ? member_ + '"' : std::string();
}

void XtmlArguments::OpenBlock() {
  value_ = Value::kDropped;
  if (has_block_ || !keys_.empty()) return;
  has_block_ = true;
  value_ = Value::kBlock;
}

std::string XtmlArguments::Append(std::string_view text) {
  if (value_ == Value::kString) {
    const std::string quoted = Quote(text);
    return quoted.substr(1, quoted.size() - 2);
  }
  if (value_ != Value::kDropped) held_ += text;
  return {};
}

std::string XtmlArguments::CloseValue() {
  switch (value_) {
    case Value::kDropped:
      return {};
    case Value::kString:
      return "\"";
    case Value::kHeld:
      if (IsOneJsonValue(held_)) return member_ += TrimJsonSpace(held_);
      return member_ += Quote(held_);
    case Value::kBlock:
      return CloseBlock();
  }
  return {};
}

std::string XtmlArguments::CloseBlock() {
  if (TrimJsonSpace(held_).empty()) return "{}";
  const Result<JsonValue> parsed = ParseJson(held_, "json");
  if (!parsed.ok() || parsed->members() != nullptr) return std::move(held_);
  broken_ = true;
  return {};
}

std::string XtmlArguments::Close() const {
  if (has_block_) return {};
  return keys_.empty() ? "{}" : "}";
}

void XtmlArguments::Break() {
  broken_ = true;
  value_ = Value::kDropped;
}

}  // namespace k3
