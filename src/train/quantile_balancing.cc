#include "train/quantile_balancing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace k3::train {
namespace {

int64_t RowsOf(std::span<const float> scores, int64_t experts) {
  K3_CHECK(std::ssize(scores) % experts == 0, "scores are whole rows");
  return std::ssize(scores) / experts;
}

/// Smaller for a larger sum, then for a lower index: integers compare faster than both.
uint64_t OrderKey(float sum, int64_t index) {
  const auto bits = std::bit_cast<uint32_t>(sum + 0.0f);  // -0 and +0 are one value.
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{~rising} << 32 | static_cast<uint64_t>(index);
}
int64_t IdOf(uint64_t key) { return static_cast<int64_t>(key & 0xFFFFFFFFu); }

/// The share of each expert: tokens x active / experts.
double TargetLoad(int64_t tokens, int64_t active, int64_t experts) {
  return static_cast<double>(tokens) * static_cast<double>(active) / static_cast<double>(experts);
}

}  // namespace

Routing Route(std::span<const float> scores, std::span<const float> bias, int64_t active) {
  const int64_t experts = std::ssize(bias);
  K3_CHECK(active >= 1 && active < experts, "some experts are chosen and some are not");
  const int64_t tokens = RowsOf(scores, experts);
  Routing routing;
  routing.chosen.resize(static_cast<size_t>(tokens * active));
  routing.cutoffs.resize(static_cast<size_t>(tokens));
  std::vector<uint64_t> order(bias.size());
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = scores.data() + t * experts;
    for (int64_t j = 0; j < experts; ++j) order[j] = OrderKey(row[j] + bias[j], j);
    const auto cut = order.begin() + active;
    std::nth_element(order.begin(), cut, order.end());
    const int64_t next = IdOf(*cut);
    routing.cutoffs[static_cast<size_t>(t)] = row[next] + bias[static_cast<size_t>(next)];
    const auto chosen = routing.chosen.begin() + t * active;
    std::transform(order.begin(), cut, chosen,
                   [](uint64_t key) { return static_cast<int32_t>(IdOf(key)); });
    std::sort(chosen, chosen + active);
  }
  return routing;
}

std::vector<int64_t> CountLoads(std::span<const int32_t> chosen, int64_t experts) {
  std::vector<int64_t> loads(static_cast<size_t>(experts));
  for (const int32_t expert : chosen) ++loads[static_cast<size_t>(expert)];
  return loads;
}

double MaxViolation(std::span<const int64_t> loads) {
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  if (total == 0) return 0;
  const double mean = static_cast<double>(total) / static_cast<double>(loads.size());
  return static_cast<double>(*std::ranges::max_element(loads)) / mean - 1;
}

std::vector<float> Centred(std::vector<float> bias) {
  const double sum = std::accumulate(bias.begin(), bias.end(), 0.0);
  const double mean = sum / static_cast<double>(bias.size());
  for (float& value : bias) value = static_cast<float>(value - mean);
  return bias;
}

QuantileHistogram::QuantileHistogram(std::span<const float> bias, int64_t active, int64_t bins)
    : bias_(bias.begin(), bias.end()), active_(active), bins_(bins) {
  K3_CHECK(bins >= 1 && !bias.empty(), "there is something to count in");
  const auto [least, greatest] = std::ranges::minmax(bias_);
  // A score lies in (0, 1), a cutoff in (least, greatest + 1).
  low_ = static_cast<double>(least) - 1;
  width_ = (static_cast<double>(greatest) - least + 2) / static_cast<double>(bins);
  counts_.resize(bias_.size() * static_cast<size_t>(bins));
}

void QuantileHistogram::Add(std::span<const float> scores) {
  Add(scores, Route(scores, bias_, active_).cutoffs);
}

void QuantileHistogram::Add(std::span<const float> scores, std::span<const float> cutoffs) {
  const int64_t experts = std::ssize(bias_);
  K3_CHECK(RowsOf(scores, experts) == std::ssize(cutoffs), "a cutoff for each token");
  for (size_t t = 0; t < cutoffs.size(); ++t) {
    const float* row = scores.data() + static_cast<int64_t>(t) * experts;
    for (int64_t j = 0; j < experts; ++j) {
      const double required = static_cast<double>(cutoffs[t]) - row[j];
      // Rounding can reach just outside of the range.
      const auto bin = static_cast<int64_t>(std::floor((required - low_) / width_));
      ++counts_[static_cast<size_t>(j * bins_ + std::clamp<int64_t>(bin, 0, bins_ - 1))];
    }
  }
  tokens_ += std::ssize(cutoffs);
}

void QuantileHistogram::Merge(const QuantileHistogram& other) {
  K3_CHECK(other.bias_ == bias_ && other.bins_ == bins_ && other.active_ == active_,
           "histograms of one step");
  tokens_ += other.tokens_;
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

std::vector<float> QuantileHistogram::Solve() const {
  if (tokens_ == 0) return bias_;
  const double target = TargetLoad(tokens_, active_, std::ssize(bias_));
  const auto rank = static_cast<int64_t>(std::ceil(target));
  std::vector<float> solved(bias_.size());
  for (size_t j = 0; j < bias_.size(); ++j) {
    const int32_t* counts = counts_.data() + j * static_cast<size_t>(bins_);
    int64_t bin = 0;
    int64_t before = 0;
    while (before + counts[bin] < rank) before += counts[bin++];
    const double inside = (target - static_cast<double>(before)) / counts[bin];
    solved[j] = static_cast<float>(
        low_ + (static_cast<double>(bin) + std::clamp(inside, 0.0, 1.0)) * width_);
  }
  return solved;
}

std::vector<float> ExactQuantileBias(std::span<const float> scores, std::span<const float> cutoffs,
                                     std::span<const float> bias, int64_t active) {
  const int64_t experts = std::ssize(bias);
  const int64_t tokens = std::ssize(cutoffs);
  if (tokens == 0) return {bias.begin(), bias.end()};
  // The bias stands at what the first token beyond the share requires, so that it is not chosen.
  const auto rank = static_cast<int64_t>(std::floor(TargetLoad(tokens, active, experts)));
  std::vector<float> solved(bias.size());
  std::vector<float> required(cutoffs.size());
  for (int64_t j = 0; j < experts; ++j) {
    for (int64_t t = 0; t < tokens; ++t) {
      required[static_cast<size_t>(t)] = cutoffs[static_cast<size_t>(t)] - scores[t * experts + j];
    }
    const auto place = required.begin() + rank;
    std::nth_element(required.begin(), place, required.end());
    solved[static_cast<size_t>(j)] = *place;
  }
  return solved;
}

std::vector<float> SignRuleBias(std::span<const int64_t> loads, std::span<const float> bias,
                                float step) {
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const double mean = static_cast<double>(total) / static_cast<double>(loads.size());
  std::vector<float> moved(bias.begin(), bias.end());
  for (size_t j = 0; j < moved.size(); ++j) {
    const double missing = mean - static_cast<double>(loads[j]);
    if (missing != 0) moved[j] += missing > 0 ? step : -step;
  }
  return moved;
}

}  // namespace k3::train
