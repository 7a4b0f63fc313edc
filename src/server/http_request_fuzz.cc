// Fuzzes the bytes of a connection: any cut gives the same requests and the same refusal, no more
// is kept than the limits allow, and what comes out is what a handler may rely on.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/limits.h"
#include "config/json.h"
#include "server/http_access.h"
#include "server/http_request_parser.h"
#include "text/utf8.h"

namespace {

using k3::server::HttpRequest;
using k3::server::HttpRequestParser;
using Progress = HttpRequestParser::Progress;

constexpr k3::server::HttpParserLimits kLimits = {.head_bytes_max = 512, .body_bytes_max = 1024};

void CheckRequest(const HttpRequest& request) {
  K3_CHECK(!request.method.empty(), "a method");
  K3_CHECK(request.path == "*" || request.path.starts_with("/"), "a path");
  K3_CHECK(k3::FindInvalidUtf8(request.path) < 0, "paths are UTF-8");
  for (const char c : request.path) {
    K3_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "no control characters");
  }
  K3_CHECK(std::ssize(request.body) <= kLimits.body_bytes_max, "the body within its limit");
  K3_CHECK(std::ssize(request.headers) <= k3::limits::kHttpHeadersCountMax, "few headers");
  (void)k3::server::HasApiKey({"key", "k"}, request.FindHeader("Authorization"));
  for (const auto& [name, value] : k3::server::CorsHeaders({"https://a.example"}, request)) {
    K3_CHECK(value.find_first_of("\r\n") == std::string::npos, "one line");
  }
  for (const auto& [name, value] : k3::server::PreflightHeaders(request)) {
    K3_CHECK(value.find_first_of("\r\n") == std::string::npos, "one line");
  }
}

struct Outcome {
  std::string requests;
  int refusal = 0;  // 0: the bytes ended
};

/// All requests of a connection in pieces of `piece` bytes.
Outcome ReadAll(std::string_view bytes, size_t piece) {
  Outcome outcome;
  std::string pending;
  while (true) {
    HttpRequestParser parser(kLimits);
    Progress progress = Progress::kNeedMore;
    while (progress != Progress::kDone) {
      size_t consumed = 0;
      progress = parser.Feed(pending, &consumed);
      K3_CHECK(consumed <= pending.size(), "no more than there was");
      pending.erase(0, consumed);
      if (progress == Progress::kFailed) {
        K3_CHECK(parser.failure().status >= 400, "a failure has a status");
        const auto body = k3::ParseJson(k3::server::HttpErrorBody(parser.failure()), "body");
        K3_CHECK(body.ok(), "the error's body is JSON");
        outcome.refusal = parser.failure().status;
        return outcome;
      }
      if (progress != Progress::kNeedMore) continue;
      if (bytes.empty()) return outcome;
      pending += bytes.substr(0, piece);
      bytes.remove_prefix(std::min(piece, bytes.size()));
    }
    const HttpRequest& request = parser.request();
    CheckRequest(request);
    std::string& text = outcome.requests;
    text += request.method + " " + request.path + "?" + request.query + " " + request.body;
    for (const auto& [name, value] : request.headers) text += name + ":" + value + "\n";
    text += parser.keep_alive() ? "keep" : "close";
  }
}

bool IsHeadLimit(const Outcome& outcome) {
  return outcome.refusal == 414 || outcome.refusal == 431;
}

void CheckSame(const Outcome& a, const Outcome& b) {
  if (IsHeadLimit(a) || IsHeadLimit(b)) {
    const size_t common = std::min(a.requests.size(), b.requests.size());
    K3_CHECK(a.requests.substr(0, common) == b.requests.substr(0, common), "any cut agrees");
    return;
  }
  K3_CHECK(a.requests == b.requests, "any cut reads the same requests");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = ReadAll(bytes, bytes.size() + 1);
  CheckSame(whole, ReadAll(bytes, 1 + data[0]));
  CheckSame(whole, ReadAll(bytes, 1));
  return 0;
}
