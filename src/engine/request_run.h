#pragma once
// RequestRun: one request while the scheduler has it, from the queue to its end. Private to the
// scheduler: a struct of its own state, and the pure questions about it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/sequence_state.h"
#include "engine/pass_planner.h"
#include "engine/prefix_store.h"
#include "engine/scheduler.h"
#include "sample/sampler.h"

namespace k3 {

/// A place in the prompt at which a snapshot is taken.
struct PromptCut {
  int64_t at = 0;  // a multiple of 16
  cache::SnapshotKind kind = cache::SnapshotKind::kTurn;
  /// Filled by the pass that comes by. Shared as every snapshot is.
  std::shared_ptr<cache::KdaSnapshot> snapshot;
};

/// Where a snapshot of the first `tokens` tokens stands: the last grid point that leaves at least
/// one of them to be computed.
int64_t SnapshotLength(int64_t tokens);

/// The cuts of a prompt behind `known` tokens, ascending, each place once: its end and boundaries,
/// `branch_point`, and a periodic one every kPeriodicTokens as an insurance.
std::vector<PromptCut> PlanCuts(const ScheduledRequest& request, int64_t known,
                                std::optional<int64_t> branch_point);
inline constexpr int64_t kPeriodicTokens = 8192;

enum class RunPhase { kQueued, kFetching, kReading, kDecoding, kEnded };

struct Scheduler::RequestRun {
  RequestRun(uint64_t number, ScheduledRequest what, std::unique_ptr<RequestSink> where);

  RequestClass request_class() const;
  int64_t prompt_tokens() const { return std::ssize(request.prompt); }
  int64_t tokens_max(const ModelConfig& config) const;
  /// Tokens of the prompt that are not in `state` yet.
  int64_t tokens_left() const { return prompt_tokens() - read; }
  /// Whether the next pass over the whole rest of the prompt must give logits.
  bool wants_logits() const { return request.max_tokens > 0; }

  const uint64_t id;
  ScheduledRequest request;
  std::unique_ptr<RequestSink> sink;
  RunPhase phase = RunPhase::kQueued;
  ScheduledResult result;

  int64_t planned_bytes = 0;
  int64_t submitted_ns = 0;
  int64_t started_ns = 0;
  int64_t first_token_ns = 0;

  PrefixFinding found;
  std::optional<cache::SequenceState> state;
  std::optional<Sampler> sampler;
  int64_t known = 0;                // tokens that came from the prefix store
  int64_t read = 0;                 // tokens of the prompt in `state`
  std::vector<PromptCut> cuts;      // those not yet passed, ascending
  std::vector<int64_t> transients;  // periodic snapshots taken, to be dropped
  std::vector<int32_t> generated;   // all but the last are in `state`
  uint64_t last_served = 0;
};

}  // namespace k3
