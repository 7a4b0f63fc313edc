#pragma once
// Quantile Balancing: the selection bias of a mixture of experts, chosen so that the next step's
// tokens spread evenly, without a learning rate and without an auxiliary loss.
//
//   QuantileHistogram histogram(bias, active);
//   histogram.Add(scores);                          // per micro-batch, [T, E] after the sigmoid
//   histogram.Merge(other_rank);                    // counts add
//   bias = Centred(histogram.Solve());              // for the next step
//
// A token goes to the `active` experts with the largest score + bias. The (active + 1)-th largest
// is its cutoff; expert j is chosen by token i when bias_j > cutoff_i - score_ij, its required
// bias. So the bias that gives expert j its share q = T active / E of these tokens is a quantile of
// what they require: exactly, from all of them, or from a histogram of integer counts, which is the
// same for any split over micro-batches and ranks.
//
// Plain functions on the caller's arrays; a histogram owns its counts. One thread at a time. Sizes:
// E experts, T tokens. Source: technical report, section 2.3.3 and appendices C and D.

#include <cstdint>
#include <span>
#include <vector>

namespace k3::train {

inline constexpr int64_t kBalanceBins = 1000;

/// Chooses experts for each token: `chosen` [T, active], ascending, and the cutoffs [T]. scores
/// [T, E], bias [E], 1 <= active < E. Of equal sums the lower index is chosen.
struct Routing {
  std::vector<int32_t> chosen;
  std::vector<float> cutoffs;
};
Routing Route(std::span<const float> scores, std::span<const float> bias, int64_t active);

/// How many tokens each of `experts` experts got.
std::vector<int64_t> CountLoads(std::span<const int32_t> chosen, int64_t experts);

/// The largest load over the mean, less 1: 0 is perfect balance.
double MaxViolation(std::span<const int64_t> loads);

/// Less its mean, which no choice depends on.
std::vector<float> Centred(std::vector<float> bias);

class QuantileHistogram {
 public:
  /// For the step that routes with `bias` [E]; `active` experts a token.
  QuantileHistogram(std::span<const float> bias, int64_t active, int64_t bins = kBalanceBins);

  /// Counts what the tokens of scores [T, E], in (0, 1), require; routes them for that.
  void Add(std::span<const float> scores);
  /// The same with cutoffs [T] that Route gave.
  void Add(std::span<const float> scores, std::span<const float> cutoffs);
  /// Adds the counts of a histogram of the same step.
  void Merge(const QuantileHistogram& other);

  /// The bias [E] that gives each expert its share of the tokens counted, interpolated inside a
  /// bin; not centred. The present bias when there were none.
  std::vector<float> Solve() const;

  double bin_width() const { return width_; }
  std::span<const int32_t> counts() const { return counts_; }  // [E, bins]

 private:
  std::vector<float> bias_;
  int64_t active_;
  int64_t bins_;
  double low_;
  double width_;
  int64_t tokens_ = 0;
  std::vector<int32_t> counts_;
};

/// The exact rule on tokens that are all at hand; not centred. scores [T, E], cutoffs [T] as Route
/// gave them, bias [E], which stays when there are no tokens.
std::vector<float> ExactQuantileBias(std::span<const float> scores, std::span<const float> cutoffs,
                                     std::span<const float> bias, int64_t active);

/// The baseline without quantiles: a fixed step towards the mean load.
std::vector<float> SignRuleBias(std::span<const int64_t> loads, std::span<const float> bias,
                                float step);

}  // namespace k3::train
