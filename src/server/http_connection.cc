#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "base/limits.h"
#include "server/http_access.h"
#include "server/http_connection_internal.h"

namespace k3::server {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string PeerName(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  const std::string address = endpoint.address().to_string(error);
  const std::string port = std::to_string(endpoint.port());
  return endpoint.address().is_v6() ? "[" + address + "]:" + port : address + ":" + port;
}

/// Small events go out at once, and a peer whose machine vanished is noticed within minutes.
void SetSocketOptions(int fd) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

}  // namespace

void ServerCore::CountRequest(int status) {
  if (options.metrics == nullptr) return;
  options.metrics
      ->AddCounter("k3_http_requests_total", "Answered requests by HTTP status.",
                   {{"code", std::to_string(status)}})
      ->Add();
}

void ServerCore::CountDropped(std::string_view reason) {
  if (options.metrics == nullptr) return;
  options.metrics
      ->AddCounter("k3_http_dropped_total",
                   "Requests whose client left or was given up before the answer was complete.",
                   {{"reason", std::string(reason)}})
      ->Add();
}

void ServerCore::CountConnection(int64_t change) {
  connections_count.fetch_add(change);
  if (options.metrics == nullptr) return;
  options.metrics->AddGauge("k3_http_connections", "Open connections.")
      ->Set(static_cast<double>(connections_count.load()));
}

Connection::Connection(ServerCore* core, asio::ip::tcp::socket socket)
    : core_(core),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      peer_(PeerName(socket_)) {
  core_->connections.insert(this);
  core_->CountConnection(1);
}

Connection::~Connection() = default;

void Connection::Start() {
  SetSocketOptions(socket_.native_handle());
  SetReadDeadline(core_->options.read_timeout_ms);
  StartRead();
}

void Connection::StartRefused(const HttpFailure& failure) {
  SetSocketOptions(socket_.native_handle());
  Refuse(failure);
  if (phase_ != Phase::kClosed) StartRead();
}

void Connection::Drain() {
  if (phase_ == Phase::kReading && began_) {
    Refuse({503, "the server is shutting down", "shutting_down"});
  } else if (phase_ == Phase::kReading || phase_ == Phase::kLingering) {
    Close();
  }
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  ReleaseBody();
  timer_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
  core_->connections.erase(this);
  core_->CountConnection(-1);
  if (exchange_) std::exchange(exchange_, nullptr)->MarkGone();
  if (core_->connections.empty() && core_->on_last_closed) core_->on_last_closed();
}

void Connection::Drop(std::string_view reason) {
  core_->CountDropped(reason);
  if (core_->options.logger != nullptr) {
    core_->options.logger->Info(
        "http_dropped",
        {{"id", request_id_}, {"request", request_line_}, {"peer", peer_}, {"reason", reason}});
  }
  // What is still unsent is of no use: the reset frees the system's buffers too.
  boost::system::error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  Close();
}

// Reading.

void Connection::StartRead() {
  socket_.async_read_some(
      asio::buffer(read_buffer_),
      [self = shared_from_this()](const ErrorCode& error, size_t n) { self->OnRead(error, n); });
}

void Connection::OnRead(const ErrorCode& error, size_t count) {
  if (phase_ == Phase::kClosed) return;
  if (error) return OnReadEnd(error);
  if (phase_ == Phase::kReading) {
    pending_.append(read_buffer_.data(), count);
    Parse();
  } else if (phase_ == Phase::kRunning && !discards_) {
    pending_.append(read_buffer_.data(), count);
    if (std::ssize(pending_) > limits::kHttpPipelinedBytesMax) {
      discards_ = true;
      pending_ = {};
    }
  }
  if (phase_ != Phase::kClosed) StartRead();
}

void Connection::OnReadEnd(const ErrorCode& error) {
  client_finished_ = true;
  const bool orderly = error == asio::error::eof;
  // An answer that is complete is still delivered to a client that only finished sending.
  if (orderly &&
      (phase_ == Phase::kRefusing || (phase_ == Phase::kRunning && exchange_->ended()))) {
    return;
  }
  if (phase_ == Phase::kRunning) {
    Drop("client_gone");
  } else {
    Close();
  }
}

void Connection::Parse() {
  while (phase_ == Phase::kReading) {
    if (!began_) {
      // Some clients send an empty line after a body.
      while (pending_.starts_with("\r\n")) pending_.erase(0, 2);
      if (pending_.empty() || pending_ == "\r") return;
      began_ = true;
      SetReadDeadline(core_->options.read_timeout_ms);
      parser_ = std::make_unique<HttpRequestParser>(
          HttpParserLimits{core_->options.head_bytes_max, core_->options.body_bytes_max});
    }
    size_t consumed = 0;
    const auto progress = parser_->Feed(pending_, &consumed);
    pending_.erase(0, consumed);
    switch (progress) {
      case HttpRequestParser::Progress::kNeedMore:
        ChargeBody();
        return;
      case HttpRequestParser::Progress::kFailed:
        Refuse(parser_->failure());
        return;
      case HttpRequestParser::Progress::kHead:
        OnHead();
        break;
      case HttpRequestParser::Progress::kDone:
        ChargeBody();
        if (phase_ == Phase::kReading) Dispatch();
        break;
    }
  }
}

void Connection::OnHead() {
  const HttpRequest& request = parser_->request();
  const HttpServerOptions& options = core_->options;
  const bool needs_key =
      !options.api_keys.empty() && request.path != "/health" && request.method != "OPTIONS";
  if (needs_key && !HasApiKey(options.api_keys, request.FindHeader("Authorization"))) {
    return Refuse(
        {401, "a valid API key is needed, as in `Authorization: Bearer KEY`", "invalid_api_key"});
  }
  if (!MayAct(options.cors_origins, request)) {
    return Refuse({403, "this web page's origin is not allowed here; see --cors-origin",
                   "origin_not_allowed"});
  }
  // Ahead of the body, so that nothing is sent in vain.
  const uint64_t coming = parser_->content_length().value_or(0);
  if (coming > 0 && core_->bodies_bytes + static_cast<int64_t>(coming) > options.bodies_bytes_max) {
    return Refuse({503, "too many large requests at once; try again", "overloaded"});
  }
  if (parser_->expects_continue() && parser_->is_http11() && pending_.empty() && !writing_) {
    out_ = kContinue;
    StartWrite();
  }
}

void Connection::ChargeBody() {
  const int64_t bytes = std::ssize(parser_->request().body);
  core_->bodies_bytes += bytes - charged_bytes_;
  charged_bytes_ = bytes;
  if (core_->bodies_bytes > core_->options.bodies_bytes_max) {
    Refuse({503, "too many large requests at once; try again", "overloaded"});
  }
}

void Connection::ReleaseBody() {
  core_->bodies_bytes -= charged_bytes_;
  charged_bytes_ = 0;
}

void Connection::Dispatch() {
  HttpRequest request = std::move(parser_->request());
  request.peer = peer_;
  request.id = ++core_->requests_count;
  request_id_ = request.id;
  request_line_ = request.method + " " + request.path;
  request_start_ = steady_clock::now();

  ExchangeState::Setup setup;
  setup.is_http11 = parser_->is_http11();
  setup.keep_alive = parser_->keep_alive();
  setup.head_only = request.method == "HEAD";
  setup.queued_bytes_max = core_->options.queued_bytes_max;
  setup.headers = CorsHeaders(core_->options.cors_origins, request);
  setup.draining = &core_->draining;
  setup.wake = [self = shared_from_this()] {
    asio::post(self->socket_.get_executor(), [self] { self->Pump(); });
  };
  // Shared with the handle: either may outlive the other.
  exchange_ = std::make_shared<ExchangeState>(std::move(setup));
  parser_.reset();
  phase_ = Phase::kRunning;
  read_deadline_ = TimePoint::max();

  const auto handle = MakeExchange(exchange_);
  if (request.method == "OPTIONS") {
    HttpHeaders headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}};
    if (!core_->options.cors_origins.empty()) {
      for (auto& header : PreflightHeaders(request)) headers.push_back(std::move(header));
    }
    handle->Respond(204, "", "", std::move(headers));
    return;
  }
  try {
    core_->handler(handle, std::move(request));
  } catch (const std::exception& error) {
    // Running out of memory for one request must not end the others.
    handle->Respond(500, "application/json",
                    HttpErrorBody({500, "the request failed", "internal_error"}));
    if (core_->options.logger != nullptr) {
      core_->options.logger->Error("http_handler_failed",
                                   {{"id", request_id_}, {"what", error.what()}});
    }
  }
}

void Connection::Refuse(const HttpFailure& failure) {
  core_->CountRequest(failure.status);
  if (core_->options.logger != nullptr) {
    core_->options.logger->Debug(
        "http_refused", {{"peer", peer_}, {"status", failure.status}, {"code", failure.code}});
  }
  HttpHeaders headers;
  if (parser_) headers = CorsHeaders(core_->options.cors_origins, parser_->request());
  if (failure.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (failure.status == 415) headers.emplace_back("Accept-Encoding", "identity");
  const std::string body = HttpErrorBody(failure);
  const HttpHead head = {.status = failure.status,
                         .content_type = "application/json",
                         .content_length = std::ssize(body)};
  std::string answer = FormatHttpHead(head, headers, UnixSeconds()) + body;
  parser_.reset();
  pending_ = {};
  ReleaseBody();
  phase_ = Phase::kRefusing;
  read_deadline_ = TimePoint::max();
  (writing_ ? next_out_ : out_) = std::move(answer);
  if (!writing_) StartWrite();
}

// Writing.

void Connection::Pump() {
  if (phase_ != Phase::kRunning) return;
  if (exchange_->AnswerWake()) return Drop("slow_reader");
  if (writing_) return;
  ExchangeState::Output output = exchange_->TakeOutput();
  out_ = std::move(output.bytes);
  out_is_answer_ = true;
  if (!out_.empty()) return StartWrite();
  if (output.broken) return Drop("unfinished");
  if (output.ended) FinishExchange();
}

void Connection::FinishExchange() {
  const int status = exchange_->status();
  const bool keep_alive =
      exchange_->keep_alive() && !discards_ && !client_finished_ && !core_->draining.load();
  core_->CountRequest(status);
  if (core_->options.logger != nullptr) {
    const std::chrono::duration<double> seconds = steady_clock::now() - request_start_;
    core_->options.logger->Debug("http_request", {{"id", request_id_},
                                                  {"request", request_line_},
                                                  {"peer", peer_},
                                                  {"status", status},
                                                  {"seconds", seconds.count()}});
  }
  std::exchange(exchange_, nullptr)->Complete();
  ReleaseBody();
  began_ = false;
  if (!keep_alive) return BeginLinger();
  phase_ = Phase::kReading;
  SetReadDeadline(core_->options.idle_timeout_ms);
  Parse();
}

void Connection::StartWrite() {
  writing_ = true;
  write_deadline_ = steady_clock::now() + milliseconds(core_->options.write_stall_timeout_ms);
  ArmTimer();
  socket_.async_write_some(
      asio::buffer(out_.data() + out_offset_, out_.size() - out_offset_),
      [self = shared_from_this()](const ErrorCode& error, size_t n) { self->OnWritten(error, n); });
}

void Connection::OnWritten(const ErrorCode& error, size_t count) {
  writing_ = false;
  write_deadline_ = TimePoint::max();
  if (phase_ == Phase::kClosed) return;
  if (error) {
    if (phase_ == Phase::kRunning) return Drop("client_gone");
    return Close();
  }
  out_offset_ += count;
  if (exchange_ && out_is_answer_) exchange_->NoteWritten(static_cast<int64_t>(count));
  if (out_offset_ < out_.size()) return StartWrite();
  out_offset_ = 0;
  out_is_answer_ = false;
  out_ = std::exchange(next_out_, {});
  if (!out_.empty()) return StartWrite();
  if (phase_ == Phase::kRunning) Pump();
  if (phase_ == Phase::kRefusing) BeginLinger();
}

void Connection::BeginLinger() {
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (client_finished_ || core_->draining.load()) return Close();
  phase_ = Phase::kLingering;
  pending_ = {};
  SetReadDeadline(core_->options.linger_timeout_ms);
}

// Time.

void Connection::SetReadDeadline(int64_t from_now_ms) {
  read_deadline_ = steady_clock::now() + milliseconds(from_now_ms);
  ArmTimer();
}

void Connection::ArmTimer() {
  const TimePoint deadline = std::min(read_deadline_, write_deadline_);
  if (deadline >= timer_at_) return;  // it looks again when it fires
  timer_at_ = deadline;
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) { self->OnTimer(error); });
}

void Connection::OnTimer(const ErrorCode& error) {
  if (error || phase_ == Phase::kClosed) return;  // cancelled: an earlier wait took its place
  timer_at_ = TimePoint::max();
  if (steady_clock::now() < std::min(read_deadline_, write_deadline_)) {
    ArmTimer();
  } else {
    OnDeadline();
  }
}

void Connection::OnDeadline() {
  const bool stalled = steady_clock::now() >= write_deadline_;
  if (phase_ == Phase::kRunning) {
    Drop("slow_reader");
  } else if (phase_ == Phase::kReading && began_ && !stalled) {
    Refuse({408, "the request did not arrive in time", "request_timeout"});
  } else {
    Close();
  }
}

}  // namespace k3::server
