#include "server/http_server.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "server/http_connection_internal.h"

namespace k3::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

/// Connections beyond the limit that may be told so at the same time; more are just closed.
constexpr int64_t kRefusedConnectionsMax = 64;

Status CheckOptions(const HttpServerOptions& options) {
  const std::pair<std::string_view, int64_t> positive[] = {
      {"connections_max", options.connections_max},
      {"head_bytes_max", options.head_bytes_max},
      {"body_bytes_max", options.body_bytes_max},
      {"bodies_bytes_max", options.bodies_bytes_max},
      {"queued_bytes_max", options.queued_bytes_max},
      {"read_timeout_ms", options.read_timeout_ms},
      {"idle_timeout_ms", options.idle_timeout_ms},
      {"write_stall_timeout_ms", options.write_stall_timeout_ms},
      {"linger_timeout_ms", options.linger_timeout_ms}};
  for (const auto& [name, value] : positive) {
    if (value < 1) {
      return InvalidArgument(fmt::format("{}: expected at least 1, found {}", name, value));
    }
  }
  for (const std::string& key : options.api_keys) {
    // A header's value cannot hold anything else, so such a key could never be sent.
    const bool plain =
        std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (key.empty() || !plain) {
      return InvalidArgument("api_keys: expected printable ASCII without spaces in every key");
    }
  }
  return OkStatus();
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, HttpHandler handler) : acceptor_(io_), retry_(io_) {
    core_.options = std::move(options);
    core_.handler = std::move(handler);
  }

  Status Listen();
  void Run();
  void Stop(int64_t grace_ms);

  uint16_t port() const { return port_; }
  int64_t connections_count() const { return core_.connections_count.load(); }

 private:
  Status Bind(const tcp::endpoint& endpoint);
  void Accept();
  void OnAccept(const boost::system::error_code& error, tcp::socket socket);
  void BeginDrain();
  void CloseAll();

  ServerCore core_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  bool accept_fails_ = false;  // and the log says so already
  uint16_t port_ = 0;
  std::thread thread_;
};

Status HttpServer::Impl::Bind(const tcp::endpoint& endpoint) {
  const auto failure = [&](const boost::system::error_code& error) {
    const std::string text = fmt::format("listening on {} port {}: {}", core_.options.host,
                                         core_.options.port, error.message());
    if (error == asio::error::address_in_use) {
      return Unavailable(text + "; another program has it, choose another port");
    }
    return IoError(text);
  };
  boost::system::error_code error;
  acceptor_.close(error);
  acceptor_.open(endpoint.protocol(), error);
  if (error) return failure(error);
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (error) return failure(error);
  acceptor_.bind(endpoint, error);
  if (error) return failure(error);
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return failure(error);
  port_ = acceptor_.local_endpoint(error).port();
  return error ? failure(error) : OkStatus();
}

Status HttpServer::Impl::Listen() {
  K3_RETURN_IF_ERROR(CheckOptions(core_.options));
  boost::system::error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(core_.options.host, std::to_string(core_.options.port),
                                      tcp::resolver::passive, error);
  if (error || found.empty()) {
    return InvalidArgument(
        fmt::format("host {}: {}", core_.options.host, error ? error.message() : "no address"));
  }
  Status status;
  for (const auto& entry : found) {
    status = Bind(entry.endpoint());
    if (status.ok()) return status;
  }
  return status;
}

void HttpServer::Impl::Run() {
  Accept();
  // Signals are for the program's own threads, which know what to do with them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { io_.run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void HttpServer::Impl::Accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
    OnAccept(error, std::move(socket));
  });
}

void HttpServer::Impl::OnAccept(const boost::system::error_code& error, tcp::socket socket) {
  if (core_.draining.load() || error == asio::error::operation_aborted) return;
  if (error) {
    // Most likely no descriptors are left: accepting again at once would only turn in circles.
    if (core_.options.logger != nullptr && !std::exchange(accept_fails_, true)) {
      core_.options.logger->Warn("http_accept_failed", {{"error", error.message()}});
    }
    retry_.expires_after(milliseconds(100));
    retry_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled && !core_.draining.load()) Accept();
    });
    return;
  }
  accept_fails_ = false;
  const int64_t open = connections_count();
  if (open < core_.options.connections_max + kRefusedConnectionsMax) {
    // Shared by the pending operations of the connection, the last of which ends it.
    const auto connection = std::make_shared<Connection>(&core_, std::move(socket));
    if (open < core_.options.connections_max) {
      connection->Start();
    } else {
      connection->StartRefused({503, "too many connections; try again", "overloaded"});
    }
  }
  Accept();
}

void HttpServer::Impl::BeginDrain() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  const std::vector<Connection*> open(core_.connections.begin(), core_.connections.end());
  for (Connection* connection : open) connection->Drain();
}

void HttpServer::Impl::CloseAll() {
  const std::vector<Connection*> open(core_.connections.begin(), core_.connections.end());
  for (Connection* connection : open) connection->Close();
}

void HttpServer::Impl::Stop(int64_t grace_ms) {
  if (!thread_.joinable()) return;
  core_.draining.store(true);
  asio::post(io_, [this, grace_ms] {
    BeginDrain();
    retry_.expires_after(milliseconds(std::max<int64_t>(grace_ms, 0)));
    retry_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) CloseAll();
    });
    core_.on_last_closed = [this] { retry_.cancel(); };
    if (core_.connections.empty()) retry_.cancel();
  });
  // With the acceptor closed, the last connection's end leaves nothing to wait for.
  thread_.join();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(0); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                      HttpHandler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  K3_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port(); }
int64_t HttpServer::connections_count() const { return impl_->connections_count(); }
void HttpServer::Stop(int64_t grace_ms) { impl_->Stop(grace_ms); }

}  // namespace k3::server
