#pragma once
// A router that prefers some experts, and how well each way of balancing corrects it: the
// experiment behind `k3 balance-sim`.
//
// Expert j has the score sigmoid(a_j + w_j . x) of a token x, with a_j from N(0, 1), w_j from
// N(0, I/64) and x from N(0, I) in 64 dimensions. Every step has fresh tokens, the same for all
// methods; a method routes them with its bias, and then sets its bias for the next step.
//
// Results depend on the options alone. Source: technical report, section 2.3.3; the router is this
// project's own.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "sys/thread_pool.h"

namespace k3::train {

struct BalanceSimulationOptions {
  int64_t experts = 896;
  int64_t active = 16;
  int64_t tokens = 16384;  // a step
  int64_t steps = 10;
  uint64_t seed = 1;

  /// InvalidArgument that names the option, what it was and what it may be.
  Status Validate() const;
};

struct BalanceCurve {
  std::string method;
  std::vector<double> max_violation;  // [steps]; entry n after n updates
  std::vector<int64_t> dead_experts;  // [steps], experts without a token
};

/// Methods: none, sign_0.001, sign_0.01, sign_0.05, qb_exact, qb_histogram.
Result<std::vector<BalanceCurve>> SimulateBalancing(const BalanceSimulationOptions& options,
                                                    ThreadPool& pool);

}  // namespace k3::train
