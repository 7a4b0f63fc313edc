#include "server/http_types.h"

#include <algorithm>

namespace k3::server {
namespace {

/// ASCII only, whatever the locale.
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool EqualWithoutCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

const std::string* HttpRequest::FindHeader(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualWithoutCase(key, name)) return &value;
  }
  return nullptr;
}

}  // namespace k3::server
