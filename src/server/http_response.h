#pragma once
// The text of answers: heads, and bodies of errors in the shape of OpenAI's.
//
// Pure functions on values; any thread. Nothing fails: a control character in a header, which could
// end it early, is written as a space.

#include <cstdint>
#include <string>
#include <string_view>

#include "server/http_types.h"

namespace k3::server {

/// Why a request is refused before its handler sees it. status 0: it is not.
struct HttpFailure {
  int status = 0;
  std::string message;
  std::string code;
};

/// {"error":{"message","type","param":null,"code"}}; the type follows from the status.
std::string HttpErrorBody(const HttpFailure& failure);

/// How a body is delimited.
enum class HttpFraming { kLength, kChunked, kUntilClose };

struct HttpHead {
  int status = 200;
  std::string content_type;  // empty: no such header
  HttpFraming framing = HttpFraming::kLength;
  int64_t content_length = 0;  // with kLength
  bool keep_alive = false;
};

/// The status line, the headers and the empty line, always of HTTP/1.1. `unix_s` is the time for
/// Date.
std::string FormatHttpHead(const HttpHead& head, const HttpHeaders& headers, int64_t unix_s);

/// "Sat, 31 Jan 2026 12:00:00 GMT".
std::string FormatHttpDate(int64_t unix_s);

/// One chunk of a chunked body; `bytes` must not be empty, since that would end the body.
std::string FormatHttpChunk(std::string_view bytes);
inline constexpr std::string_view kHttpLastChunk = "0\r\n\r\n";

/// Seconds since 1970.
int64_t UnixSeconds();

}  // namespace k3::server
