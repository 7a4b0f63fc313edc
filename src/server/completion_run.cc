#include "server/completion_run.h"

#include <algorithm>

#include "base/clock.h"

namespace k3::server {
namespace {

constexpr double kKeepAliveSeconds = 5;

}  // namespace

/// Hands what one sequence does to its run.
class CompletionRun::Sink : public RequestSink {
 public:
  Sink(CompletionRunPtr run, int64_t choice) : run_(std::move(run)), choice_(choice) {}
  void OnStart(int64_t cached) override { run_->OnStart(cached); }
  SinkVerdict OnToken(const SampledToken& token) override { return run_->OnToken(choice_, token); }
  void OnEnd(const Result<ScheduledResult>& result) override { run_->OnEnd(choice_, result); }

 private:
  const CompletionRunPtr run_;  // shared: see the class
  const int64_t choice_;
};

CompletionRun::CompletionRun(HttpExchangePtr exchange, CompletionPlan plan, Hooks hooks)
    : exchange_(std::move(exchange)),
      plan_(std::move(plan)),
      hooks_(std::move(hooks)),
      created_ns_(MonotonicNanoseconds()),
      sent_ns_(created_ns_) {
  record_.id = plan_.info.id;
  record_.chat = is_chat();
  record_.stream = plan_.params.stream;
}

CompletionRunPtr CompletionRun::Create(HttpExchangePtr exchange, CompletionPlan plan, Hooks hooks) {
  return CompletionRunPtr(
      new CompletionRun(std::move(exchange), std::move(plan), std::move(hooks)));
}

void CompletionRun::AddChoice(std::unique_ptr<AnswerStream> stream, std::vector<int32_t> prompt) {
  const std::lock_guard lock(mutex_);
  choices_.push_back({std::move(stream), std::move(prompt), {}});
}

std::unique_ptr<RequestSink> CompletionRun::MakeSink(int64_t choice) {
  return std::make_unique<Sink>(shared_from_this(), choice);
}

void CompletionRun::Start(Scheduler& scheduler, std::vector<uint64_t> ids) {
  {
    const std::lock_guard lock(mutex_);
    scheduler_ = &scheduler;
    ids_ = std::move(ids);
    // A choice may have failed before its siblings were known.
    if (failed_) CancelAll();
  }
  exchange_->OnGone([run = weak_from_this()] {
    if (const CompletionRunPtr alive = run.lock()) {
      const std::lock_guard lock(alive->mutex_);
      alive->CancelAll();
    }
  });
}

void CompletionRun::CancelAll() {
  if (scheduler_ == nullptr) return;
  for (const uint64_t id : ids_) scheduler_->Cancel(id);
}

bool CompletionRun::over() const {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

const std::vector<int32_t>& CompletionRun::tokens(int64_t choice) const {
  return choices_[static_cast<size_t>(choice)].tokens;
}

const ParsedAnswer& CompletionRun::answer(int64_t choice) const {
  return choices_[static_cast<size_t>(choice)].stream->answer();
}

void CompletionRun::Send(std::string frame) {
  if (frame.empty()) return;
  if (!started_) {
    // The head goes out with the first thing to say, so that a failure before it has its status.
    started_ = true;
    exchange_->StartEvents();
    if (is_chat()) {
      for (int64_t c = 0; c < plan_.choices_count; ++c) {
        exchange_->SendEvent(ChatRoleFrame(plan_.info, c));
      }
    }
  }
  sent_ns_ = MonotonicNanoseconds();
  exchange_->SendEvent(std::move(frame));
}

void CompletionRun::Tick() {
  const std::lock_guard lock(mutex_);
  if (!plan_.params.stream || is_over_ || failed_) return;
  if (SecondsBetween(sent_ns_, MonotonicNanoseconds()) >= kKeepAliveSeconds) {
    Send(std::string(kKeepAliveFrame));
  }
}

void CompletionRun::OnStart(int64_t cached) {
  const std::lock_guard lock(mutex_);
  // Choices of one prompt share it, and all but the first find it in the cache: the request as a
  // whole found what its first choice did.
  if (record_.usage.prompt_tokens == 0) {
    record_.usage.prompt_tokens = plan_.prompt_tokens;
    record_.usage.cached_tokens = cached;
    record_.queue_seconds = SecondsBetween(created_ns_, MonotonicNanoseconds());
  }
}

SinkVerdict CompletionRun::OnToken(int64_t choice, const SampledToken& token) {
  const std::lock_guard lock(mutex_);
  if (failed_ || exchange_->gone()) return SinkVerdict::kCancel;
  if (!record_.first_token_seconds.has_value()) {
    record_.first_token_seconds = SecondsBetween(created_ns_, MonotonicNanoseconds());
  }
  ChoiceState& state = choices_[static_cast<size_t>(choice)];
  state.tokens.push_back(token.id);
  AnswerDelta delta;
  const bool goes_on = state.stream->Feed(token, delta);
  if (plan_.params.stream) {
    Send(is_chat() ? ChatDeltaFrame(plan_.info, choice, delta)
                   : TextDeltaFrame(plan_.info, choice, delta));
  }
  return goes_on ? SinkVerdict::kContinue : SinkVerdict::kStop;
}

void CompletionRun::OnEnd(int64_t choice, const Result<ScheduledResult>& result) {
  bool keeps_answer = false, is_last = false;
  {
    const std::lock_guard lock(mutex_);
    ++ended_count_;
    is_last = ended_count_ == plan_.choices_count;
    if (!result.ok() || result->finish_reason == FinishReason::kCancelled) {
      Fail(result.ok() ? Cancelled("the client left") : result.status());
    } else {
      record_.from_disk |= result->from_disk;
      record_.decoded_tokens += result->decoded_tokens;
      if (!failed_) {
        ChoiceState& state = choices_[static_cast<size_t>(choice)];
        // The id that ended the answer belongs to the text that goes on from it.
        if (result->stop_id.has_value()) state.tokens.push_back(*result->stop_id);
        AnswerDelta rest;
        state.stream->Finish(rest);
        state.finish_reason = state.stream->FinishName(result->finish_reason);
        keeps_answer = true;
        if (plan_.params.stream) {
          Send(is_chat() ? ChatDeltaFrame(plan_.info, choice, rest)
                         : TextDeltaFrame(plan_.info, choice, rest));
          Send(is_chat() ? ChatFinishFrame(plan_.info, choice, state.stream->answer(),
                                           state.finish_reason)
                         : TextFinishFrame(plan_.info, choice, state.finish_reason));
        }
      }
    }
    if (is_last) Conclude();
  }
  if (keeps_answer && hooks_.on_answer) hooks_.on_answer(*this, choice);
  if (is_last && hooks_.on_end) hooks_.on_end(record_);
}

void CompletionRun::Fail(const Status& status) {
  if (failed_) return;
  failed_ = true;
  const bool was_cancelled = status.code() == StatusCode::kCancelled;
  record_.outcome = was_cancelled ? "cancelled" : "error";
  if (started_) {
    exchange_->SendEvent(ApiErrorFrame(ApiErrorOf(status)));
    exchange_->SendEvent(std::string(kDoneFrame));
    exchange_->EndEvents();
  } else {
    const ApiError error = ApiErrorOf(status);
    exchange_->Respond(error.http_status, "application/json", ApiErrorBody(error));
  }
  CancelAll();
}

Usage CompletionRun::UsageNow() const {
  Usage usage = record_.usage;
  for (const ChoiceState& state : choices_) {
    usage.completion_tokens += state.stream->completion_tokens();
    usage.reasoning_tokens += state.stream->reasoning_tokens();
  }
  return usage;
}

void CompletionRun::Conclude() {
  is_over_ = true;
  record_.usage = UsageNow();
  record_.total_seconds = SecondsBetween(created_ns_, MonotonicNanoseconds());
  if (failed_) return;
  record_.outcome = choices_.front().finish_reason;
  if (plan_.params.stream) {
    if (plan_.params.include_usage) {
      Send(is_chat() ? ChatUsageFrame(plan_.info, record_.usage)
                     : TextUsageFrame(plan_.info, record_.usage));
    }
    Send(std::string(kDoneFrame));
    exchange_->EndEvents();
    return;
  }
  std::vector<Choice> choices;
  for (size_t c = 0; c < choices_.size(); ++c) {
    const ChoiceState& state = choices_[c];
    choices.push_back({static_cast<int64_t>(c), state.stream->answer(), state.stream->tokens(),
                       state.finish_reason});
  }
  exchange_->Respond(200, "application/json",
                     is_chat() ? ChatCompletionBody(plan_.info, choices, record_.usage)
                               : TextCompletionBody(plan_.info, choices, record_.usage));
}

}  // namespace k3::server
