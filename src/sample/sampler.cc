#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "base/random.h"
#include "sample/exponential.h"

namespace k3 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Up to this many, a heap that most tokens do not enter beats selection over all of them.
constexpr int64_t kHeapTopKMax = 1024;
// Below this many candidates sorting is cheaper than another round of selection.
constexpr int64_t kSortedMax = 512;

// A token's place in the order of the filters: smaller is better. The high half falls as the logit
// rises, the low half is the id.
uint64_t OrderKey(float logit, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 and +0 are one value.
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{~rising} << 32 | static_cast<uint64_t>(id);
}

int64_t IdOf(uint64_t key) { return static_cast<int64_t>(key & 0xFFFFFFFFu); }

// The best token, the lowest id among equals.
Result<int32_t> FindBest(std::span<const float> logits) {
  if (logits.empty() || std::ssize(logits) > limits::kVocabularyMax) {
    return InvalidArgument(fmt::format("{} logits to sample from, expected 1 to {}", logits.size(),
                                       limits::kVocabularyMax));
  }
  int32_t best = -1;
  float best_logit = -kInfinity;
  for (int64_t i = 0; i < std::ssize(logits); ++i) {
    if (!(logits[i] < kInfinity)) {
      return Internal(fmt::format(
          "logit {} of {} is {}, expected a number below infinity: the weights or a kernel are "
          "broken",
          i, logits.size(), logits[i]));
    }
    if (logits[i] > best_logit) {
      best_logit = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  if (best < 0) {
    return Internal(
        fmt::format("all {} logits are -infinity: no token can be drawn", logits.size()));
  }
  return best;
}

// The first prefix of `keys` (in ascending order, whatever the order given) whose weights reach
// `target`; returns the last key of it. Halves the range by selection until it is worth sorting.
uint64_t ReachTarget(std::span<uint64_t> keys, std::span<const double> weights, double target) {
  double sum = 0.0;
  while (std::ssize(keys) > kSortedMax) {
    const std::span<uint64_t> first = keys.first(keys.size() / 2);
    std::nth_element(keys.begin(), keys.begin() + std::ssize(first), keys.end());
    double first_sum = 0.0;
    for (const uint64_t key : first) first_sum += weights[IdOf(key)];
    if (sum + first_sum >= target) {
      keys = first;
    } else {
      sum += first_sum;
      keys = keys.subspan(first.size());
    }
  }
  std::sort(keys.begin(), keys.end());
  for (const uint64_t key : keys) {
    sum += weights[IdOf(key)];
    if (sum >= target) return key;
  }
  return keys.back();  // Rounding kept the sum just below a target of nearly everything.
}

}  // namespace

Status SamplingOptions::Validate() const {
  if (!(temperature >= 0.0f && temperature < kInfinity)) {
    return InvalidArgument(
        fmt::format("temperature is {}, expected a finite number from 0", temperature));
  }
  if (top_k < 0) {
    return InvalidArgument(fmt::format("top_k is {}, expected 0 (all tokens) or more", top_k));
  }
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    return InvalidArgument(fmt::format("top_p is {}, expected more than 0 and at most 1", top_p));
  }
  if (!(min_p >= 0.0f && min_p <= 1.0f)) {
    return InvalidArgument(fmt::format("min_p is {}, expected 0 to 1", min_p));
  }
  return OkStatus();
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  K3_CHECK(options.Validate().ok(), "sampling options are validated by the caller");
}

Result<SampledToken> Sampler::Next(std::span<const float> logits) {
  K3_TRY(const int32_t best, FindBest(logits));
  const float max_logit = logits[best];
  weights_.resize(logits.size());
  const double total = ExpDifferences(logits, max_logit, 1.0, weights_);
  const int32_t id = options_.greedy() ? best : Draw(logits, max_logit);
  ++steps_count_;
  const double log_prob = static_cast<double>(logits[id]) - max_logit - std::log(total);
  return SampledToken{id, static_cast<float>(log_prob)};
}

// On entry weights_ is at temperature 1.
int32_t Sampler::Draw(std::span<const float> logits, float max_logit) {
  const double scale = 1.0 / options_.temperature;
  const bool has_top_k = options_.top_k > 0 && options_.top_k < std::ssize(logits);
  uint64_t last_kept = UINT64_MAX;
  if (has_top_k) {
    ListTopK(logits);
    for (const uint64_t key : ordered_) {
      const double difference = static_cast<double>(logits[IdOf(key)]) - max_logit;
      weights_[IdOf(key)] = ExpNonPositive(difference * scale);
    }
    last_kept = *std::max_element(ordered_.begin(), ordered_.end());
  } else if (options_.temperature != 1.0f) {
    ExpDifferences(logits, max_logit, scale, weights_);
  }
  if (options_.top_p < 1.0f) {
    double total = 0.0;
    if (has_top_k) {
      for (const uint64_t key : ordered_) total += weights_[IdOf(key)];
    } else {
      for (const double weight : weights_) total += weight;
      ListHeavy(logits, total);
    }
    last_kept = ReachTarget(ordered_, weights_, options_.top_p * total);
  }
  return DrawUpTo(logits, last_kept);
}

// ordered_ becomes the keys of the first top_k tokens, in no order.
void Sampler::ListTopK(std::span<const float> logits) {
  ordered_.clear();
  if (options_.top_k > kHeapTopKMax) {
    for (int64_t i = 0; i < std::ssize(logits); ++i) ordered_.push_back(OrderKey(logits[i], i));
    std::nth_element(ordered_.begin(), ordered_.begin() + options_.top_k, ordered_.end());
    ordered_.resize(static_cast<size_t>(options_.top_k));
    return;
  }
  for (int64_t i = 0; i < options_.top_k; ++i) ordered_.push_back(OrderKey(logits[i], i));
  std::make_heap(ordered_.begin(), ordered_.end());
  float worst = logits[IdOf(ordered_.front())];
  for (int64_t i = options_.top_k; i < std::ssize(logits); ++i) {
    // Ids rise, so a token that only equals the worst one comes behind it.
    if (!(logits[i] > worst)) continue;
    std::pop_heap(ordered_.begin(), ordered_.end());
    ordered_.back() = OrderKey(logits[i], i);
    std::push_heap(ordered_.begin(), ordered_.end());
    worst = logits[IdOf(ordered_.front())];
  }
}

// ordered_ becomes the keys of a prefix that holds at least top_p of the total. The tokens left out
// are V at most, so together they are less than 1 - top_p of it. In a typical distribution this
// leaves some hundred tokens.
void Sampler::ListHeavy(std::span<const float> logits, double total) {
  constexpr double kSlack = 0.999;  // Far more than rounding can take.
  const double least = kSlack * (1.0 - options_.top_p) * total / static_cast<double>(logits.size());
  ordered_.clear();
  for (int64_t i = 0; i < std::ssize(logits); ++i) {
    if (weights_[i] >= least) ordered_.push_back(OrderKey(logits[i], i));
  }
}

// Draws among the tokens up to `last_kept` in the order of the filters that min-p keeps too. The
// best token weighs 1, so min-p compares weights as they are.
int32_t Sampler::DrawUpTo(std::span<const float> logits, uint64_t last_kept) {
  kept_.clear();
  double total = 0.0;
  const float last_logit =
      last_kept == UINT64_MAX ? -kInfinity : logits[static_cast<size_t>(IdOf(last_kept))];
  for (int64_t i = 0; i < std::ssize(logits); ++i) {
    if (!(logits[i] >= last_logit) || OrderKey(logits[i], i) > last_kept) continue;
    if (weights_[i] < options_.min_p || weights_[i] == 0.0) continue;
    total += weights_[i];
    kept_.push_back(static_cast<int32_t>(i));
  }
  const double target =
      Random(options_.seed, static_cast<uint64_t>(steps_count_)).NextDouble() * total;
  double sum = 0.0;
  for (const int32_t id : kept_) {
    sum += weights_[id];
    if (sum > target) return id;
  }
  return kept_.back();
}

}  // namespace k3
