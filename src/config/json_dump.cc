#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "config/json.h"

namespace k3 {
namespace {

// Python's repr writes decimal exponents of [-4, 16) without an exponent.
constexpr int kExponentMin = -4;
constexpr int kExponentMax = 16;

void DumpString(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) {
          out += c;
        } else {
          out += "\\u00";
          out += kHex[static_cast<size_t>(c) / 16];
          out += kHex[static_cast<size_t>(c) % 16];
        }
    }
  }
  out += '"';
}

void DumpFraction(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  std::array<char, 400> buffer;
  const auto write = [&](std::chars_format format) {
    const auto [end, error] =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
    return std::string_view(buffer.data(), static_cast<size_t>(end - buffer.data()));
  };
  std::string_view text = write(std::chars_format::scientific);
  const size_t exponent_at = text.find('e') + (text.find("e+") == std::string_view::npos ? 1 : 2);
  int exponent = 0;
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  const bool plain = value == 0 || (exponent >= kExponentMin && exponent < kExponentMax);
  if (plain) text = write(std::chars_format::fixed);
  out += text;
  if (plain && text.find('.') == std::string_view::npos) out += ".0";
}

/// Nesting is bounded by the parser that made the value.
void Dump(const JsonValue& value, const JsonStyle& style, std::string& out) {
  if (const bool* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (const int64_t* integer = value.integer()) {
    out += std::to_string(*integer);
  } else if (const JsonBigInteger* big = value.big_integer()) {
    out += big->digits;
  } else if (const double* fraction = value.fraction()) {
    DumpFraction(*fraction, out);
  } else if (const std::string* text = value.string()) {
    DumpString(*text, out);
  } else if (const JsonValue::Items* items = value.items()) {
    out += '[';
    for (size_t i = 0; i < items->size(); ++i) {
      if (i > 0) out += style.item_separator;
      Dump((*items)[i], style, out);
    }
    out += ']';
  } else if (const JsonValue::Members* members = value.members()) {
    std::vector<const std::pair<std::string, JsonValue>*> order;
    for (const auto& member : *members) order.push_back(&member);
    if (style.sort_keys) {
      // UTF-8 sorts by bytes as by code points; string compares bytes as unsigned.
      std::ranges::sort(order, {},
                        [](const auto* member) -> const std::string& { return member->first; });
    }
    out += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out += style.item_separator;
      DumpString(order[i]->first, out);
      out += style.key_separator;
      Dump(order[i]->second, style, out);
    }
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

std::string DumpJson(const JsonValue& value, const JsonStyle& style) {
  std::string out;
  Dump(value, style, out);
  return out;
}

}  // namespace k3
