#pragma once
// Scheduler: many requests at once on one engine, by continuous batching.
//
//   K3_TRY(std::unique_ptr<Scheduler> scheduler, Scheduler::Start(*engine, options));
//   K3_TRY(const uint64_t id, scheduler->Submit(std::move(request), std::move(sink)));
//   scheduler->Cancel(id);          // ends it within one pass
//   scheduler->Drain(deadline_s);   // no new ones; waits for the running ones
//
// One thread owns everything that runs: it takes requests from the queue, looks their prompts up in
// the prefix store, and runs passes in which every decoding sequence has one token and prompts fill
// the rest of a budget (pass_planner.h). What a request gets does not depend on the others: the
// same bits alone, in a full batch, and from the cache.
//
// Memory is planned: a request is started only when the state it can grow to, beside those of the
// running ones and the cache's budget, stays below `memory_bytes_max`. It waits otherwise; one that
// could never fit, and one that finds the queue full, is refused by Submit.
//
// Submit, Cancel, Stats and Drain may be called from any thread. Sinks are called from the
// scheduler's thread, one call at a time, and must be quick; they may call Cancel and Submit. The
// engine must outlive the scheduler, and nobody else may run passes on it.
// Source: serving contract; technical report, section 5.4.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/generate.h"
#include "engine/pass_planner.h"
#include "engine/prefix_store.h"
#include "sample/token_constraint.h"

namespace k3 {

struct SchedulerOptions {
  int64_t streams_max = 16;  // running at once
  int64_t queue_max = 256;   // waiting beside them, all classes together
  PassBudget budget;
  /// Of all running sequences and the cache together; 0: three quarters of what is available.
  int64_t memory_bytes_max = 0;
  PrefixStoreOptions prefix;
  /// Background requests that may wait; more replace the oldest.
  int64_t background_max = 64;
  /// Called before each pass with every sequence in it. For tests that break one.
  std::function<void(uint64_t id, cache::SequenceState& state)> before_pass;
};

struct ScheduledRequest {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  int64_t max_tokens = kDefaultGeneratedTokens;  // 0: the prompt is read and kept, nothing else
  std::vector<int64_t> stop_ids;
  std::unique_ptr<TokenConstraint> constraint;  // null: any token may come
  std::string cache_salt;                       // tenants with different ones share nothing
  /// Ends of parts of the prompt that other prompts will begin with: system prompt and tools, the
  /// last message. Ascending, within the prompt; 0 and repeats are ignored.
  std::vector<int64_t> boundaries;
  /// Nobody waits for it: it takes part in passes only where no other prompt does.
  bool background = false;
};

/// How a request went, as far as it got.
struct ScheduledResult {
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<int32_t> stop_id;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  bool from_disk = false;
  /// Of the cached tokens, those whose state was computed in decode form (--reuse-decoded).
  int64_t decoded_tokens = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;  // from its start to the first token
  double decode_seconds = 0;
};

/// Receives one request's answer, on the scheduler's thread.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  /// It has left the queue: `cached` of the prompt's tokens need not be run.
  virtual void OnStart(int64_t /*cached*/) {}
  virtual void OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) {}
  virtual SinkVerdict OnToken(const SampledToken& token) = 0;
  /// The last call, exactly once, whatever happened. Failures: Internal for logits that are no
  /// numbers, Cancelled after Cancel and at shutdown, and those of Engine::Run.
  virtual void OnEnd(const Result<ScheduledResult>& result) = 0;
};

struct SchedulerStats {
  int64_t queued = 0;
  int64_t queued_background = 0;
  int64_t running = 0;
  int64_t decoding = 0;
  int64_t last_batch_tokens = 0;
  int64_t last_batch_streams = 0;
  int64_t passes = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t started = 0;
  int64_t finished = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t refused = 0;
  int64_t planned_bytes = 0;  // of running sequences, at their largest
  int64_t memory_bytes_max = 0;
  double prefill_tokens_per_second = 0;
  bool draining = false;
  PrefixStoreStats prefix;
};

class Scheduler {
 public:
  static Result<std::unique_ptr<Scheduler>> Start(Engine& engine, SchedulerOptions options);
  /// Cancels what is left.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues a request. InvalidArgument for what Generate refuses, and for one that needs more
  /// memory than there may be; ResourceExhausted when the queue is full; Unavailable while
  /// draining. After a failure the sink was not called and is gone.
  Result<uint64_t> Submit(ScheduledRequest request, std::unique_ptr<RequestSink> sink);

  /// The largest max_tokens that Submit takes behind a prompt of so many tokens.
  int64_t RoomBehind(int64_t prompt_tokens) const;

  /// Ends a request after the pass that is running, if it is not over yet.
  void Cancel(uint64_t id);

  /// Whether `count` more requests would find a place: InvalidArgument if never, ResourceExhausted
  /// if not now.
  Status HasPlacesFor(int64_t count) const;

  /// Ends everything that is still running or waiting, with Unavailable. After Drain, for what did
  /// not end in time.
  void Abandon();

  /// Refuses new requests and waits until the running and queued ones are over, at most `seconds`;
  /// whether they are. Background work is dropped.
  bool Drain(double seconds);

  SchedulerStats Stats() const;

 private:
  struct RequestRun;  // request_run.h
  struct Pass;
  using Runs = std::vector<std::unique_ptr<RequestRun>>;

  Scheduler(Engine& engine, SchedulerOptions options, std::unique_ptr<PrefixStore> prefix);

  Status Check(const ScheduledRequest& request) const;
  /// Bytes of the sequence at its largest.
  int64_t PlannedBytes(const ScheduledRequest& request) const;
  int64_t places() const { return options_.streams_max + options_.queue_max; }
  int64_t room_bytes() const {
    return options_.memory_bytes_max - options_.prefix.memory_bytes_max;
  }

  void Loop();
  /// False when the scheduler stops.
  bool AwaitWork();
  void Admit();
  RequestRun* NextToAdmit();
  bool HasRoomFor(const RequestRun& run) const;
  bool AwaitsPrefixOf(const RequestRun& run, const RequestRun& other) const;
  void Begin(RequestRun& run);
  void StartReading(RequestRun& run);
  /// Ends what was cancelled, starts to read what the disk has answered.
  void Attend();
  void RemoveEnded();
  void PublishStats();

  // scheduler_pass.cc
  Pass PlanNextPass();
  void CountPass(const Pass& pass, int64_t start_ns, int64_t end_ns);
  void RunPass();
  void AfterReading(RequestRun& run, int64_t tokens);
  void SampleAll(std::span<RequestRun* const> runs);
  void TakeToken(RequestRun& run, const Result<SampledToken>& token);
  void Finish(RequestRun& run, FinishReason reason);
  void End(RequestRun& run, const Result<ScheduledResult>& result);

  Engine& engine_;
  const SchedulerOptions options_;

  // The scheduler's thread alone.
  std::unique_ptr<PrefixStore> prefix_;
  Runs waiting_;  // in order of arrival
  Runs running_;
  std::vector<float> logits_;  // [sampled, V] of the last pass
  uint64_t pass_ = 0;
  double prefill_tokens_per_second_ = 0;
  int64_t background_rests_ns_ = 0;  // until then, while somebody decodes
  SchedulerStats stats_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_arrived_;
  std::condition_variable work_ended_;
  Runs submitted_;
  std::vector<uint64_t> cancelled_;
  int64_t unfinished_ = 0;    // foreground requests that were accepted and are not over
  int64_t queued_count_ = 0;  // of them, those that have not begun
  int64_t background_count_ = 0;
  uint64_t next_id_ = 1;
  bool draining_ = false;
  bool abandoned_ = false;
  bool stopping_ = false;
  SchedulerStats published_;

  std::thread thread_;
};

}  // namespace k3
