#pragma once
// CompletionRun: one request for completions from its prompts to its response. It has one choice
// for each sequence that the scheduler runs for it, puts their tokens together, and streams them or
// answers when the last one is over.
//
//   auto run = CompletionRun::Create(exchange, plan);
//   for (choice c) scheduler.Submit(..., run->MakeSink(c));
//   run->Start(scheduler, ids);
//
// Shared: the sinks of its choices, which live in the scheduler, and the service both hold it. Its
// one mutex guards everything that changes, as sinks are called by the scheduler's thread and Tick
// by the service's. A failure of one choice ends the response; the others are cancelled.
//
// Owns the request and the streams of its choices. Borrows the tokenizer, the scheduler and the
// observer, which must outlive it.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "server/answer_stream.h"
#include "server/api_errors.h"
#include "server/api_request.h"
#include "server/api_response.h"
#include "server/http_types.h"

namespace k3::server {

/// What is measured of a request when it is over.
struct CompletionRecord {
  std::string id;
  bool chat = false;
  bool stream = false;
  std::string outcome;  // stop, length, tool_calls, cancelled, error
  Usage usage;
  bool from_disk = false;
  int64_t decoded_tokens = 0;
  double queue_seconds = 0;
  std::optional<double> first_token_seconds;
  double total_seconds = 0;
};

/// What a run is made of.
struct CompletionPlan {
  std::optional<ChatCompletionRequest> chat;  // else a text completion
  CompletionParams params;
  ResponseInfo info;
  int64_t choices_count = 1;
  int64_t prompt_tokens = 0;  // of all prompts together
};

class CompletionRun;
/// Shared: the sinks of its choices and the service hold it.
using CompletionRunPtr = std::shared_ptr<CompletionRun>;

class CompletionRun : public std::enable_shared_from_this<CompletionRun> {
 public:
  struct Hooks {
    /// Of a choice that ended by itself, in chat form or not: what may be kept for the next turn.
    std::function<void(const CompletionRun& run, int64_t choice)> on_answer;
    std::function<void(const CompletionRecord& record)> on_end;
  };

  static CompletionRunPtr Create(HttpExchangePtr exchange, CompletionPlan plan, Hooks hooks);

  /// One stream for each choice, in order, before any sink is made.
  void AddChoice(std::unique_ptr<AnswerStream> stream, std::vector<int32_t> prompt);
  std::unique_ptr<RequestSink> MakeSink(int64_t choice);

  /// Everything is submitted, as `ids`: from now on a client that leaves cancels them.
  void Start(Scheduler& scheduler, std::vector<uint64_t> ids);
  /// A choice that the scheduler did not take.
  void NotSubmitted(int64_t choice, const Status& status) { OnEnd(choice, status); }
  /// Keeps a stream that says nothing alive. Called about once a second.
  void Tick();
  bool over() const;

  const CompletionPlan& plan() const { return plan_; }
  /// Once the choice is over: its ids behind the prompt's, and what they say.
  const std::vector<int32_t>& tokens(int64_t choice) const;
  const ParsedAnswer& answer(int64_t choice) const;

 private:
  struct ChoiceState {
    std::unique_ptr<AnswerStream> stream;
    std::vector<int32_t> tokens;  // prompt, then generated
    std::string finish_reason;    // empty while it runs
  };
  class Sink;

  CompletionRun(HttpExchangePtr exchange, CompletionPlan plan, Hooks hooks);

  void OnStart(int64_t cached);
  SinkVerdict OnToken(int64_t choice, const SampledToken& token);
  void OnEnd(int64_t choice, const Result<ScheduledResult>& result);
  void Fail(const Status& status);
  void Conclude();
  void Send(std::string frame);
  void CancelAll();
  Usage UsageNow() const;
  bool is_chat() const { return plan_.chat.has_value(); }

  const HttpExchangePtr exchange_;  // shared with the connection
  const CompletionPlan plan_;
  const Hooks hooks_;

  mutable std::mutex mutex_;  // guards everything below
  Scheduler* scheduler_ = nullptr;
  std::vector<uint64_t> ids_;
  std::vector<ChoiceState> choices_;
  int64_t ended_count_ = 0;
  bool started_ = false;
  bool failed_ = false;
  bool is_over_ = false;
  int64_t created_ns_ = 0;
  int64_t sent_ns_ = 0;
  CompletionRecord record_;
};

}  // namespace k3::server
