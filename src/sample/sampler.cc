#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "base/random.h"
#include "sample/exponential.h"
#include "sample/token_constraint.h"
#include "sample/vector_passes.h"

namespace k3 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Up to this many, a heap that most tokens do not enter beats selection over all of them.
constexpr int64_t kHeapTopKMax = 1024;
// Below this many candidates sorting is cheaper than another round of selection.
constexpr int64_t kSortedMax = 512;
constexpr int kBucketBits = 11;

// Behind every key.
constexpr uint64_t kAllKept = UINT64_MAX;

int64_t IdOf(uint64_t key) { return static_cast<int64_t>(key & 0xFFFFFFFFu); }

// The best token, the lowest id among equals.
Result<int32_t> FindBest(std::span<const float> logits) {
  if (logits.empty() || std::ssize(logits) > limits::kVocabularyMax) {
    return InvalidArgument(fmt::format("{} logits to sample from, expected 1 to {}", logits.size(),
                                       limits::kVocabularyMax));
  }
  constexpr size_t kBlock = 1024;
  size_t best_start = 0;
  float best = -kInfinity;
  for (size_t start = 0; start < logits.size(); start += kBlock) {
    const float greatest =
        BestVectorPasses().greatest(logits.subspan(start, std::min(kBlock, logits.size() - start)));
    if (greatest == kInfinity) {
      size_t bad = start;
      while (logits[bad] < kInfinity) ++bad;
      return Internal(fmt::format(
          "logit {} of {} is {}, expected a number below infinity: the weights or a kernel are "
          "broken",
          bad, logits.size(), logits[bad]));
    }
    if (greatest > best) {
      best = greatest;
      best_start = start;
    }
  }
  if (best == -kInfinity) {
    return Internal(
        fmt::format("all {} logits are -infinity: no token can be drawn", logits.size()));
  }
  const auto found = std::find(logits.begin() + best_start, logits.end(), best);
  return static_cast<int32_t>(found - logits.begin());
}

// The last key of the first prefix of `keys`, in ascending order, whose weights reach `target` > 0.
// `keys` is given in any order and used up. Each round sorts the keys into buckets of equal width
// and goes on with the one in which the target is reached, until what is left is worth sorting.
template <typename WeightOf>
uint64_t ReachTarget(std::vector<uint64_t>& keys, const WeightOf& weight_of, double target) {
  const VectorPasses& passes = BestVectorPasses();
  double sum = 0.0;
  while (std::ssize(keys) > kSortedMax) {
    const auto [least, greatest] = passes.min_max(keys);
    const int width = std::bit_width(greatest - least);
    const int shift = std::max(width - kBucketBits, 0);
    std::array<double, 1 << kBucketBits> bucket_sums{};
    for (const uint64_t key : keys) bucket_sums[(key - least) >> shift] += weight_of(key);
    const uint64_t last = (greatest - least) >> shift;
    uint64_t bucket = 0;
    while (bucket < last && sum + bucket_sums[bucket] < target) sum += bucket_sums[bucket++];
    keys.resize(static_cast<size_t>(passes.keep_bucket(keys, least, shift, bucket)));
  }
  std::ranges::sort(keys);
  for (const uint64_t key : keys) {
    sum += weight_of(key);
    if (sum >= target) return key;
  }
  return keys.back();  // Rounding kept the sum just below a target of nearly everything.
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), adjuster_(options) {
  K3_CHECK(options.Validate().ok(), "sampling options are validated by the caller");
}

void Sampler::See(std::span<const int32_t> prompt) {
  K3_CHECK(steps_count_ == 0, "the prompt is seen before the first draw");
  adjuster_.See(prompt);
}

Result<SampledToken> Sampler::Next(std::span<const float> logits,
                                   std::span<const uint32_t> allowed) {
  K3_TRY(const int32_t raw_best, FindBest(logits));
  K3_TRY(std::span<const float> adjusted, adjuster_.Adjust(logits));
  if (!allowed.empty()) {
    K3_TRY(adjusted, Mask(adjusted, allowed));
  }
  const float raw_max = logits[raw_best];
  weights_.resize(logits.size());
  sums_.resize(static_cast<size_t>(SumBlocksCount(std::ssize(logits))));
  const double total =
      BestVectorPasses().exp_differences(logits, raw_max, 1.0, weights_.data(), sums_.data());
  const double log_total = std::log(total);
  const auto log_prob = [&](int64_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - raw_max - log_total);
  };

  SampledToken token{.id = raw_best};
  std::optional<double> total_at_one = total;
  if (adjusted.data() != logits.data()) {
    K3_TRY(token.id, FindBest(adjusted));
    total_at_one.reset();
  }
  if (!options_.greedy()) token.id = Draw(adjusted, adjusted[token.id], total_at_one);
  token.log_prob = log_prob(token.id);
  if (options_.top_log_probs > 0) {
    ListTop(logits, std::min(options_.top_log_probs, std::ssize(logits)));
    std::ranges::sort(ordered_);
    for (const uint64_t key : ordered_) {
      const int64_t id = IdOf(key);
      if (logits[id] == -kInfinity) break;
      token.top.push_back({static_cast<int32_t>(id), log_prob(id)});
    }
  }
  adjuster_.Count(token.id);
  ++steps_count_;
  return token;
}

// The logits that `allowed` leaves, the others at -infinity.
Result<std::span<const float>> Sampler::Mask(std::span<const float> logits,
                                             std::span<const uint32_t> allowed) {
  if (allowed.size() != MaskWordsCount(std::ssize(logits))) {
    return InvalidArgument(fmt::format("a mask of {} words for {} logits, expected {}",
                                       allowed.size(), logits.size(),
                                       MaskWordsCount(std::ssize(logits))));
  }
  masked_.resize(logits.size());
  bool any = false;
  for (size_t word = 0; word < allowed.size(); ++word) {
    const uint32_t bits = allowed[word];
    const size_t end = std::min(word * 32 + 32, logits.size());
    for (size_t i = word * 32; i < end; ++i) {
      masked_[i] = (bits >> (i % 32) & 1) != 0 ? logits[i] : -kInfinity;
      any |= masked_[i] > -kInfinity;
    }
  }
  if (!any) {
    return Internal(
        "the grammar's mask leaves no token that can be drawn: all it allows have a logit of "
        "-infinity");
  }
  return std::span<const float>(masked_);
}

// On entry weights_ and sums_ are of these logits at temperature 1, and the total is given, unless
// they were adjusted.
int32_t Sampler::Draw(std::span<const float> logits, float max_logit,
                      std::optional<double> total_at_one) {
  const double scale = 1.0 / options_.temperature;
  const bool has_top_k = options_.top_k > 0 && options_.top_k < std::ssize(logits);
  uint64_t last_kept = kAllKept;
  double total = 0.0;
  if (has_top_k) {
    ListTop(logits, options_.top_k);
    for (const uint64_t key : ordered_) {
      const double difference = static_cast<double>(logits[IdOf(key)]) - max_logit;
      weights_[IdOf(key)] = ExpNonPositive(difference * scale);
      total += weights_[IdOf(key)];
    }
    last_kept = *std::ranges::max_element(ordered_);
  } else if (total_at_one.has_value() && options_.temperature == 1.0f) {
    total = *total_at_one;
  } else {
    total =
        BestVectorPasses().exp_differences(logits, max_logit, scale, weights_.data(), sums_.data());
  }
  if (options_.top_p < 1.0f) {
    if (!has_top_k) ListHeavy(logits, total);
    last_kept = ReachTarget(
        ordered_, [this](uint64_t key) { return weights_[IdOf(key)]; }, options_.top_p * total);
  }
  if (last_kept != kAllKept || options_.min_p > 0.0f) total = Keep(logits, last_kept);
  return DrawFrom(total);
}

// ordered_ becomes the keys of the first `count` tokens, 1 to V, in no order.
void Sampler::ListTop(std::span<const float> logits, int64_t count) {
  ordered_.clear();
  if (count > kHeapTopKMax) {
    for (int64_t i = 0; i < std::ssize(logits); ++i) ordered_.push_back(OrderKey(logits[i], i));
    const uint64_t last =
        ReachTarget(ordered_, [](uint64_t) { return 1.0; }, static_cast<double>(count));
    ordered_.clear();
    for (int64_t i = 0; i < std::ssize(logits); ++i) {
      const uint64_t key = OrderKey(logits[i], i);
      if (key <= last) ordered_.push_back(key);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) ordered_.push_back(OrderKey(logits[i], i));
  std::ranges::make_heap(ordered_);
  float worst = logits[IdOf(ordered_.front())];
  for (int64_t i = count; i < std::ssize(logits); ++i) {
    // Ids rise, so a token that only equals the worst one comes behind it.
    if (!(logits[i] > worst)) continue;
    std::ranges::pop_heap(ordered_);
    ordered_.back() = OrderKey(logits[i], i);
    std::ranges::push_heap(ordered_);
    worst = logits[IdOf(ordered_.front())];
  }
}

// ordered_ becomes the keys of a prefix that holds at least top_p of the total. The tokens left out
// are V at most, so together they are less than 1 - top_p of it. In a typical distribution this
// leaves some hundred tokens, in a flat one nearly all.
void Sampler::ListHeavy(std::span<const float> logits, double total) {
  constexpr double kSlack = 0.999;  // Far more than rounding can take.
  const double least = kSlack * (1.0 - options_.top_p) * total / static_cast<double>(logits.size());
  ordered_.resize(logits.size());
  const int64_t kept =
      BestVectorPasses().list_heavy(logits, weights_.data(), least, ordered_.data());
  ordered_.resize(static_cast<size_t>(kept));
}

// Leaves weights to the tokens up to `last_kept` in the order of the filters that min-p keeps too,
// and returns their total. The best token weighs 1, so min-p compares weights as they are.
double Sampler::Keep(std::span<const float> logits, uint64_t last_kept) {
  const int64_t count = std::ssize(logits);
  const float last_logit = last_kept == kAllKept ? -kInfinity : logits[IdOf(last_kept)];
  const auto keep = [&, &passes = BestVectorPasses()](int64_t begin, int64_t end, float least) {
    return passes.zero_below(logits.subspan(begin, end - begin), least, options_.min_p,
                             weights_.data() + begin);
  };
  // A token behind the last one in order of ids has to be better, not only as good.
  const int64_t border = IdOf(last_kept) + 1;
  const float better = std::nextafter(last_logit, kInfinity);
  double total = 0.0;
  for (int64_t start = 0; start < count; start += kSumBlock) {
    sums_[start / kSumBlock] = total;
    const int64_t end = std::min(start + kSumBlock, count);
    const int64_t middle = std::clamp(border, start, end);
    const bool any = keep(start, middle, last_logit);
    if (!keep(middle, end, better) && !any) continue;
    for (int64_t i = start; i < end; ++i) total += weights_[i];
  }
  return total;
}

// Draws among the tokens that have a weight, which are `total` together, with this step's own
// number in [0, 1).
int32_t Sampler::DrawFrom(double total) const {
  const double target =
      Random(options_.seed, static_cast<uint64_t>(steps_count_)).NextDouble() * total;
  // The last block before which the sum does not exceed the target.
  const int64_t block = std::ranges::upper_bound(sums_, target) - sums_.begin() - 1;
  double sum = sums_[block];
  int64_t id = block * kSumBlock;
  while (sum + weights_[id] <= target && id + 1 < std::ssize(weights_)) sum += weights_[id++];
  // Rounding may carry the walk beyond the last token that can be drawn.
  while (weights_[id] == 0.0) --id;
  return static_cast<int32_t>(id);
}

}  // namespace k3
