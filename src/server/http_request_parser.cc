#include "server/http_request_parser.h"

#include <fmt/format.h>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/limits.h"
#include "config/json.h"
#include "text/utf8.h"

namespace k3::server {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using BeastView = boost::beast::string_view;

std::string_view View(BeastView text) { return {text.data(), text.size()}; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Percent-decodes; false for an unfinished or wrong escape, control characters and bad UTF-8.
bool DecodePath(std::string_view text, std::string* path) {
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    *path += c;
  }
  return FindInvalidUtf8(*path) < 0;
}

}  // namespace

bool SplitTarget(std::string_view method, std::string_view target, HttpRequest* request) {
  if (target == "*") {
    request->path = "*";
    return method == "OPTIONS";
  }
  // A proxy may send the whole address.
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!EqualWithoutCase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (target.empty() || target[0] == '?') {
      request->path = "/";
      request->query = target.substr(std::min<size_t>(1, target.size()));
      return true;
    }
  }
  if (target.empty() || target[0] != '/') return false;
  const size_t question = std::min(target.find('?'), target.size());
  request->query = target.substr(std::min(question + 1, target.size()));
  return DecodePath(target.substr(0, question), &request->path);
}

class HttpRequestParser::Impl : public http::basic_parser<true> {
 public:
  explicit Impl(const HttpParserLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.head_bytes_max));
    body_limit(static_cast<uint64_t>(limits.body_bytes_max));
  }

  Progress Feed(std::string_view bytes, size_t* consumed);

  HttpRequest request;
  HttpFailure failure;
  bool is_http11 = false;
  bool expects_continue = false;

 private:
  // Errors of the callbacks: `failure` says more, the code only stops the parser.
  void Refuse(int status, std::string message, std::string code, error_code& ec) {
    failure = {status, std::move(message), std::move(code)};
    ec = http::error::bad_field;
  }

  void on_request_impl(http::verb, BeastView method, BeastView target, int version,
                       error_code& ec) override;
  void on_response_impl(int, BeastView, int, error_code&) override {}
  void on_field_impl(http::field field, BeastView name, BeastView value, error_code& ec) override;
  void on_header_impl(error_code& ec) override;
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(BeastView body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, BeastView, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, BeastView body, error_code& ec) override {
    return on_body_impl(body, ec);
  }
  void on_finish_impl(error_code&) override {}

  HttpFailure Describe(const error_code& ec) const;

  HttpParserLimits limits_;
  int64_t head_bytes_ = 0;
  int hosts_count_ = 0;
  bool has_request_line_ = false;
  bool has_transfer_encoding_ = false;
  bool head_done_ = false;
};

void HttpRequestParser::Impl::on_request_impl(http::verb, BeastView method, BeastView target,
                                              int version, error_code& ec) {
  has_request_line_ = true;
  is_http11 = version >= 11;
  request.method = View(method);
  if (!SplitTarget(request.method, View(target), &request)) {
    Refuse(400, "the request target is malformed", "malformed_request", ec);
  }
}

void HttpRequestParser::Impl::on_field_impl(http::field field, BeastView name, BeastView value,
                                            error_code& ec) {
  if (head_done_) return;  // trailers are read over
  if (std::ssize(request.headers) >= limits::kHttpHeadersCountMax) {
    return Refuse(431, fmt::format("more than {} headers", limits::kHttpHeadersCountMax),
                  "headers_too_large", ec);
  }
  const std::string_view text = View(value);
  if (field == http::field::host) ++hosts_count_;
  if (field == http::field::transfer_encoding) {
    has_transfer_encoding_ = true;
    if (!EqualWithoutCase(text, "chunked")) {
      return Refuse(501, "the only transfer coding that is understood is chunked",
                    "unsupported_transfer_coding", ec);
    }
  }
  if (field == http::field::expect) {
    if (!EqualWithoutCase(text, "100-continue")) {
      return Refuse(417, "the only expectation that is understood is 100-continue",
                    "unsupported_expectation", ec);
    }
    expects_continue = true;
  }
  request.headers.emplace_back(View(name), text);
}

void HttpRequestParser::Impl::on_header_impl(error_code& ec) {
  head_done_ = true;
  if (hosts_count_ > 1 || (hosts_count_ == 0 && is_http11)) {
    return Refuse(400, "a request has one Host header", "malformed_request", ec);
  }
  if (has_transfer_encoding_ && !is_http11) {
    return Refuse(400, "HTTP/1.0 has no Transfer-Encoding", "malformed_request", ec);
  }
  // Once all headers are there, so that the answer may know them.
  for (const auto& [name, value] : request.headers) {
    if (!EqualWithoutCase(name, "Content-Encoding") || value.empty()) continue;
    if (EqualWithoutCase(value, "identity")) continue;
    return Refuse(415,
                  fmt::format("Content-Encoding: expected identity or none, found {}; send the "
                              "body as it is",
                              QuoteForMessage(value)),
                  "unsupported_content_encoding", ec);
  }
}

HttpFailure HttpRequestParser::Impl::Describe(const error_code& ec) const {
  if (failure.status != 0) return failure;
  if (ec == http::error::header_limit) {
    if (!has_request_line_) return {414, "the request line is too long", "uri_too_long"};
    return {431, fmt::format("the head is larger than {} bytes", limits_.head_bytes_max),
            "headers_too_large"};
  }
  if (ec == http::error::body_limit) {
    return {413, fmt::format("the body is larger than {} bytes", limits_.body_bytes_max),
            "body_too_large"};
  }
  if (ec == http::error::bad_version) {
    return {505, "the version of HTTP is not 1.0 or 1.1", "unsupported_http_version"};
  }
  return {400, fmt::format("malformed HTTP: {}", ec.message()), "malformed_request"};
}

HttpRequestParser::Progress HttpRequestParser::Impl::Feed(std::string_view bytes,
                                                          size_t* consumed) {
  *consumed = 0;
  if (is_done()) return Progress::kDone;
  const bool in_head = !head_done_;
  eager(!in_head);
  error_code ec;
  *consumed = put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  const auto rest = static_cast<int64_t>(bytes.size() - *consumed);
  if (in_head) head_bytes_ += static_cast<int64_t>(*consumed);
  if (in_head && (!ec || ec == http::error::need_more) && head_bytes_ > limits_.head_bytes_max) {
    ec = http::error::header_limit;
  }
  // A chunk's extensions or trailers that do not end would pile up outside.
  if (ec == http::error::need_more && rest > limits_.head_bytes_max) {
    ec = http::error::header_limit;
  }
  if (ec && ec != http::error::need_more) {
    failure = Describe(ec);
    return Progress::kFailed;
  }
  if (in_head && head_done_) return Progress::kHead;
  return is_done() ? Progress::kDone : Progress::kNeedMore;
}

HttpRequestParser::HttpRequestParser(const HttpParserLimits& limits)
    : impl_(std::make_unique<Impl>(limits)) {}
HttpRequestParser::~HttpRequestParser() = default;

HttpRequestParser::Progress HttpRequestParser::Feed(std::string_view bytes, size_t* consumed) {
  return impl_->Feed(bytes, consumed);
}
const HttpFailure& HttpRequestParser::failure() const { return impl_->failure; }
bool HttpRequestParser::is_http11() const { return impl_->is_http11; }
bool HttpRequestParser::keep_alive() const { return impl_->keep_alive(); }
bool HttpRequestParser::expects_continue() const { return impl_->expects_continue; }
std::optional<uint64_t> HttpRequestParser::content_length() const {
  const auto length = impl_->content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}
HttpRequest& HttpRequestParser::request() { return impl_->request; }

}  // namespace k3::server
