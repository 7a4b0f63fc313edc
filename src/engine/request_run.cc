#include "engine/request_run.h"

#include <algorithm>

#include "base/clock.h"

namespace k3 {

int64_t SnapshotLength(int64_t tokens) {
  return (tokens - 1) / cache::kHashBlockTokens * cache::kHashBlockTokens;
}

std::vector<PromptCut> PlanCuts(const ScheduledRequest& request, int64_t known,
                                std::optional<int64_t> branch_point) {
  using cache::SnapshotKind;
  const int64_t end = std::ssize(request.prompt);
  std::vector<PromptCut> cuts;
  const auto add = [&](int64_t at, SnapshotKind kind) {
    if (at > known && at < end) cuts.push_back({at, kind, nullptr});
  };
  for (const int64_t boundary : request.boundaries) {
    add(SnapshotLength(std::min(boundary, end)), SnapshotKind::kTurn);
  }
  add(SnapshotLength(end), SnapshotKind::kTurn);
  if (branch_point.has_value()) add(*branch_point, SnapshotKind::kBranch);
  const int64_t first = (known / kPeriodicTokens + 1) * kPeriodicTokens;
  for (int64_t at = first; at < end; at += kPeriodicTokens) add(at, SnapshotKind::kPeriodic);
  // Among cuts at one place the one that stays comes first.
  std::ranges::sort(cuts, {}, [](const PromptCut& cut) { return std::pair(cut.at, cut.kind); });
  const auto repeats = std::ranges::unique(cuts, {}, &PromptCut::at);
  cuts.erase(repeats.begin(), repeats.end());
  return cuts;
}

Scheduler::RequestRun::RequestRun(uint64_t number, ScheduledRequest what,
                                  std::unique_ptr<RequestSink> where)
    : id(number),
      request(std::move(what)),
      sink(std::move(where)),
      submitted_ns(MonotonicNanoseconds()) {
  result.prompt_tokens = prompt_tokens();
}

RequestClass Scheduler::RequestRun::request_class() const {
  if (request.background) return RequestClass::kBackground;
  return prompt_tokens() - known > kShortPromptTokensMax ? RequestClass::kLong
                                                         : RequestClass::kShort;
}

int64_t Scheduler::RequestRun::tokens_max(const ModelConfig& config) const {
  return std::min(request.max_tokens, config.context_max - prompt_tokens());
}

}  // namespace k3
