#include <utility>

#include "base/check.h"
#include "server/http_exchange_internal.h"
#include "server/http_response.h"

namespace k3::server {
namespace {

class ExchangeHandle final : public HttpExchange {
 public:
  // The state is shared with the connection.
  explicit ExchangeHandle(std::shared_ptr<ExchangeState> state) : state_(std::move(state)) {}
  ~ExchangeHandle() override { state_->Abandon(); }

  void Respond(int status, std::string content_type, std::string body,
               HttpHeaders headers) override {
    state_->Respond(status, std::move(content_type), std::move(body), std::move(headers));
  }
  void StartEvents(HttpHeaders headers) override { state_->StartEvents(std::move(headers)); }
  void SendEvent(std::string bytes) override { state_->SendEvent(bytes); }
  void EndEvents() override { state_->EndEvents(); }
  bool gone() const override { return state_->gone(); }
  void OnGone(std::function<void()> callback) override { state_->OnGone(std::move(callback)); }
  int64_t queued_bytes() const override { return state_->queued_bytes(); }

 private:
  const std::shared_ptr<ExchangeState> state_;  // shared with the connection too
};

}  // namespace

// Shared pointers: see the header.
std::shared_ptr<HttpExchange> MakeExchange(std::shared_ptr<ExchangeState> state) {
  // The handler may share it with others.
  return std::make_shared<ExchangeHandle>(std::move(state));
}

ExchangeState::ExchangeState(Setup setup) : setup_(std::move(setup)) {}

void ExchangeState::Append(std::string_view bytes) {
  outbox_ += bytes;
  queued_bytes_.fetch_add(std::ssize(bytes), std::memory_order_relaxed);
}

void ExchangeState::Wake() {
  if (wake_pending_ || closed_) return;
  wake_pending_ = true;
  setup_.wake();
}

void ExchangeState::RespondLocked(int status, std::string content_type, std::string body,
                                  HttpHeaders headers) {
  if (closed_ || status_ != 0) return;
  if (setup_.draining->load()) setup_.keep_alive = false;
  headers.insert(headers.end(), setup_.headers.begin(), setup_.headers.end());
  const HttpHead head = {.status = status,
                         .content_type = std::move(content_type),
                         .content_length = std::ssize(body),
                         .keep_alive = setup_.keep_alive};
  status_ = status;
  ended_ = true;
  Append(FormatHttpHead(head, headers, UnixSeconds()));
  if (!setup_.head_only && status != 204) Append(body);
  Wake();
}

void ExchangeState::Respond(int status, std::string content_type, std::string body,
                            HttpHeaders headers) {
  const std::lock_guard lock(mutex_);
  RespondLocked(status, std::move(content_type), std::move(body), std::move(headers));
}

void ExchangeState::StartEvents(HttpHeaders headers) {
  const std::lock_guard lock(mutex_);
  if (closed_ || status_ != 0) return;
  chunked_ = setup_.is_http11;
  // HTTP/1.0 has no chunks: there the end of the connection is the end of the stream.
  if (!chunked_ || setup_.draining->load()) setup_.keep_alive = false;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // proxies of nginx's kind must not collect
  headers.insert(headers.end(), setup_.headers.begin(), setup_.headers.end());
  const HttpHead head = {.status = 200,
                         .content_type = "text/event-stream; charset=utf-8",
                         .framing = chunked_ ? HttpFraming::kChunked : HttpFraming::kUntilClose,
                         .keep_alive = setup_.keep_alive};
  status_ = 200;
  Append(FormatHttpHead(head, headers, UnixSeconds()));
  ended_ = setup_.head_only;
  Wake();
}

void ExchangeState::SendEvent(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_ || status_ == 0 || ended_ || overflowed_ || bytes.empty()) return;
  if (queued_bytes() + std::ssize(bytes) > setup_.queued_bytes_max) {
    overflowed_ = true;
  } else if (chunked_) {
    Append(FormatHttpChunk(bytes));
  } else {
    Append(bytes);
  }
  Wake();
}

void ExchangeState::EndEvents() {
  const std::lock_guard lock(mutex_);
  if (closed_ || status_ == 0 || ended_) return;
  ended_ = true;
  if (chunked_) Append(kHttpLastChunk);
  Wake();
}

void ExchangeState::Abandon() {
  const std::lock_guard lock(mutex_);
  if (closed_ || ended_) return;
  if (status_ == 0) {
    RespondLocked(500, "application/json",
                  HttpErrorBody({500, "the request ended without an answer", "internal_error"}),
                  {});
    return;
  }
  broken_ = true;
  Wake();
}

void ExchangeState::OnGone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      on_gone_.push_back(std::move(callback));
      return;
    }
  }
  if (gone()) callback();
}

bool ExchangeState::AnswerWake() {
  const std::lock_guard lock(mutex_);
  wake_pending_ = false;
  return overflowed_;
}

ExchangeState::Output ExchangeState::TakeOutput() {
  const std::lock_guard lock(mutex_);
  return {std::exchange(outbox_, {}), ended_, broken_};
}

bool ExchangeState::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool ExchangeState::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return setup_.keep_alive;
}

int ExchangeState::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::vector<std::function<void()>> ExchangeState::Close() {
  closed_ = true;
  setup_.wake = nullptr;
  setup_.draining = nullptr;
  outbox_ = {};
  queued_bytes_.store(0, std::memory_order_relaxed);
  return std::exchange(on_gone_, {});
}

void ExchangeState::Complete() {
  // The callbacks, and what they hold, are destroyed outside the lock.
  std::vector<std::function<void()>> unused;
  const std::lock_guard lock(mutex_);
  K3_CHECK(!closed_, "an exchange completes once");
  unused = Close();
}

void ExchangeState::MarkGone() {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    gone_.store(true, std::memory_order_release);
    callbacks = Close();
  }
  for (const auto& callback : callbacks) callback();
}

}  // namespace k3::server
