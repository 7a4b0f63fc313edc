#include "text/python_json.h"

#include <fmt/format.h>
#include <unicode/uchar.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <unordered_map>

#include "base/limits.h"
#include "text/utf8.h"

namespace k3 {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<JsonValue> Document() {
    SkipSpace();
    std::optional<JsonValue> value = Value();
    SkipSpace();
    if (!rest_.empty()) return std::nullopt;
    return value;
  }

  bool too_deep() const { return too_deep_; }

 private:
  void SkipSpace() {
    const size_t count = rest_.find_first_not_of(" \t\n\r");
    rest_.remove_prefix(std::min(count, rest_.size()));
  }

  bool Take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  /// `rest_` starts at the value; nothing is a fault.
  std::optional<JsonValue> Value() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (Take("\"")) {
      std::optional<std::string> text = String();
      if (!text.has_value()) return std::nullopt;
      return JsonValue(std::move(*text));
    }
    if (Take("{")) return Nested(&Reader::Object);
    if (Take("[")) return Nested(&Reader::Array);
    if (Take("null")) return JsonValue();
    if (Take("true")) return JsonValue(true);
    if (Take("false")) return JsonValue(false);
    if (Take("NaN")) return JsonValue(std::numeric_limits<double>::quiet_NaN());
    if (Take("Infinity")) return JsonValue(kInfinity);
    if (Take("-Infinity")) return JsonValue(-kInfinity);
    return Number();
  }

  std::optional<JsonValue> Nested(std::optional<JsonValue> (Reader::*read)()) {
    if (depth_ == limits::kJsonDepthMax) {
      too_deep_ = true;
      return std::nullopt;
    }
    ++depth_;
    std::optional<JsonValue> value = (this->*read)();
    --depth_;
    return value;
  }

  std::optional<JsonValue> Object() {
    JsonValue::Members members;
    std::unordered_map<std::string, size_t> places;
    SkipSpace();
    if (Take("}")) return JsonValue(std::move(members));
    while (true) {
      if (!Take("\"")) return std::nullopt;
      std::optional<std::string> key = String();
      SkipSpace();
      if (!key.has_value() || !Take(":")) return std::nullopt;
      SkipSpace();
      std::optional<JsonValue> value = Value();
      if (!value.has_value()) return std::nullopt;
      const auto [place, is_new] = places.try_emplace(*key, members.size());
      if (is_new) {
        members.emplace_back(std::move(*key), std::move(*value));
      } else {
        members[place->second].second = std::move(*value);
      }
      SkipSpace();
      if (Take("}")) return JsonValue(std::move(members));
      if (!Take(",")) return std::nullopt;
      SkipSpace();
    }
  }

  std::optional<JsonValue> Array() {
    JsonValue::Items items;
    SkipSpace();
    if (Take("]")) return JsonValue(std::move(items));
    while (true) {
      std::optional<JsonValue> value = Value();
      if (!value.has_value()) return std::nullopt;
      items.push_back(std::move(*value));
      SkipSpace();
      if (Take("]")) return JsonValue(std::move(items));
      if (!Take(",")) return std::nullopt;
      SkipSpace();
    }
  }

  /// Behind the opening quote.
  std::optional<std::string> String() {
    std::string out;
    while (true) {
      size_t plain = 0;
      while (plain < rest_.size() && rest_[plain] != '"' && rest_[plain] != '\\' &&
             static_cast<unsigned char>(rest_[plain]) >= 0x20) {
        ++plain;
      }
      out += rest_.substr(0, plain);
      rest_.remove_prefix(plain);
      if (Take("\"")) return out;
      if (!Take("\\") || !Escape(out)) return std::nullopt;
    }
  }

  /// Behind the backslash.
  bool Escape(std::string& out) {
    if (rest_.empty()) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const size_t at = kNames.find(rest_.front());
    if (at != std::string_view::npos) {
      out += kMeanings[at];
      rest_.remove_prefix(1);
      return true;
    }
    if (!Take("u")) return false;
    const std::optional<char32_t> first = FourHexDigits();
    if (!first.has_value()) return false;
    char32_t code_point = *first;
    if (code_point >= 0xD800 && code_point < 0xDC00 && rest_.starts_with("\\u")) {
      const std::string_view before = rest_;
      rest_.remove_prefix(2);
      const std::optional<char32_t> second = FourHexDigits();
      if (!second.has_value()) return false;
      if (*second >= 0xDC00 && *second < 0xE000) {
        code_point = 0x10000 + ((code_point - 0xD800) << 10) + (*second - 0xDC00);
      } else {
        rest_ = before;
      }
    }
    const bool is_lone = code_point >= 0xD800 && code_point < 0xE000;
    AppendUtf8(is_lone ? kReplacement : code_point, &out);
    return true;
  }

  std::optional<char32_t> FourHexDigits() {
    if (rest_.size() < 4) return std::nullopt;
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + 4, value, 16);
    if (error != std::errc() || end != rest_.data() + 4) return std::nullopt;
    rest_.remove_prefix(4);
    return static_cast<char32_t>(value);
  }

  std::optional<JsonValue> Number() {
    size_t end = rest_.starts_with('-') ? 1 : 0;
    const auto digits = [&](size_t from) {
      while (from < rest_.size() && IsDigit(rest_[from])) ++from;
      return from;
    };
    if (end >= rest_.size() || !IsDigit(rest_[end])) return std::nullopt;
    end = rest_[end] == '0' ? end + 1 : digits(end);
    bool is_integer = true;
    if (end + 1 < rest_.size() && rest_[end] == '.' && IsDigit(rest_[end + 1])) {
      end = digits(end + 1);
      is_integer = false;
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < rest_.size() && (rest_[exponent] == '+' || rest_[exponent] == '-')) ++exponent;
      if (exponent < rest_.size() && IsDigit(rest_[exponent])) {
        end = digits(exponent);
        is_integer = false;
      }
    }
    const std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end);
    if (!is_integer) return JsonValue(std::strtod(text.c_str(), nullptr));
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc()) return JsonValue(value);
    return JsonValue(JsonBigInteger{text});
  }

  std::string_view rest_;
  int64_t depth_ = 0;
  bool too_deep_ = false;
};

}  // namespace

Result<std::optional<JsonValue>> ParsePythonJson(std::string_view text) {
  Reader reader(text);
  std::optional<JsonValue> value = reader.Document();
  if (reader.too_deep()) {
    return InvalidArgument(
        fmt::format("expected at most {} levels of nesting, found more", limits::kJsonDepthMax));
  }
  return value;
}

bool IsBlank(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const bool is_separator = step.code_point >= 0x1C && step.code_point <= 0x1F;
    const auto code_point = static_cast<UChar32>(step.code_point);
    if (step.kind != Utf8Step::Kind::kValid || (!is_separator && !u_isUWhiteSpace(code_point))) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return true;
}

}  // namespace k3
