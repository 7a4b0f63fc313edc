// One pass of the scheduler: what runs in it, and what follows from it for each request.

#include <algorithm>

#include "base/clock.h"
#include "engine/request_run.h"
#include "engine/scheduler.h"

namespace k3 {
namespace {

// How fast the measured speed of prompts follows the newest pass.
constexpr double kNewestPassWeight = 0.5;

// While somebody decodes, background work gets one part in this many of the time.
constexpr int64_t kBackgroundRest = 8;

}  // namespace

/// What runs in one pass.
struct Scheduler::Pass {
  model::Batch batch;
  std::vector<int32_t> rows;         // of the batch, whose logits are wanted
  std::vector<RequestRun*> sampled;  // whose they are; those that decode come first
  std::vector<RequestRun*> readers;
  std::vector<int64_t> plan;                              // [readers] tokens of each one's prompt
  std::vector<std::vector<model::SnapshotPoint>> points;  // [readers], at their next cuts
  int64_t decoding_count = 0;
  int64_t prefill_tokens = 0;
};

Scheduler::Pass Scheduler::PlanNextPass() {
  Pass pass;
  const bool is_decoding = std::ranges::any_of(
      running_, [](const auto& run) { return run->phase == RunPhase::kDecoding; });
  std::vector<PrefillDemand> demands;
  for (const auto& run : running_) {
    if (run->phase == RunPhase::kDecoding) {
      pass.rows.push_back(static_cast<int32_t>(pass.batch.segments.size()));
      pass.batch.segments.push_back(
          {&*run->state, {&run->generated.back(), 1}, model::AttentionForm::kDecode});
      pass.sampled.push_back(run.get());
    } else if (run->phase == RunPhase::kReading) {
      const bool rests = is_decoding && MonotonicNanoseconds() < background_rests_ns_;
      if (run->request.background && rests) continue;
      pass.readers.push_back(run.get());
      demands.push_back({run->tokens_left(), run->request_class(), run->last_served});
    }
  }
  pass.decoding_count = std::ssize(pass.sampled);
  PassBudget budget = options_.budget;
  budget.prefill_tokens_per_second = prefill_tokens_per_second_;
  pass.plan = PlanPrefill(demands, pass.decoding_count, budget);
  pass.points.resize(pass.readers.size());
  for (size_t i = 0; i < pass.readers.size(); ++i) {
    const int64_t tokens = pass.plan[i];
    if (tokens == 0) continue;
    RequestRun& run = *pass.readers[i];
    const std::span<const int32_t> prompt(run.request.prompt);
    for (PromptCut& cut : run.cuts) {
      if (cut.at > run.read + tokens) break;
      auto arrays = cache::KdaSnapshot::Unfilled(engine_.config());
      // Shared as every snapshot is.
      cut.snapshot = std::make_shared<cache::KdaSnapshot>(std::move(arrays));
      pass.points[i].push_back({cut.at, cut.snapshot.get()});
    }
    pass.batch.segments.push_back(
        {&*run.state, prompt.subspan(static_cast<size_t>(run.read), static_cast<size_t>(tokens)),
         model::AttentionForm::kPrefill, pass.points[i]});
    pass.prefill_tokens += tokens;
    if (run.read + tokens == run.prompt_tokens() && run.wants_logits()) {
      pass.rows.push_back(static_cast<int32_t>(pass.decoding_count + pass.prefill_tokens) - 1);
      pass.sampled.push_back(&run);
    }
  }
  return pass;
}

void Scheduler::CountPass(const Pass& pass, int64_t start_ns, int64_t end_ns) {
  const double seconds = SecondsBetween(start_ns, end_ns);
  if (pass.prefill_tokens >= kBudgetTokensMin) {
    const double speed = static_cast<double>(pass.prefill_tokens) / std::max(seconds, 1e-9);
    prefill_tokens_per_second_ =
        prefill_tokens_per_second_ == 0
            ? speed
            : kNewestPassWeight * speed + (1 - kNewestPassWeight) * prefill_tokens_per_second_;
  }
  for (size_t i = 0; i < pass.readers.size(); ++i) {
    if (pass.plan[i] == 0 || !pass.readers[i]->request.background) continue;
    background_rests_ns_ = end_ns + (kBackgroundRest - 1) * (end_ns - start_ns);
  }
  ++stats_.passes;
  stats_.last_batch_tokens = pass.decoding_count + pass.prefill_tokens;
  stats_.last_batch_streams = std::ssize(pass.batch.segments);
  stats_.prefill_tokens += pass.prefill_tokens;
  stats_.decode_tokens += pass.decoding_count;
}

void Scheduler::RunPass() {
  const Pass pass = PlanNextPass();
  if (pass.batch.segments.empty()) return;
  if (options_.before_pass) {
    for (const auto& run : running_) {
      if (run->state.has_value()) options_.before_pass(run->id, *run->state);
    }
  }
  ++pass_;
  logits_.resize(pass.rows.size() * static_cast<size_t>(engine_.config().vocab_size));
  const int64_t start_ns = MonotonicNanoseconds();
  const Status status = engine_.Run(pass.batch, pass.rows, logits_.data());
  CountPass(pass, start_ns, MonotonicNanoseconds());
  if (!status.ok()) {
    // The pass left their states unusable.
    for (const auto& run : running_) {
      const auto in_pass = [&](const model::Segment& s) {
        return run->state.has_value() && s.state == &*run->state;
      };
      if (std::ranges::any_of(pass.batch.segments, in_pass)) End(*run, status);
    }
    return;
  }
  for (size_t i = 0; i < pass.readers.size(); ++i) {
    if (pass.plan[i] > 0) AfterReading(*pass.readers[i], pass.plan[i]);
  }
  SampleAll(pass.sampled);
}

void Scheduler::AfterReading(RequestRun& run, int64_t tokens) {
  run.read += tokens;
  run.last_served = pass_;
  const std::span<const int32_t> prompt(run.request.prompt);
  while (!run.cuts.empty() && run.cuts.front().at <= run.read) {
    PromptCut cut = std::move(run.cuts.front());
    run.cuts.erase(run.cuts.begin());
    prefix_->Keep(run.request.cache_salt, prompt.first(static_cast<size_t>(cut.at)), run.known,
                  cut.kind, std::move(cut.snapshot), *run.state);
    if (cut.kind == cache::SnapshotKind::kPeriodic) run.transients.push_back(cut.at);
  }
  run.sink->OnPrefillProgress(run.read - run.known, run.prompt_tokens() - run.known);
  if (run.read == run.prompt_tokens() && !run.wants_logits()) Finish(run, FinishReason::kLength);
}

void Scheduler::SampleAll(std::span<RequestRun* const> runs) {
  const int64_t vocab_size = engine_.config().vocab_size;
  std::vector<Result<SampledToken>> tokens(runs.size(), Result<SampledToken>(SampledToken{}));
  // Draws do not depend on each other: each has its own sampler and constraint.
  engine_.pool().ParallelFor(std::ssize(runs), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      RequestRun& run = *runs[static_cast<size_t>(i)];
      const std::span<const float> logits(logits_.data() + i * vocab_size,
                                          static_cast<size_t>(vocab_size));
      TokenConstraint* constraint = run.request.constraint.get();
      tokens[static_cast<size_t>(i)] = run.sampler->Next(
          logits, constraint != nullptr ? constraint->Allowed() : std::span<const uint32_t>());
    }
  });
  for (size_t i = 0; i < runs.size(); ++i) TakeToken(*runs[i], tokens[i]);
}

void Scheduler::TakeToken(RequestRun& run, const Result<SampledToken>& token) {
  if (!token.ok()) return End(run, token.status());
  if (run.phase == RunPhase::kReading) {
    run.phase = RunPhase::kDecoding;
    run.first_token_ns = MonotonicNanoseconds();
    run.result.prefill_seconds = SecondsBetween(run.started_ns, run.first_token_ns);
  }
  if (std::ranges::count(run.request.stop_ids, token->id) > 0) {
    run.result.stop_id = token->id;
    return Finish(run, FinishReason::kStop);
  }
  run.generated.push_back(token->id);
  ++run.result.generated_tokens;
  if (run.request.constraint != nullptr) {
    run.request.constraint->Accept(token->id);
    // Nothing may follow, and nothing can be drawn.
    if (run.request.constraint->done()) {
      const SinkVerdict verdict = run.sink->OnToken(*token);
      return Finish(
          run, verdict == SinkVerdict::kCancel ? FinishReason::kCancelled : FinishReason::kStop);
    }
  }
  switch (run.sink->OnToken(*token)) {
    case SinkVerdict::kContinue:
      break;
    case SinkVerdict::kStop:
      return Finish(run, FinishReason::kStop);
    case SinkVerdict::kCancel:
      return Finish(run, FinishReason::kCancelled);
  }
  if (run.result.generated_tokens >= run.tokens_max(engine_.config())) {
    Finish(run, FinishReason::kLength);
  }
}

void Scheduler::Finish(RequestRun& run, FinishReason reason) {
  run.result.finish_reason = reason;
  if (run.first_token_ns > 0) {
    run.result.decode_seconds = SecondsBetween(run.first_token_ns, MonotonicNanoseconds());
  }
  if (prefix_->reuses_decoded() && run.state->length() > run.prompt_tokens()) {
    // The last generated token has not been run.
    std::vector<int32_t> tokens = run.request.prompt;
    tokens.insert(tokens.end(), run.generated.begin(), run.generated.end());
    tokens.resize(static_cast<size_t>(run.state->length()));
    prefix_->KeepDecoded(run.request.cache_salt, std::move(tokens),
                         run.prompt_tokens() - run.result.decoded_tokens, std::move(*run.state));
  }
  End(run, run.result);
}

void Scheduler::End(RequestRun& run, const Result<ScheduledResult>& result) {
  if (run.phase == RunPhase::kEnded) return;
  const bool began = run.phase != RunPhase::kQueued;
  run.phase = RunPhase::kEnded;
  for (const int64_t at : run.transients) {
    prefix_->DropTransient(run.request.cache_salt,
                           std::span(run.request.prompt).first(static_cast<size_t>(at)));
  }
  const bool was_cancelled = !result.ok() ? result.status().code() == StatusCode::kCancelled
                                          : result->finish_reason == FinishReason::kCancelled;
  ++(was_cancelled ? stats_.cancelled : result.ok() ? stats_.finished : stats_.failed);
  // What it held is free before anybody hears that it is over.
  run.found = PrefixFinding();
  run.state.reset();
  run.sink->OnEnd(result);
  run.sink.reset();
  {
    const std::lock_guard lock(mutex_);
    if (!began) --(run.request.background ? background_count_ : queued_count_);
    if (!run.request.background) --unfinished_;
    // Whoever waited for this end finds it counted.
    published_.finished = stats_.finished;
    published_.failed = stats_.failed;
    published_.cancelled = stats_.cancelled;
  }
  work_ended_.notify_all();
}

}  // namespace k3
