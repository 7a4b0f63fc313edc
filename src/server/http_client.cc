#include "server/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <optional>

#include "config/json.h"

namespace k3::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollEvery(50);
constexpr size_t kReadBytes = 16 << 10;
constexpr std::string_view kEventStream = "text/event-stream";

/// Fit for the first line and for headers.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

/// A header's value: spaces are fine inside.
bool IsHeaderValue(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f; });
}

/// One request on one connection.
class Exchange {
 public:
  Exchange(const HttpUrl& url, const HttpClientOptions& options, const HttpCall& call)
      : url_(url), options_(options), call_(call), socket_(io_) {}

  Result<HttpResponse> Run() {
    K3_RETURN_IF_ERROR(Connect());
    K3_RETURN_IF_ERROR(Send());
    return Receive();
  }

 private:
  /// Runs one operation, which `start` begins with the handler that ends it. Fails when the caller
  /// wants no more or the time is up; else gives what the operation ended with.
  template <typename Start>
  Result<ErrorCode> Await(int64_t timeout_ms, std::string_view what, Start start) {
    std::optional<ErrorCode> done;
    start([&done](ErrorCode error) { done = error; });
    const auto deadline = steady_clock::now() + milliseconds(timeout_ms);
    Status ended;
    while (!done.has_value()) {
      io_.restart();
      io_.run_one_for(kPollEvery);
      if (done.has_value() || !ended.ok()) continue;
      if (call_.keep_going && !call_.keep_going()) {
        ended = Cancelled("the request was stopped");
      } else if (steady_clock::now() >= deadline) {
        ended = Unavailable(
            fmt::format("{} within {} s", what, static_cast<double>(timeout_ms) / 1000));
      }
      // The operation then ends by itself; its buffers must live until it has.
      if (!ended.ok()) Close();
    }
    if (!ended.ok()) return ended;
    return *done;
  }

  void Close() {
    ErrorCode ignored;
    resolver_.cancel();
    ignored = socket_.close(ignored);
  }

  Status Connect() {
    tcp::resolver::results_type found;
    K3_TRY(const ErrorCode unknown,
           Await(options_.connect_timeout_ms, "the host's name was not found", [&](auto done) {
             resolver_.async_resolve(url_.host, std::to_string(url_.port),
                                     tcp::resolver::numeric_service,
                                     [&found, done](ErrorCode error, auto results) {
                                       found = std::move(results);
                                       done(error);
                                     });
           }));
    if (unknown) return Unavailable(fmt::format("no such host: {}", unknown.message()));
    K3_TRY(const ErrorCode refused,
           Await(options_.connect_timeout_ms, "no connection", [&](auto done) {
             asio::async_connect(socket_, found,
                                 [done](ErrorCode error, const auto&) { done(error); });
           }));
    if (refused) return Unavailable(fmt::format("no connection: {}", refused.message()));
    return OkStatus();
  }

  Status Send() {
    http::request<http::string_body> request;
    request.version(11);
    request.method_string({call_.method.data(), call_.method.size()});
    request.target(url_.path + std::string(call_.target));
    request.set(http::field::host, url_.Authority());
    request.set(http::field::user_agent, "k3");
    request.set(http::field::connection, "close");
    for (const auto& [name, value] : call_.headers) request.set(name, value);
    request.body() = call_.body;
    request.prepare_payload();
    http::request_serializer<http::string_body> serializer(request);
    // In pieces, so that a long body on a slow line is no silence.
    while (!serializer.is_done()) {
      K3_TRY(const ErrorCode error,
             Await(options_.silence_timeout_ms, "the server took nothing", [&](auto done) {
               http::async_write_some(socket_, serializer,
                                      [done](ErrorCode code, size_t) { done(code); });
             }));
      // A server may refuse a request before it has read all of it: then its answer is there.
      if (error) return OkStatus();
    }
    return OkStatus();
  }

  Result<HttpResponse> Receive() {
    http::response_parser<http::buffer_body> parser;
    parser.header_limit(limits::kHttpHeadBytesMax);
    parser.body_limit(std::numeric_limits<uint64_t>::max());
    K3_TRY(const ErrorCode error,
           Await(options_.silence_timeout_ms, "no answer came", [&](auto done) {
             http::async_read_header(socket_, buffer_, parser,
                                     [done](ErrorCode code, size_t) { done(code); });
           }));
    if (error) return Broken(error, "the connection ended before an answer came");
    HttpResponse response{.status = static_cast<int>(parser.get().result_int())};
    const auto type = parser.get()[http::field::content_type];
    response.content_type.assign(type.data(), type.size());
    response.was_stream =
        response.status == 200 && call_.on_event &&
        EqualWithoutCase(response.content_type.substr(0, kEventStream.size()), kEventStream);
    ServerSentEvents events(options_.event_bytes_max);
    std::array<char, kReadBytes> piece;
    while (!parser.is_done()) {
      K3_TRY(const size_t size, ReadPiece(parser, piece));
      const std::string_view bytes(piece.data(), size);
      if (response.was_stream) {
        K3_TRY(const bool goes_on, events.Feed(bytes, call_.on_event));
        if (!goes_on) break;
        continue;
      }
      response.body += bytes;
      if (std::ssize(response.body) > options_.answer_bytes_max) {
        return ResourceExhausted(
            fmt::format("expected an answer of at most {} bytes", options_.answer_bytes_max));
      }
    }
    return response;
  }

  /// The next bytes of the body; maybe none.
  Result<size_t> ReadPiece(http::response_parser<http::buffer_body>& parser,
                           std::array<char, kReadBytes>& piece) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    K3_TRY(const ErrorCode error,
           Await(options_.silence_timeout_ms, "nothing more came", [&](auto done) {
             http::async_read_some(socket_, buffer_, parser,
                                   [done](ErrorCode code, size_t) { done(code); });
           }));
    if (error && error != http::error::need_buffer) {
      return Broken(error, "the connection ended in the middle of the answer");
    }
    return piece.size() - body.size;
  }

  static Status Broken(ErrorCode error, std::string_view what) {
    const bool has_ended = error == http::error::end_of_stream ||
                           error == http::error::partial_message ||
                           error.category() == boost::system::system_category() ||
                           error.category() == asio::error::get_misc_category();
    if (has_ended) return Unavailable(fmt::format("{} ({})", what, error.message()));
    return Corruption(fmt::format("expected an answer in HTTP, found {}", error.message()));
  }

  const HttpUrl& url_;
  const HttpClientOptions& options_;
  const HttpCall& call_;
  asio::io_context io_;
  tcp::resolver resolver_{io_};
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

Status NoUrl(std::string_view text, std::string_view expected) {
  return InvalidArgument(fmt::format("expected {}, as in http://127.0.0.1:8080, found {}", expected,
                                     QuoteForMessage(text)));
}

}  // namespace

std::string HttpUrl::Authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

std::string HttpUrl::Text() const { return fmt::format("http://{}{}", Authority(), path); }

Result<HttpUrl> ParseHttpUrl(std::string_view text) {
  constexpr std::string_view kHttp = "http://";
  constexpr std::string_view kHttps = "https://";
  if (EqualWithoutCase(text.substr(0, kHttps.size()), kHttps)) {
    return Unimplemented(
        fmt::format("{}: https is not supported; use http, through a tunnel or a local proxy "
                    "where the network is not trusted",
                    QuoteForMessage(text)));
  }
  if (!EqualWithoutCase(text.substr(0, kHttp.size()), kHttp)) return NoUrl(text, "a URL");
  if (!IsPlain(text) || text.find_first_of("@?#\\\"<>") != std::string_view::npos) {
    return NoUrl(text, "a URL of host, port and path alone");
  }
  std::string_view rest = text.substr(kHttp.size());
  HttpUrl url;
  const size_t path_begin = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(path_begin);
  while (url.path.ends_with('/')) url.path.pop_back();
  rest = rest.substr(0, path_begin);
  size_t host_end = std::min(rest.find(':'), rest.size());
  if (rest.starts_with('[')) {
    const size_t bracket = rest.find(']');
    if (bracket == std::string_view::npos) return NoUrl(text, "an IPv6 address in brackets");
    url.host = rest.substr(1, bracket - 1);
    ErrorCode error;
    asio::ip::make_address_v6(url.host, error);
    if (error) return NoUrl(text, "an IPv6 address in brackets");
    host_end = bracket + 1;
  } else {
    url.host = rest.substr(0, host_end);
  }
  if (url.host.empty()) return NoUrl(text, "a host");
  rest = rest.substr(host_end);
  if (rest.empty()) return url;
  const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), url.port);
  if (rest.front() != ':' || error != std::errc() || end != rest.data() + rest.size() ||
      url.port == 0) {
    return NoUrl(text, "a port from 1 to 65535");
  }
  return url;
}

HttpClient::HttpClient(HttpUrl url, HttpClientOptions options)
    : url_(std::move(url)), options_(options) {}

Result<HttpResponse> HttpClient::Call(const HttpCall& call) const {
  for (const auto& [name, value] : call.headers) {
    if (IsPlain(name) && IsHeaderValue(value)) continue;
    return InvalidArgument(
        fmt::format("{}: expected printable ASCII in the header {}", url_.Text(), name));
  }
  Result<HttpResponse> response = Exchange(url_, options_, call).Run();
  if (!response.ok()) return response.status().WithContext(url_.Text());
  return response;
}

Result<bool> ServerSentEvents::Feed(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (std::ssize(line_) + std::ssize(data_) > event_bytes_max_) {
      return ResourceExhausted(
          fmt::format("expected events of at most {} bytes", event_bytes_max_));
    }
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    const bool goes_on = TakeLine(line_, on_event);
    line_.clear();
    if (!goes_on) return false;
  }
  return true;
}

bool ServerSentEvents::TakeLine(std::string_view line, const OnEvent& on_event) {
  if (line.empty()) {
    if (data_.empty()) return true;
    data_.pop_back();
    const bool goes_on = on_event(data_);
    data_.clear();
    return goes_on;
  }
  const size_t colon = std::min(line.find(':'), line.size());
  if (line.substr(0, colon) != "data") return true;
  line.remove_prefix(std::min(colon + 1, line.size()));
  if (line.starts_with(' ')) line.remove_prefix(1);
  data_ += line;
  data_ += '\n';
  return true;
}

}  // namespace k3::server
