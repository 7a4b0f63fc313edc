#include "sample/logit_adjuster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/limits.h"

namespace k3 {

LogitAdjuster::LogitAdjuster(const SamplingOptions& options)
    : has_repetition_(options.repetition_penalty != 1.0f),
      has_counts_(options.presence_penalty != 0.0f || options.frequency_penalty != 0.0f),
      repetition_penalty_(options.repetition_penalty),
      presence_penalty_(options.presence_penalty),
      frequency_penalty_(options.frequency_penalty),
      biases_(options.logit_bias) {
  for (const LogitBias& entry : biases_) ids_end_ = std::max(ids_end_, int64_t{entry.id} + 1);
}

void LogitAdjuster::See(std::span<const int32_t> prompt) {
  if (!has_repetition_) return;
  for (const int32_t id : prompt) Find(id);
}

void LogitAdjuster::Count(int32_t id) {
  if (has_repetition_ || has_counts_) ++Find(id).generated_count;
}

LogitAdjuster::SeenToken& LogitAdjuster::Find(int32_t id) {
  K3_CHECK(id >= 0 && id < limits::kVocabularyMax, "token ids are checked by the caller");
  const auto at = static_cast<size_t>(id);
  if (at >= slots_.size()) slots_.resize(at + 1, -1);
  if (slots_[at] < 0) {
    slots_[at] = static_cast<int32_t>(seen_.size());
    seen_.push_back({id, 0});
    ids_end_ = std::max(ids_end_, int64_t{id} + 1);
  }
  return seen_[static_cast<size_t>(slots_[at])];
}

float LogitAdjuster::Penalise(float logit, int64_t generated_count) const {
  float result = logit > 0.0f ? logit / repetition_penalty_ : logit * repetition_penalty_;
  if (generated_count > 0) {
    result -= frequency_penalty_ * static_cast<float>(generated_count);
    result -= presence_penalty_;
  }
  // A penalty far from 1 can leave the range, and infinity would mean broken weights.
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::clamp(result, -kMax, kMax);
}

Result<std::span<const float>> LogitAdjuster::Adjust(std::span<const float> logits) {
  if (biases_.empty() && seen_.empty()) return logits;
  if (ids_end_ > std::ssize(logits)) {
    return InvalidArgument(fmt::format("token {} was seen or is biased, expected ids in [0, {})",
                                       ids_end_ - 1, logits.size()));
  }
  adjusted_.assign(logits.begin(), logits.end());
  for (const LogitBias& entry : biases_) adjusted_[static_cast<size_t>(entry.id)] += entry.bias;
  for (const SeenToken& token : seen_) {
    float& logit = adjusted_[static_cast<size_t>(token.id)];
    if (logit != -std::numeric_limits<float>::infinity()) {
      logit = Penalise(logit, token.generated_count);
    }
  }
  return std::span<const float>(adjusted_);
}

}  // namespace k3
