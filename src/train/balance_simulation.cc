#include "train/balance_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/random.h"
#include "train/quantile_balancing.h"

namespace k3::train {
namespace {

constexpr int64_t kDims = 64;
constexpr int64_t kTokensGrain = 64;
// Streams of one seed.
constexpr uint64_t kPreferenceStream = 0;
constexpr uint64_t kDirectionStream = 1;
constexpr uint64_t kFirstTokenStream = 2;

constexpr int64_t kExpertsMax = 65'536;
constexpr int64_t kTokensMax = int64_t{1} << 24;
constexpr int64_t kStepsMax = 1'000'000;
constexpr int64_t kScoresMax = int64_t{1} << 30;

struct Router {
  std::vector<float> preference;  // [E]
  std::vector<float> directions;  // [64, E]
};

Router MakeRouter(const BalanceSimulationOptions& options) {
  Router router;
  Random preference(options.seed, kPreferenceStream);
  Random direction(options.seed, kDirectionStream);
  const float scale = 1 / std::sqrt(static_cast<float>(kDims));
  router.preference.resize(static_cast<size_t>(options.experts));
  router.directions.resize(static_cast<size_t>(options.experts * kDims));
  for (float& value : router.preference) value = preference.NextNormal();
  for (float& value : router.directions) value = scale * direction.NextNormal();
  return router;
}

/// Scores [T, E] of the tokens of a step.
std::vector<float> StepScores(const BalanceSimulationOptions& options, const Router& router,
                              int64_t step, ThreadPool& pool) {
  std::vector<float> scores(static_cast<size_t>(options.tokens * options.experts));
  pool.ParallelFor(options.tokens, kTokensGrain, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t t = begin; t < end; ++t) {
      Random random(options.seed, kFirstTokenStream + static_cast<uint64_t>(step));
      // Two words a number.
      random.Seek(static_cast<uint64_t>(t * kDims * 2));
      float* row = scores.data() + t * options.experts;
      std::ranges::copy(router.preference, row);
      for (int64_t d = 0; d < kDims; ++d) {
        const float x = random.NextNormal();
        const float* direction = router.directions.data() + d * options.experts;
        for (int64_t j = 0; j < options.experts; ++j) row[j] += x * direction[j];
      }
      for (int64_t j = 0; j < options.experts; ++j) row[j] = 1 / (1 + std::exp(-row[j]));
    }
  });
  return scores;
}

/// What a method makes of a step's tokens: the next bias.
using NextBias = std::function<std::vector<float>(
    std::span<const float> scores, const Routing& routing, std::span<const float> bias)>;

struct Method {
  std::string name;
  NextBias next;
  std::vector<float> bias;
};

std::vector<Method> MakeMethods(const BalanceSimulationOptions& options) {
  const int64_t experts = options.experts;
  const int64_t active = options.active;
  std::vector<Method> methods;
  const auto add = [&](std::string name, NextBias next) {
    methods.push_back(
        {std::move(name), std::move(next), std::vector<float>(static_cast<size_t>(experts))});
  };
  using Scores = std::span<const float>;
  add("none", [](Scores, const Routing&, Scores bias) {
    return std::vector<float>(bias.begin(), bias.end());
  });
  for (const auto& [name, step] :
       {std::pair{"sign_0.001", 0.001f}, {"sign_0.01", 0.01f}, {"sign_0.05", 0.05f}}) {
    add(name, [experts, size = step](Scores, const Routing& routing, Scores bias) {
      return SignRuleBias(CountLoads(routing.chosen, experts), bias, size);
    });
  }
  add("qb_exact", [active](Scores scores, const Routing& routing, Scores bias) {
    return Centred(ExactQuantileBias(scores, routing.cutoffs, bias, active));
  });
  add("qb_histogram", [active](Scores scores, const Routing& routing, Scores bias) {
    QuantileHistogram histogram(bias, active);
    histogram.Add(scores, routing.cutoffs);
    return Centred(histogram.Solve());
  });
  return methods;
}

Status CheckRange(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return OkStatus();
  return InvalidArgument(fmt::format("{}: expected {} to {}, found {}", name, least, most, value));
}

}  // namespace

Status BalanceSimulationOptions::Validate() const {
  K3_RETURN_IF_ERROR(CheckRange("experts", experts, 2, kExpertsMax));
  K3_RETURN_IF_ERROR(CheckRange("active", active, 1, experts - 1));
  K3_RETURN_IF_ERROR(CheckRange("tokens", tokens, 1, kTokensMax));
  K3_RETURN_IF_ERROR(CheckRange("steps", steps, 1, kStepsMax));
  if (tokens > kScoresMax / experts) {
    return InvalidArgument(fmt::format("tokens x experts: expected at most {}, found {} x {}",
                                       kScoresMax, tokens, experts));
  }
  return OkStatus();
}

Result<std::vector<BalanceCurve>> SimulateBalancing(const BalanceSimulationOptions& options,
                                                    ThreadPool& pool) {
  K3_RETURN_IF_ERROR(options.Validate());
  const Router router = MakeRouter(options);
  std::vector<Method> methods = MakeMethods(options);
  std::vector<BalanceCurve> curves;
  for (const Method& method : methods) curves.push_back({method.name, {}, {}});
  for (int64_t step = 0; step < options.steps; ++step) {
    const std::vector<float> scores = StepScores(options, router, step, pool);
    // Methods do not see each other, so they may run at once.
    std::vector<std::vector<int64_t>> loads(methods.size());
    pool.ParallelFor(std::ssize(methods), 1, [&](int64_t begin, int64_t end, int /*worker*/) {
      for (auto m = static_cast<size_t>(begin); m < static_cast<size_t>(end); ++m) {
        Method& method = methods[m];
        const Routing routing = Route(scores, method.bias, options.active);
        loads[m] = CountLoads(routing.chosen, options.experts);
        method.bias = method.next(scores, routing, method.bias);
      }
    });
    for (size_t m = 0; m < methods.size(); ++m) {
      curves[m].max_violation.push_back(MaxViolation(loads[m]));
      curves[m].dead_experts.push_back(std::ranges::count(loads[m], 0));
    }
  }
  return curves;
}

}  // namespace k3::train
