#pragma once
// HttpClient: one blocking HTTP/1.1 request at a time, for programs that talk to a `k3 serve`.
//
//   K3_TRY(const HttpUrl url, ParseHttpUrl("http://[::1]:8080/v1"));
//   HttpClient client(url);
//   K3_TRY(const HttpResponse response,
//          client.Call({.method = "GET", .target = "/models", .keep_going = keep_going}));
//
// A stream of server-sent events is handed out event by event while it comes; anything else is
// collected. Every request has a connection of its own, which closes with it: that is how a server
// learns that a stream is no longer wanted. No redirects, proxies, compression or TLS.
//
// `keep_going` is asked often, also while nothing comes, except while a host's name is looked up,
// which the system does not let be interrupted. Plain value, one thread at a time.
// Failures, each with the URL in front: InvalidArgument for a URL or header that cannot be sent,
// Unimplemented for https, Unavailable when there is no connection or it breaks off or is silent
// for too long, Corruption for what is no HTTP, ResourceExhausted for a larger answer than is
// allowed, Cancelled when `keep_going` said no. An answer with a status of 400 and above is an
// answer, not a failure.
// Source: RFC 9112 (HTTP/1.1); the HTML standard, section 9.2 (server-sent events).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/limits.h"
#include "base/status.h"
#include "server/http_types.h"

namespace k3::server {

struct HttpUrl {
  std::string host;  // a name or an address, IPv6 without its brackets
  uint16_t port = 80;
  std::string path;  // what all targets begin with: empty, or "/..." without a slash at its end

  /// As in a Host header: "localhost:8080", "[::1]:8080".
  std::string Authority() const;
  /// "http://localhost:8080/path".
  std::string Text() const;
};

/// http://HOST[:PORT][/PATH], without a user, a query or a fragment.
Result<HttpUrl> ParseHttpUrl(std::string_view text);

struct HttpClientOptions {
  int64_t connect_timeout_ms = 10'000;
  int64_t silence_timeout_ms = 60'000;                   // nothing is sent or comes
  int64_t answer_bytes_max = limits::kHttpBodyBytesMax;  // of one that is collected
  int64_t event_bytes_max = limits::kHttpBodyBytesMax;   // of one event
};

struct HttpCall {
  std::string_view method;  // GET or POST
  std::string_view target;  // begins with '/', behind the URL's path
  HttpHeaders headers;      // beside Host, Content-Length, Connection and User-Agent
  std::string_view body;
  std::function<bool()> keep_going;  // may be empty
  /// The data of an event of a stream; false ends the stream, which is then no failure.
  std::function<bool(std::string_view data)> on_event;  // may be empty: a stream is collected
};

struct HttpResponse {
  int status = 0;
  std::string content_type;
  std::string body;         // empty when its events were handed out
  bool was_stream = false;  // they were
};

class HttpClient {
 public:
  explicit HttpClient(HttpUrl url, HttpClientOptions options = {});

  Result<HttpResponse> Call(const HttpCall& call) const;

  const HttpUrl& url() const { return url_; }

 private:
  HttpUrl url_;
  HttpClientOptions options_;
};

/// Takes the bytes of a stream in any pieces and finds its events: `data` lines up to a blank one.
/// Other fields and comments are left out, as is an event that the end cuts off.
class ServerSentEvents {
 public:
  using OnEvent = std::function<bool(std::string_view data)>;

  explicit ServerSentEvents(int64_t event_bytes_max) : event_bytes_max_(event_bytes_max) {}

  /// False when `on_event` wants no more. ResourceExhausted for a larger event than is allowed.
  Result<bool> Feed(std::string_view bytes, const OnEvent& on_event);

 private:
  bool TakeLine(std::string_view line, const OnEvent& on_event);

  int64_t event_bytes_max_;
  std::string line_;  // unfinished
  std::string data_;  // of the event that is being read, every line with its newline
};

}  // namespace k3::server
