#pragma once
// XtmlTag: the inside of one XTML tag, the text between <|open|> or <|close|> and <|sep|>, such as
// `argument key="city" type="string"`. Nothing fails: what does not follow the form is kept aside.
// Pure functions on the caller's bytes, any thread; time is linear in them.
// Source: technical report, appendix F (messages, channels, typed arguments).

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace k3 {

enum class XtmlTagName {
  kMessage,
  kThink,
  kResponse,
  kTools,
  kCall,
  kArgument,
  kJson,
  kUnnamed,  // nothing at all, as in <|close|><|sep|>
  kUnknown,
};

struct XtmlTag {
  XtmlTagName name = XtmlTagName::kUnknown;
  /// In the order of the tag, values unescaped; both are valid UTF-8.
  std::vector<std::pair<std::string, std::string>> attributes;
  /// From the first byte that is neither the name nor an attribute: empty in a well-formed tag.
  std::string_view rest;

  /// The first attribute of that key; null when there is none.
  const std::string* Find(std::string_view key) const;
};

/// Reads the name, which ends at the first space, and the attributes ` key="value"`. `inside` may
/// be any bytes and must outlive the tag.
XtmlTag ParseXtmlTag(std::string_view inside);

/// An attribute's value as it stands in a tag: `&` and `"` are escaped, nothing else.
std::string EscapeXtmlAttribute(std::string_view value);

/// Whether `inside` is the start of a known tag: of its name, or the name and what follows it. The
/// time does not depend on the length.
bool StartsKnownXtmlTag(std::string_view inside);

}  // namespace k3
