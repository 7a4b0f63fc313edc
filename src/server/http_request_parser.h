#pragma once
// HttpRequestParser: bytes of one connection to one request, however they are cut.
//
//   size_t consumed = 0;
//   switch (parser.Feed(bytes, &consumed)) { ... }   // drop `consumed` bytes, whatever it says
//
// One parser reads one request; it owns what it has read and belongs to one thread. It never holds
// more than the limits allow. The framing is Beast's; what Beast leaves open and intermediaries are
// known to read in two ways is refused here: a transfer coding other than chunked, a length beside
// it, no or two Host headers. So is a body in any content coding, which nobody here would undo
// (RFC 9110, 8.4).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_response.h"
#include "server/http_types.h"

namespace k3::server {

struct HttpParserLimits {
  int64_t head_bytes_max = 0;
  int64_t body_bytes_max = 0;
};

class HttpRequestParser {
 public:
  enum class Progress {
    kNeedMore,  // call again with what was not consumed and more
    kHead,      // the head is complete; said once, call again
    kDone,      // the request is complete; do not call again
    kFailed,    // failure() says how to answer; do not call again
  };

  explicit HttpRequestParser(const HttpParserLimits& limits);
  ~HttpRequestParser();
  HttpRequestParser(const HttpRequestParser&) = delete;
  HttpRequestParser& operator=(const HttpRequestParser&) = delete;

  Progress Feed(std::string_view bytes, size_t* consumed);

  const HttpFailure& failure() const;

  // From kHead on.
  bool is_http11() const;
  bool keep_alive() const;
  bool expects_continue() const;
  std::optional<uint64_t> content_length() const;
  /// The head, and as much of the body as was read. peer and id are left empty.
  HttpRequest& request();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Splits a request's target into a decoded path and a query; false when it is malformed.
bool SplitTarget(std::string_view method, std::string_view target, HttpRequest* request);

}  // namespace k3::server
