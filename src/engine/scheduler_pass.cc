// One pass of the scheduler: what runs in it, and what follows from it for each request.

#include <algorithm>

#include "base/clock.h"
#include "engine/request_run.h"
#include "engine/scheduler.h"

namespace k3 {
namespace {

// How fast the measured speed of prompts follows the newest pass.
constexpr double kNewestPassWeight = 0.5;

}  // namespace

void Scheduler::RunPass() {
  std::vector<RequestRun*> readers, sampled;
  std::vector<PrefillDemand> demands;
  model::Batch batch;
  std::vector<int32_t> rows;
  for (const auto& run : running_) {
    if (run->phase == RunPhase::kDecoding) {
      rows.push_back(static_cast<int32_t>(batch.segments.size()));
      batch.segments.push_back(
          {&*run->state, {&run->generated.back(), 1}, model::AttentionForm::kDecode});
      sampled.push_back(run.get());
    } else if (run->phase == RunPhase::kReading) {
      readers.push_back(run.get());
      demands.push_back({run->tokens_to_cut(), run->request_class(), run->last_served});
    }
  }
  const int64_t decoding_count = std::ssize(sampled);
  PassBudget budget = options_.budget;
  budget.prefill_tokens_per_second = prefill_tokens_per_second_;
  const std::vector<int64_t> plan = PlanPrefill(demands, decoding_count, budget);
  int64_t prefill_tokens = 0;
  for (size_t i = 0; i < readers.size(); ++i) {
    if (plan[i] == 0) continue;
    RequestRun& run = *readers[i];
    batch.segments.push_back(
        {&*run.state,
         std::span(run.request.prompt)
             .subspan(static_cast<size_t>(run.read), static_cast<size_t>(plan[i])),
         model::AttentionForm::kPrefill});
    prefill_tokens += plan[i];
    if (run.read + plan[i] == run.prompt_tokens() && run.wants_logits()) {
      rows.push_back(static_cast<int32_t>(decoding_count + prefill_tokens) - 1);
      sampled.push_back(&run);
    }
  }
  if (batch.segments.empty()) return;
  if (options_.before_pass) {
    for (const auto& run : running_) {
      if (run->state.has_value()) options_.before_pass(run->id, *run->state);
    }
  }
  ++pass_;
  const int64_t start_ns = MonotonicNanoseconds();
  logits_.resize(rows.size() * static_cast<size_t>(engine_.config().vocab_size));
  const Status status = engine_.Run(batch, rows, logits_.data());
  const double seconds = SecondsBetween(start_ns, MonotonicNanoseconds());
  if (prefill_tokens >= kBudgetTokensMin) {
    const double speed = static_cast<double>(prefill_tokens) / std::max(seconds, 1e-9);
    prefill_tokens_per_second_ =
        prefill_tokens_per_second_ == 0
            ? speed
            : kNewestPassWeight * speed + (1 - kNewestPassWeight) * prefill_tokens_per_second_;
  }
  ++stats_.passes;
  stats_.last_batch_tokens = decoding_count + prefill_tokens;
  stats_.last_batch_streams = std::ssize(batch.segments);
  stats_.prefill_tokens += prefill_tokens;
  stats_.decode_tokens += decoding_count;
  if (!status.ok()) {
    // The pass left their states unusable.
    for (const auto& run : running_) {
      const auto in_pass = [&](const model::Segment& s) {
        return run->state.has_value() && s.state == &*run->state;
      };
      if (std::ranges::any_of(batch.segments, in_pass)) End(*run, status);
    }
    return;
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    if (plan[i] > 0) AfterReading(*readers[i], plan[i]);
  }
  SampleAll(sampled);
}

void Scheduler::AfterReading(RequestRun& run, int64_t tokens) {
  run.read += tokens;
  run.last_served = pass_;
  const std::span<const int32_t> prompt(run.request.prompt);
  if (!run.cuts.empty() && run.cuts.front().at == run.read) {
    const PromptCut cut = run.cuts.front();
    run.cuts.erase(run.cuts.begin());
    prefix_->Keep(run.request.cache_salt, prompt.first(static_cast<size_t>(cut.at)), run.known,
                  cut.kind, *run.state);
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
  }
  work_ended_.notify_all();
}

}  // namespace k3
