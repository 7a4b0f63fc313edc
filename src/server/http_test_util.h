#pragma once
// What the tests of the HTTP server share: a client that sends raw bytes, and a server whose
// handler gives the exchanges to the test.
//
// Every wait ends after kWaitMs, so that a hanging server fails a test and does not hold it up.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "server/http_server.h"

namespace k3::server {

inline constexpr int kWaitMs = 10'000;  // far beyond what any of it takes, also under TSan

/// Whether `condition` comes true in time.
inline bool Eventually(const std::function<bool()>& condition, int wait_ms = kWaitMs) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

/// One TCP connection to 127.0.0.1.
class RawClient {
 public:
  /// `receive_bytes` > 0 makes the socket's buffer that small.
  explicit RawClient(uint16_t port, int receive_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }

  /// False when the connection is gone.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  /// Reads until `text` has come (and maybe more), the connection ends, or the time is up.
  bool ReadUntil(std::string_view text, int wait_ms = kWaitMs) {
    while (received_.find(text) == std::string::npos) {
      if (!ReadSome(wait_ms)) return false;
    }
    return true;
  }

  /// Everything until the server closes; `*closed` is false when it does not.
  std::string ReadAll(bool* closed = nullptr, int wait_ms = kWaitMs) {
    while (ReadSome(wait_ms)) {
    }
    if (closed != nullptr) *closed = ended_;
    return std::exchange(received_, {});
  }

  /// One answer with a Content-Length: head and body. Empty when none comes.
  std::string ReadResponse(bool has_body = true) {
    if (!ReadUntil("\r\n\r\n")) return {};
    const size_t head_end = received_.find("\r\n\r\n") + 4;
    size_t length = 0;
    const size_t field = received_.find("Content-Length: ");
    if (has_body && field < head_end) length = std::stoul(received_.substr(field + 16));
    while (received_.size() < head_end + length) {
      if (!ReadSome(kWaitMs)) return {};
    }
    const std::string response = received_.substr(0, head_end + length);
    received_.erase(0, head_end + length);
    return response;
  }

  bool ReadSome(int wait_ms) {
    pollfd event = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (ended_ || poll(&event, 1, wait_ms) != 1) return false;
    char buffer[4096];
    const ssize_t count = recv(fd_, buffer, sizeof buffer, 0);
    ended_ = count <= 0;
    was_reset_ = count < 0;
    if (ended_) return false;
    received_.append(buffer, static_cast<size_t>(count));
    return true;
  }

  const std::string& received() const { return received_; }
  bool was_reset() const { return was_reset_; }

  void FinishSending() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  /// Ends the connection with an RST.
  void Reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    Close();
  }

 private:
  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  bool was_reset_ = false;
  std::string received_;
};

/// A server whose handler answers /echo and /health itself; any other path is left to the test,
/// which takes the exchanges in their order.
class TestServer {
 public:
  explicit TestServer(HttpServerOptions options = {}) {
    options.metrics = &metrics;
    auto started = HttpServer::Start(std::move(options), [this](auto exchange, auto request) {
      Handle(std::move(exchange), std::move(request));
    });
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    server = std::move(started).value();
  }
  ~TestServer() {
    server.reset();  // before what its handler uses
  }

  uint16_t port() const { return server->port(); }

  /// The next exchange; null when none comes.
  std::shared_ptr<HttpExchange> Take() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::milliseconds(kWaitMs),
                           [this] { return !exchanges_.empty(); })) {
      return nullptr;
    }
    auto exchange = std::move(exchanges_.front());
    exchanges_.pop_front();
    return exchange;
  }

  MetricsRegistry metrics;
  std::unique_ptr<HttpServer> server;

 private:
  // Shared as HttpHandler has it.
  void Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
    if (request.path == "/health") return exchange->Respond(200, "text/plain", "fine");
    if (request.path == "/nothing") return;
    if (request.path == "/echo" || request.path.starts_with("/echo/")) {
      return exchange->Respond(
          200, "text/plain",
          request.method + "|" + request.path + "|" + request.query + "|" + request.body);
    }
    const std::lock_guard lock(mutex_);
    exchanges_.push_back(std::move(exchange));
    arrived_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<HttpExchange>> exchanges_;  // shared with the server, until taken
};

}  // namespace k3::server
