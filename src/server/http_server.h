#pragma once
// HttpServer: HTTP/1.0 and 1.1 with keep-alive on one thread, for a handler that answers later.
//
//   auto server = HttpServer::Start(options, handler);   // Result<std::unique_ptr<HttpServer>>
//   ... (*server)->port() ...
//   (*server)->Stop(10'000);                             // or the destructor, with no grace
//
// The server owns its sockets and its thread; the number of threads never grows. Start, Stop and
// the destructor belong to one thread that is not the server's own (so not to the handler); port()
// and connections_count() may be called by any. Requests of one connection are handled one after
// the other. While a request runs its connection is still read, so that a client that hangs up (or
// only shuts down its sending side: HttpExchange::gone) is noticed at once; pipelined bytes are
// kept up to limits::kHttpPipelinedBytesMax, what comes beyond is thrown away and the connection
// ends after the running answer.
//
// What a client does wrong is answered here, with a JSON body in the shape of OpenAI's errors: 400
// malformed, 401 key, 408 too slow, 413 body, 414 and 431 head, 417 expectation, 501 transfer
// coding, 503 too many connections or too many bytes of bodies, 505 version. Start fails with
// InvalidArgument for options, Unavailable for an address in use and IoError otherwise.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "server/http_types.h"
#include "server/log.h"
#include "server/metrics.h"

namespace k3::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a name or an address; "0.0.0.0" and "::" are all interfaces
  uint16_t port = 0;               // 0: any free one

  int64_t connections_max = 512;  // beyond it: 503
  int64_t head_bytes_max = limits::kHttpHeadBytesMax;
  int64_t body_bytes_max = limits::kHttpBodyBytesMax;
  /// Bodies of all requests that are being read or run. Beyond it: 503.
  int64_t bodies_bytes_max = limits::kHttpBodiesBytesMax;
  /// A stream with more bytes than this waiting for its client is dropped.
  int64_t queued_bytes_max = limits::kHttpQueuedBytesMax;

  int64_t read_timeout_ms = 30'000;         // from a request's first byte to its last
  int64_t idle_timeout_ms = 75'000;         // between two requests
  int64_t write_stall_timeout_ms = 30'000;  // the client takes nothing of what is waiting
  int64_t linger_timeout_ms = 2'000;        // for a refused client to read the refusal

  /// "https://app.example", or "*" for all. Empty: no CORS headers.
  std::vector<std::string> cors_origins;
  /// Any of them must come as `Authorization: Bearer KEY`, except for /health. Empty: open.
  std::vector<std::string> api_keys;

  Logger* logger = nullptr;            // may be null; must outlive the server
  MetricsRegistry* metrics = nullptr;  // may be null; must outlive the server
};

class HttpServer {
 public:
  static Result<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  /// Open connections, those that are being refused included.
  int64_t connections_count() const;

  /// Stops accepting, lets running requests finish for `grace_ms`, then closes what is left (their
  /// exchanges are then gone) and ends the thread. Later calls do nothing.
  void Stop(int64_t grace_ms);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::server
