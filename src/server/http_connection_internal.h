#pragma once
// Connection: one client's socket, on the I/O thread; ServerCore: what all connections share.
//
// A connection lives as long as a read, write or timer of it is pending (they hold it, therefore
// shared pointers) and takes itself out of the core when it closes. Everything here runs on the
// I/O thread, except the atomics of the core and Connection's constructor. Not one of the room's
// public headers: those are free of Boost.
//
// What a connection does, phase by phase:
//
//   kReading   a request comes in (or none yet); refusals lead to kRefusing
//   kRunning   the handler has it; answer bytes go out as they come; reading goes on, to notice
//              that the client leaves and to keep what it pipelines
//   kRefusing  an answer to a request that the handler never saw is being written
//   kLingering all is written and our side is shut down; what still comes in is thrown away until
//              the client closes, since closing with unread bytes would destroy the answer
//   kClosed

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "server/http_exchange_internal.h"
#include "server/http_request_parser.h"
#include "server/http_response.h"
#include "server/http_server.h"

namespace k3::server {

class Connection;

struct ServerCore {
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connections_count{0};

  // The I/O thread's own.
  std::unordered_set<Connection*> connections;
  uint64_t requests_count = 0;
  int64_t bodies_bytes = 0;
  std::function<void()> on_last_closed;  // may be empty

  void CountRequest(int status);
  void CountDropped(std::string_view reason);
  void CountConnection(int64_t change);
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `core` must outlive the connection.
  Connection(ServerCore* core, boost::asio::ip::tcp::socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start();
  /// Answers the first bytes, whatever they are, with a refusal.
  void StartRefused(const HttpFailure& failure);
  /// Closes unless a request runs.
  void Drain();
  /// Ends at once; a running request's exchange is then gone.
  void Close();

 private:
  enum class Phase { kReading, kRunning, kRefusing, kLingering, kClosed };
  using TimePoint = std::chrono::steady_clock::time_point;
  using ErrorCode = boost::system::error_code;

  void StartRead();
  void OnRead(const ErrorCode& error, size_t count);
  void OnReadEnd(const ErrorCode& error);

  void Parse();
  void OnHead();
  void Dispatch();
  /// Answers without the handler and ends the connection.
  void Refuse(const HttpFailure& failure);
  void ChargeBody();
  void ReleaseBody();

  void Pump();
  void FinishExchange();
  void StartWrite();
  void OnWritten(const ErrorCode& error, size_t count);
  void BeginLinger();
  /// The client left or is given up.
  void Drop(std::string_view reason);

  void SetReadDeadline(int64_t from_now_ms);
  void ArmTimer();
  void OnTimer(const ErrorCode& error);
  void OnDeadline();

  ServerCore* const core_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::string peer_;
  Phase phase_ = Phase::kReading;

  // Reading.
  std::array<char, 16 << 10> read_buffer_;
  std::string pending_;  // read, not yet parsed
  std::unique_ptr<HttpRequestParser> parser_;
  bool began_ = false;            // bytes of a request are there
  bool discards_ = false;         // too much was pipelined: the connection ends after the answer
  bool client_finished_ = false;  // it has shut down its side
  int64_t charged_bytes_ = 0;     // of core_->bodies_bytes

  // Writing.
  std::shared_ptr<ExchangeState> exchange_;  // shared with the handle that the handler has
  std::string out_;                          // being written
  std::string next_out_;                     // a refusal that waits for it
  size_t out_offset_ = 0;
  bool out_is_answer_ = false;  // out_ came from the exchange, which counts its bytes
  bool writing_ = false;

  // The running request, for the log.
  uint64_t request_id_ = 0;
  std::string request_line_;
  TimePoint request_start_;

  TimePoint read_deadline_ = TimePoint::max();
  TimePoint write_deadline_ = TimePoint::max();
  TimePoint timer_at_ = TimePoint::max();  // max: not armed
};

}  // namespace k3::server
