#include "text/xtml_tag.h"

#include <array>
#include <optional>

#include "text/utf8_stream.h"

namespace k3 {
namespace {

constexpr std::array<std::pair<std::string_view, XtmlTagName>, 7> kNames = {{
    {"message", XtmlTagName::kMessage},
    {"think", XtmlTagName::kThink},
    {"response", XtmlTagName::kResponse},
    {"tools", XtmlTagName::kTools},
    {"call", XtmlTagName::kCall},
    {"argument", XtmlTagName::kArgument},
    {"json", XtmlTagName::kJson},
}};

std::string MakeUtf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Feed(bytes);
  return text += stream.Finish();
}

/// One pass is the same as &quot; first and then &amp;, since neither makes the other appear.
std::string Unescape(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    if (value.starts_with("&quot;")) {
      out += '"';
      value.remove_prefix(6);
    } else if (value.starts_with("&amp;")) {
      out += '&';
      value.remove_prefix(5);
    } else {
      out += value.front();
      value.remove_prefix(1);
    }
  }
  return out;
}

/// Takes one ` key="value"` off the front of `text`, which stays as it is when there is none.
std::optional<std::pair<std::string, std::string>> TakeAttribute(std::string_view& text) {
  const size_t key_at = text.find_first_not_of(' ');
  if (key_at == 0 || key_at == std::string_view::npos) return std::nullopt;
  const size_t equals = text.find_first_of("= \"", key_at);
  if (equals == key_at || equals == std::string_view::npos) return std::nullopt;
  if (!text.substr(equals).starts_with("=\"")) return std::nullopt;
  const size_t value_at = equals + 2;
  const size_t quote = text.find('"', value_at);
  if (quote == std::string_view::npos) return std::nullopt;
  std::pair attribute(MakeUtf8(text.substr(key_at, equals - key_at)),
                      Unescape(MakeUtf8(text.substr(value_at, quote - value_at))));
  text.remove_prefix(quote + 1);
  return attribute;
}

}  // namespace

const std::string* XtmlTag::Find(std::string_view key) const {
  for (const auto& [attribute, value] : attributes) {
    if (attribute == key) return &value;
  }
  return nullptr;
}

XtmlTag ParseXtmlTag(std::string_view inside) {
  XtmlTag tag;
  if (inside.empty()) {
    tag.name = XtmlTagName::kUnnamed;
    return tag;
  }
  const std::string_view name = inside.substr(0, inside.find(' '));
  for (const auto& [known, value] : kNames) {
    if (name == known) tag.name = value;
  }
  tag.rest = inside.substr(name.size());
  while (auto attribute = TakeAttribute(tag.rest)) {
    tag.attributes.push_back(*std::move(attribute));
  }
  return tag;
}

bool StartsKnownXtmlTag(std::string_view inside) {
  for (const auto& [known, value] : kNames) {
    if (known.starts_with(inside)) return true;
    if (inside.starts_with(known) && inside[known.size()] == ' ') return true;
  }
  return false;
}

std::string EscapeXtmlAttribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace k3
