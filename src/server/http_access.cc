#include "server/http_access.h"

#include <algorithm>

namespace k3::server {
namespace {

bool EqualInConstantTime(std::string_view presented, std::string_view key) {
  size_t difference = presented.size() ^ key.size();
  for (size_t i = 0; i < presented.size(); ++i) {
    difference |= static_cast<unsigned char>(presented[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

/// Names of headers with commas: nothing else is echoed.
bool IsHeaderList(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  });
}

}  // namespace

bool HasApiKey(const std::vector<std::string>& keys, const std::string* authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization == nullptr) return false;
  std::string_view presented = *authorization;
  if (!EqualWithoutCase(presented.substr(0, kScheme.size()), kScheme)) return false;
  presented.remove_prefix(kScheme.size());
  unsigned found = 0;
  for (const std::string& key : keys) {
    // No early end: that would tell which key it was.
    found |= static_cast<unsigned>(!key.empty() && EqualInConstantTime(presented, key));
  }
  return found != 0;
}

HttpHeaders CorsHeaders(const std::vector<std::string>& origins, const HttpRequest& request) {
  const std::string* origin = request.FindHeader("Origin");
  if (origin == nullptr || origins.empty()) return {};
  if (std::find(origins.begin(), origins.end(), "*") != origins.end()) {
    return {{"Access-Control-Allow-Origin", "*"}};
  }
  // Caches must know that the answer depends on the page, also when it is not allowed.
  HttpHeaders headers = {{"Vary", "Origin"}};
  if (std::find(origins.begin(), origins.end(), *origin) != origins.end()) {
    headers.emplace_back("Access-Control-Allow-Origin", *origin);
  }
  return headers;
}

bool MayAct(const std::vector<std::string>& origins, const HttpRequest& request) {
  const std::string* origin = request.FindHeader("Origin");
  const auto allows = [&](const std::string& o) { return o == "*" || o == *origin; };
  return request.method != "POST" || origin == nullptr || std::ranges::any_of(origins, allows);
}

HttpHeaders PreflightHeaders(const HttpRequest& request) {
  if (request.method != "OPTIONS" || request.FindHeader("Origin") == nullptr ||
      request.FindHeader("Access-Control-Request-Method") == nullptr) {
    return {};
  }
  HttpHeaders headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                         {"Access-Control-Max-Age", "600"}};
  const std::string* asked = request.FindHeader("Access-Control-Request-Headers");
  headers.emplace_back("Access-Control-Allow-Headers", asked != nullptr && IsHeaderList(*asked)
                                                           ? *asked
                                                           : "Authorization, Content-Type");
  return headers;
}

}  // namespace k3::server
