#pragma once
// PlanPass: which tokens the next forward pass runs. Every sequence that decodes takes part with
// its one token; beside them prompts are read under a budget of tokens, so that nobody who is being
// answered waits long for somebody else's prompt, and no prompt waits for ever.
//
// The budget is what fits into `pass_seconds_max` at the speed that was measured, when anybody
// decodes, and `chunk_tokens_max` otherwise. Short prompts get `kShortShare` of it before long
// ones, and long ones the rest: what a class does not need goes to the other. Inside a class
// whoever was served longest ago comes first. Background work (prompts that nobody waits for) takes
// part only where no other prompt does.
//
// Pure functions of their arguments. Source: technical report, section 5.4.3 (a budget for each
// request class); serving contract.

#include <cstdint>
#include <span>
#include <vector>

namespace k3 {

enum class RequestClass { kShort, kLong, kBackground };

/// Prompts with more tokens to read than this are of the long class.
inline constexpr int64_t kShortPromptTokensMax = 4096;
inline constexpr double kShortShare = 0.75;
/// Smaller pieces cost a pass of all weights for little.
inline constexpr int64_t kBudgetTokensMin = 16;

struct PassBudget {
  int64_t chunk_tokens_max = 512;
  double pass_seconds_max = 0.08;        // while somebody decodes
  double prefill_tokens_per_second = 0;  // as measured lately; 0: not yet known
};

/// One sequence that still reads its prompt.
struct PrefillDemand {
  int64_t tokens = 0;  // of its prompt, to the end
  RequestClass request_class = RequestClass::kShort;
  uint64_t last_served = 0;  // number of the pass that last ran tokens of it; 0: none
};

/// Tokens that each demand runs in the next pass, [demands.size()], zeros included.
std::vector<int64_t> PlanPrefill(std::span<const PrefillDemand> demands, int64_t decoding_count,
                                 const PassBudget& budget);

/// Tokens of prompts that fit into one pass.
int64_t PrefillBudget(int64_t decoding_count, const PassBudget& budget);

}  // namespace k3
