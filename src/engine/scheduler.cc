#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "engine/request_run.h"
#include "sys/machine.h"

namespace k3 {
namespace {

// Two prompts that begin alike are read one after the other when this many tokens are shared.
constexpr int64_t kSharedTokensMin = 64;

constexpr auto kDiskPoll = std::chrono::microseconds(500);

Status QueueIsFull(int64_t queued) {
  return ResourceExhausted(fmt::format("{} requests are waiting already; try again later", queued));
}

int64_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

Scheduler::Scheduler(Engine& engine, SchedulerOptions options, std::unique_ptr<PrefixStore> prefix)
    : engine_(engine), options_(std::move(options)), prefix_(std::move(prefix)) {
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
}

Result<std::unique_ptr<Scheduler>> Scheduler::Start(Engine& engine, SchedulerOptions options) {
  if (options.streams_max < 1 || options.queue_max < 0 || options.budget.chunk_tokens_max < 1 ||
      options.budget.pass_seconds_max <= 0 || options.memory_bytes_max < 0) {
    return InvalidArgument(
        "scheduler: streams and the chunk must be at least 1, the time of a pass above 0, the "
        "queue and the memory 0 or more");
  }
  if (options.memory_bytes_max == 0) {
    options.memory_bytes_max = ReadMemoryFacts().available_bytes / 4 * 3;
  }
  if (options.prefix.memory_bytes_max >= options.memory_bytes_max) {
    return InvalidArgument(fmt::format(
        "the cache's budget of {} bytes leaves nothing of the {} bytes for running requests; give "
        "it less",
        options.prefix.memory_bytes_max, options.memory_bytes_max));
  }
  K3_TRY(std::unique_ptr<PrefixStore> prefix, PrefixStore::Open(engine, options.prefix));
  return std::unique_ptr<Scheduler>(new Scheduler(engine, std::move(options), std::move(prefix)));
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_all();
  thread_.join();
}

int64_t Scheduler::PlannedBytes(const ScheduledRequest& request) const {
  const int64_t tokens =
      std::min(std::ssize(request.prompt) + request.max_tokens, engine_.config().context_max);
  return cache::SequenceStateBytes(engine_.config(), tokens);
}

int64_t Scheduler::RoomBehind(int64_t prompt_tokens) const {
  // Bytes grow with tokens: the last count that fits, by halving.
  int64_t fits = 0, beyond = engine_.config().context_max - prompt_tokens + 1;
  while (beyond - fits > 1) {
    const int64_t tokens = fits + (beyond - fits) / 2;
    const int64_t bytes = cache::SequenceStateBytes(engine_.config(), prompt_tokens + tokens);
    (bytes <= room_bytes() ? fits : beyond) = tokens;
  }
  return fits;
}

Status Scheduler::Check(const ScheduledRequest& request) const {
  K3_RETURN_IF_ERROR(
      CheckGeneration(engine_.config(), 0, request.prompt, request.sampling, request.max_tokens));
  if (const int64_t bytes = PlannedBytes(request); bytes > room_bytes()) {
    return InvalidArgument(fmt::format(
        "max_tokens: {} tokens behind a prompt of {} could take {} bytes, more than the {} that "
        "running requests have together; ask for fewer, or give the server more memory",
        request.max_tokens, request.prompt.size(), bytes, room_bytes()));
  }
  return OkStatus();
}

Result<uint64_t> Scheduler::Submit(ScheduledRequest request, std::unique_ptr<RequestSink> sink) {
  K3_RETURN_IF_ERROR(Check(request));
  const int64_t planned_bytes = PlannedBytes(request);
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_) return Unavailable("the server is shutting down; try another");
    if (!request.background && unfinished_ >= places()) {
      ++published_.refused;
      return QueueIsFull(queued_count_);
    }
    if (request.background) {
      // Only a cache's work: what is too much is left out.
      if (background_count_ >= options_.background_max) {
        return ResourceExhausted("too much background work waits already");
      }
      ++background_count_;
    } else {
      ++unfinished_;
      ++queued_count_;
    }
    id = next_id_++;
    submitted_.push_back(std::make_unique<RequestRun>(id, std::move(request), std::move(sink)));
    submitted_.back()->planned_bytes = planned_bytes;
  }
  work_arrived_.notify_all();
  return id;
}

Status Scheduler::HasPlacesFor(int64_t count) const {
  if (count > places()) {
    return InvalidArgument(
        fmt::format("n: expected at most {} answers at once here, found {}", places(), count));
  }
  const std::lock_guard lock(mutex_);
  return unfinished_ + count > places() ? QueueIsFull(queued_count_) : OkStatus();
}

void Scheduler::Abandon() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = abandoned_ = true;
  }
  work_arrived_.notify_all();
}

void Scheduler::Cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  work_arrived_.notify_all();
}

bool Scheduler::Drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  work_arrived_.notify_all();
  return work_ended_.wait_for(lock, std::chrono::duration<double>(seconds),
                              [this] { return unfinished_ == 0; });
}

SchedulerStats Scheduler::Stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = published_;
  stats.queued = queued_count_;
  stats.queued_background = background_count_;
  stats.draining = draining_;
  return stats;
}

void Scheduler::Loop() {
  while (AwaitWork()) {
    Attend();
    Admit();
    RunPass();
    RemoveEnded();
    PublishStats();
  }
  for (Runs* runs : {&waiting_, &running_, &submitted_}) {
    for (const auto& run : *runs) End(*run, Cancelled("the server is shutting down"));
  }
  prefix_->Flush();
}

bool Scheduler::AwaitWork() {
  const auto is_active = [](const auto& run) { return run->phase != RunPhase::kFetching; };
  std::unique_lock lock(mutex_);
  const auto has_news = [this] {
    return stopping_ || abandoned_ || !submitted_.empty() || !cancelled_.empty();
  };
  if (!std::ranges::any_of(running_, is_active)) {
    if (!running_.empty()) {
      // The disk does not call: it is asked again and again.
      work_arrived_.wait_for(lock, kDiskPoll, has_news);
    } else if (waiting_.empty()) {
      work_arrived_.wait(lock, has_news);
    }
  }
  std::ranges::move(submitted_, std::back_inserter(waiting_));
  submitted_.clear();
  return !stopping_;
}

void Scheduler::Attend() {
  std::vector<uint64_t> cancelled;
  bool draining = false, abandoned = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled.swap(cancelled_);
    draining = draining_;
    abandoned = abandoned_;
  }
  for (Runs* runs : {&waiting_, &running_}) {
    for (const auto& run : *runs) {
      if (abandoned) {
        End(*run, Unavailable("the server is shutting down; try another"));
      } else if (std::ranges::count(cancelled, run->id) > 0 ||
                 (draining && run->request.background)) {
        End(*run, Cancelled("the request was cancelled"));
      } else if (run->phase == RunPhase::kFetching && run->found.ready()) {
        StartReading(*run);
      }
    }
  }
  RemoveEnded();
}

bool Scheduler::HasRoomFor(const RequestRun& run) const {
  int64_t planned = 0, longs = 0, background = 0;
  for (const auto& other : running_) {
    planned += other->planned_bytes;
    longs += other->request_class() == RequestClass::kLong ? 1 : 0;
    background += other->request.background ? 1 : 0;
  }
  const int64_t streams = std::ssize(running_) - background;
  if (planned + run.planned_bytes > room_bytes()) return false;
  if (run.request.background) return background == 0;
  if (streams >= options_.streams_max) return false;
  // The last quarter of the places is kept from long prompts, so that short ones find one.
  const int64_t longs_max = std::max<int64_t>(options_.streams_max * 3 / 4, 1);
  return run.request_class() != RequestClass::kLong || longs < longs_max;
}

bool Scheduler::AwaitsPrefixOf(const RequestRun& run, const RequestRun& other) const {
  if (other.phase != RunPhase::kReading && other.phase != RunPhase::kFetching) return false;
  if (other.request.cache_salt != run.request.cache_salt) return false;
  const int64_t common =
      std::min(CommonTokens(run.request.prompt, other.request.prompt), run.prompt_tokens() - 1);
  const auto cut = std::ranges::find_if(other.cuts.rbegin(), other.cuts.rend(),
                                        [&](const PromptCut& c) { return c.at <= common; });
  if (cut == other.cuts.rend() || cut->at < kSharedTokensMin) return false;
  return prefix_->Peek(run.request.cache_salt, run.request.prompt) < cut->at;
}

Scheduler::RequestRun* Scheduler::NextToAdmit() {
  // In order of arrival. A class that finds no room holds up its own kind alone.
  bool is_blocked[3] = {};
  for (const bool background : {false, true}) {
    for (const auto& run : waiting_) {
      if (run->phase != RunPhase::kQueued || run->request.background != background) continue;
      bool& blocked = is_blocked[static_cast<size_t>(run->request_class())];
      if (blocked) continue;
      // Somebody is just computing what this one begins with: then it need not.
      const auto awaits = [&](const auto& other) { return AwaitsPrefixOf(*run, *other); };
      if (std::ranges::any_of(running_, awaits)) continue;
      if (HasRoomFor(*run)) return run.get();
      blocked = true;
    }
  }
  return nullptr;
}

void Scheduler::Admit() {
  while (RequestRun* next = NextToAdmit()) {
    const auto place = std::ranges::find(waiting_, next, &std::unique_ptr<RequestRun>::get);
    running_.push_back(std::move(*place));
    waiting_.erase(place);
    Begin(*running_.back());
  }
}

void Scheduler::Begin(RequestRun& run) {
  {
    const std::lock_guard lock(mutex_);
    --(run.request.background ? background_count_ : queued_count_);
  }
  ++stats_.started;
  run.started_ns = MonotonicNanoseconds();
  run.result.queue_seconds = SecondsBetween(run.submitted_ns, run.started_ns);
  run.found = prefix_->Find(run.request.cache_salt, run.request.prompt);
  run.cuts = PlanCuts(run.request, 0, {});  // so that others know what is coming
  run.phase = RunPhase::kFetching;
  if (run.found.ready()) StartReading(run);
}

void Scheduler::StartReading(RequestRun& run) {
  run.phase = RunPhase::kReading;
  run.state.emplace(engine_.config());
  run.known = prefix_->Restore(run.found, run.request.prompt, *run.state);
  run.read = run.known;
  run.cuts = PlanCuts(run.request, run.known, run.found.branch_point());
  run.result.cached_tokens = run.known;
  run.result.from_disk = run.found.from_disk();
  run.result.decoded_tokens = run.found.decoded_tokens();
  // Behind a decoded token nothing is as in a sequence of prompt tokens alone.
  if (run.result.decoded_tokens > 0 || !prefix_->keeps()) run.cuts.clear();
  if (run.wants_logits()) {
    run.sampler.emplace(run.request.sampling);
    run.sampler->See(run.request.prompt);
  }
  run.sink->OnStart(run.known);
}

void Scheduler::RemoveEnded() {
  const auto is_over = [](const auto& run) { return run->phase == RunPhase::kEnded; };
  std::erase_if(running_, is_over);
  std::erase_if(waiting_, is_over);
}

void Scheduler::PublishStats() {
  stats_.running = std::ssize(running_);
  stats_.decoding =
      std::ranges::count(running_, RunPhase::kDecoding, [](const auto& run) { return run->phase; });
  stats_.planned_bytes = 0;
  for (const auto& run : running_) stats_.planned_bytes += run->planned_bytes;
  stats_.memory_bytes_max = options_.memory_bytes_max;
  stats_.prefill_tokens_per_second = prefill_tokens_per_second_;
  stats_.prefix = prefix_->stats();
  const std::lock_guard lock(mutex_);
  const int64_t refused = published_.refused;
  published_ = stats_;
  published_.refused = refused;
}

}  // namespace k3
