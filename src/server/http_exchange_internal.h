#pragma once
// ExchangeState: what an HttpExchange and its connection share, and MakeExchange.
//
// Any thread writes into it, the connection's thread takes the bytes out. Shared because either may
// outlive the other: the handle given to the handler (whose end without an answer must be noticed)
// and the connection. Nothing here knows sockets; `wake` tells the connection that there is
// something to take. Not one of the room's public headers.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http_types.h"

namespace k3::server {

class ExchangeState {
 public:
  struct Setup {
    bool is_http11 = true;
    bool keep_alive = false;
    bool head_only = false;  // the answer to HEAD
    int64_t queued_bytes_max = 0;
    HttpHeaders headers;  // of every answer
    /// Called under the mutex, so it must only post; not called once Complete or MarkGone ran.
    std::function<void()> wake;
    /// While true, answers say that the connection closes. Read only until Complete or MarkGone.
    const std::atomic<bool>* draining = nullptr;
  };

  /// What is there to be written, and what comes after it.
  struct Output {
    std::string bytes;
    bool ended = false;   // the answer is complete with these bytes
    bool broken = false;  // its owner left it unfinished
  };

  explicit ExchangeState(Setup setup);
  ExchangeState(const ExchangeState&) = delete;
  ExchangeState& operator=(const ExchangeState&) = delete;

  // For the owner of the request, any thread: see HttpExchange.
  void Respond(int status, std::string content_type, std::string body, HttpHeaders headers);
  void StartEvents(HttpHeaders headers);
  void SendEvent(std::string_view bytes);
  void EndEvents();
  void OnGone(std::function<void()> callback);
  /// The last handle went away.
  void Abandon();
  bool gone() const { return gone_.load(std::memory_order_acquire); }
  int64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

  // For the connection, its thread.
  /// What a wake leads to, before anything else. Whether the client does not take its answer fast
  /// enough and is to be dropped.
  bool AnswerWake();
  Output TakeOutput();
  void NoteWritten(int64_t bytes) { queued_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  bool ended() const;
  bool keep_alive() const;
  int status() const;
  /// The answer has been written.
  void Complete();
  /// The client is gone; runs the callbacks.
  void MarkGone();

 private:
  // All of them need the mutex.
  void RespondLocked(int status, std::string content_type, std::string body, HttpHeaders headers);
  void Append(std::string_view bytes);
  void Wake();
  std::vector<std::function<void()>> Close();

  mutable std::mutex mutex_;
  Setup setup_;
  std::string outbox_;
  std::vector<std::function<void()>> on_gone_;
  int status_ = 0;  // 0: not started
  bool chunked_ = false;
  bool ended_ = false;
  bool broken_ = false;
  bool overflowed_ = false;
  bool wake_pending_ = false;
  bool closed_ = false;  // the connection is done with it
  std::atomic<bool> gone_{false};
  std::atomic<int64_t> queued_bytes_{0};
};

/// The handle for the handler.
std::shared_ptr<HttpExchange> MakeExchange(std::shared_ptr<ExchangeState> state);

}  // namespace k3::server
