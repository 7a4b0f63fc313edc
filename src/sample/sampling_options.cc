#include "sample/sampling_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/limits.h"

namespace k3 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Status CheckCountPenalty(std::string_view name, float penalty) {
  if (penalty >= -kCountPenaltyMax && penalty <= kCountPenaltyMax) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}, expected {} to {}", name, penalty,
                                     -kCountPenaltyMax, kCountPenaltyMax));
}

Status CheckLogitBias(const std::vector<LogitBias>& biases) {
  if (std::ssize(biases) > limits::kVocabularyMax) {
    return InvalidArgument(fmt::format("logit_bias has {} entries, expected at most {}",
                                       biases.size(), limits::kVocabularyMax));
  }
  std::vector<int32_t> ids;
  for (const LogitBias& entry : biases) {
    if (entry.id < 0) {
      return InvalidArgument(
          fmt::format("logit_bias names token {}, expected an id from 0", entry.id));
    }
    if (!(entry.bias >= -kLogitBiasMax && entry.bias <= kLogitBiasMax)) {
      return InvalidArgument(fmt::format("logit_bias of token {} is {}, expected {} to {}",
                                         entry.id, entry.bias, -kLogitBiasMax, kLogitBiasMax));
    }
    ids.push_back(entry.id);
  }
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice == ids.end()) return OkStatus();
  return InvalidArgument(
      fmt::format("logit_bias names token {} more than once, expected one bias an id", *twice));
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
  if (!(repetition_penalty > 0.0f && repetition_penalty < kInfinity)) {
    return InvalidArgument(fmt::format("repetition_penalty is {}, expected a finite number above 0",
                                       repetition_penalty));
  }
  K3_RETURN_IF_ERROR(CheckCountPenalty("presence_penalty", presence_penalty));
  K3_RETURN_IF_ERROR(CheckCountPenalty("frequency_penalty", frequency_penalty));
  K3_RETURN_IF_ERROR(CheckLogitBias(logit_bias));
  if (top_log_probs < 0 || top_log_probs > kTopLogProbsMax) {
    return InvalidArgument(
        fmt::format("top_log_probs is {}, expected 0 to {}", top_log_probs, kTopLogProbsMax));
  }
  return OkStatus();
}

Status SamplingOptions::ValidateFor(int64_t vocab_size) const {
  for (const LogitBias& entry : logit_bias) {
    if (entry.id >= 0 && entry.id < vocab_size) continue;
    return InvalidArgument(
        fmt::format("logit_bias names token {}, expected an id in [0, {})", entry.id, vocab_size));
  }
  return OkStatus();
}

}  // namespace k3
