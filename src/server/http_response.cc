#include "server/http_response.h"

#include <fmt/format.h>

#include <chrono>

#include "config/json.h"

namespace k3::server {
namespace {

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string WithoutControls(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return clean;
}

std::string_view ErrorType(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  // A coding or version that the client chose, whatever the first digit says.
  if (status == 501 || status == 505) return "invalid_request_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string HttpErrorBody(const HttpFailure& failure) {
  JsonValue::Members error;
  error.emplace_back("message", JsonValue(failure.message));
  error.emplace_back("type", JsonValue(std::string(ErrorType(failure.status))));
  error.emplace_back("param", JsonValue());
  error.emplace_back("code", failure.code.empty() ? JsonValue() : JsonValue(failure.code));
  JsonValue::Members body;
  body.emplace_back("error", JsonValue(std::move(error)));
  return DumpJson(JsonValue(std::move(body)), {.item_separator = ",", .key_separator = ":"});
}

std::string FormatHttpDate(int64_t unix_s) {
  using std::chrono::days;
  using std::chrono::floor;
  constexpr std::string_view kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::string_view kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::chrono::sys_seconds time{std::chrono::seconds(unix_s)};
  const auto day = floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format(
      "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[std::chrono::weekday(day).c_encoding()],
      static_cast<unsigned>(date.day()), kMonths[static_cast<unsigned>(date.month()) - 1],
      static_cast<int>(date.year()), clock.hours().count(), clock.minutes().count(),
      clock.seconds().count());
}

std::string FormatHttpHead(const HttpHead& head, const HttpHeaders& headers, int64_t unix_s) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", head.status,
                                 ReasonPhrase(head.status), FormatHttpDate(unix_s));
  if (!head.content_type.empty()) {
    text += fmt::format("Content-Type: {}\r\n", WithoutControls(head.content_type));
  }
  if (head.framing == HttpFraming::kChunked) text += "Transfer-Encoding: chunked\r\n";
  if (head.framing == HttpFraming::kLength && head.status != 204) {
    text += fmt::format("Content-Length: {}\r\n", head.content_length);
  }
  text += head.keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const auto& [name, value] : headers) {
    text += fmt::format("{}: {}\r\n", WithoutControls(name), WithoutControls(value));
  }
  text += "\r\n";
  return text;
}

std::string FormatHttpChunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

int64_t UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace k3::server
