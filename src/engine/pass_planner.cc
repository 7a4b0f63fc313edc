#include "engine/pass_planner.h"

#include <algorithm>
#include <utility>

namespace k3 {
namespace {

/// Demand numbers of one class that want anything, longest unserved first.
std::vector<size_t> InTurn(std::span<const PrefillDemand> demands, RequestClass request_class) {
  std::vector<size_t> order;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].request_class == request_class && demands[i].tokens > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(demands[i].last_served, i); });
  return order;
}

/// Hands out up to `budget` tokens in the order given and returns what is left of it.
int64_t HandOut(std::span<const size_t> order, std::span<const PrefillDemand> demands,
                int64_t budget, std::vector<int64_t>& plan) {
  for (const size_t i : order) {
    const int64_t tokens = std::min(budget, demands[i].tokens - plan[i]);
    plan[i] += tokens;
    budget -= tokens;
  }
  return budget;
}

}  // namespace

int64_t PrefillBudget(int64_t decoding_count, const PassBudget& budget) {
  if (decoding_count == 0 || budget.prefill_tokens_per_second <= 0) return budget.chunk_tokens_max;
  const double fits = budget.prefill_tokens_per_second * budget.pass_seconds_max;
  if (fits >= static_cast<double>(budget.chunk_tokens_max)) return budget.chunk_tokens_max;
  return std::max(static_cast<int64_t>(fits), std::min(kBudgetTokensMin, budget.chunk_tokens_max));
}

std::vector<int64_t> PlanPrefill(std::span<const PrefillDemand> demands, int64_t decoding_count,
                                 const PassBudget& budget) {
  std::vector<int64_t> plan(demands.size());
  const std::vector<size_t> shorts = InTurn(demands, RequestClass::kShort);
  const std::vector<size_t> longs = InTurn(demands, RequestClass::kLong);
  int64_t left = PrefillBudget(decoding_count, budget);
  if (shorts.empty() && longs.empty()) {
    // One at a time: nobody waits, and whoever comes next finds the pass short.
    const std::vector<size_t> background = InTurn(demands, RequestClass::kBackground);
    if (!background.empty()) HandOut(std::span(background).first(1), demands, left, plan);
    return plan;
  }
  const int64_t for_longs =
      longs.empty() ? 0 : left - static_cast<int64_t>(static_cast<double>(left) * kShortShare);
  left = for_longs + HandOut(shorts, demands, left - for_longs, plan);
  left = HandOut(longs, demands, left, plan);
  HandOut(shorts, demands, left, plan);
  return plan;
}

}  // namespace k3
