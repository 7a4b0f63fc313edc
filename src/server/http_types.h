#pragma once
// What the HTTP server hands to its handler: a request as a value, and the exchange to answer it.
//
//   void Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
//     if (request.path == "/health") exchange->Respond(200, "application/json", "{}");
//   }
//
// A request is a plain value and owns its text. An exchange may be used from any thread, also after
// its server is gone: calls then do nothing. Nothing here fails: a client that has left makes the
// exchange `gone`, and whatever is sent to it from then on is dropped.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace k3::server {

/// Names and values in their order. Names are compared without case.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Whether two names of headers are the same: letters of ASCII in any case.
bool EqualWithoutCase(std::string_view a, std::string_view b);

struct HttpRequest {
  std::string method;  // as sent, such as GET; HEAD comes as HEAD and is answered as GET would be
  std::string path;    // percent-decoded, begins with '/', without the query
  std::string query;   // as sent, without '?'
  HttpHeaders headers;
  std::string body;
  std::string peer;  // "127.0.0.1:40312"
  uint64_t id = 0;   // counts the requests of this server from 1

  /// The first header of that name, or null.
  const std::string* FindHeader(std::string_view name) const;
};

/// The answer to one request: either Respond, or StartEvents, SendEvent..., EndEvents. What does
/// not fit this order (a second answer, an event before the start) does nothing. When the last
/// reference goes without an answer, the client gets a 500, or a stream breaks off.
class HttpExchange {
 public:
  HttpExchange() = default;
  virtual ~HttpExchange() = default;
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  /// The whole answer. Content-Length, Date and Connection are added.
  virtual void Respond(int status, std::string content_type, std::string body,
                       HttpHeaders headers = {}) = 0;

  /// Status 200 and the head of a text/event-stream; sent at once.
  virtual void StartEvents(HttpHeaders headers = {}) = 0;
  /// `bytes` are whole frames, blank line included. Queued, never blocks.
  virtual void SendEvent(std::string bytes) = 0;
  virtual void EndEvents() = 0;

  /// The client left, or was dropped, before its answer was complete. A client that shuts down its
  /// writing side while its request runs counts as gone: that cannot be told from a closed socket
  /// until something is sent, and nobody should compute for a closed one.
  virtual bool gone() const = 0;
  /// Calls `callback` once when the client leaves before its answer is complete: on the server's
  /// thread, so it must be quick; at once, on this thread, if the client already left. It is
  /// destroyed uncalled when the answer is complete. Several may be set.
  virtual void OnGone(std::function<void()> callback) = 0;

  /// Bytes of the answer that the system has not yet taken. A client that reads slower than it is
  /// written to makes this grow, until the server drops it (HttpServerOptions).
  virtual int64_t queued_bytes() const = 0;
};

/// Shared: the connection, whoever answers, and the watchers of a running request all hold it.
using HttpExchangePtr = std::shared_ptr<HttpExchange>;

/// Called on the server's thread: must be quick and must not throw. The pointer is shared because
/// the owner of the request and whoever watches over it may both keep it.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>, HttpRequest)>;

}  // namespace k3::server
