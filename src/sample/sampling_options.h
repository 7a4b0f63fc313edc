#pragma once
// SamplingOptions: what a request may say about how its tokens are drawn. A plain value. Validate()
// checks it as far as it can without the model, ValidateFor() the ids in it against a vocabulary.
//
// The logits are adjusted in vLLM's order, then drawn from as sampler.h says:
//   logit_bias          is added to the logits of the ids it names
//   repetition_penalty  for every token of the sequence so far, prompt and generated: a positive
//                       logit is divided by it, any other multiplied (Keskar et al., "CTRL", 2019)
//   frequency_penalty   is taken off once for each time this answer holds the token
//   presence_penalty    is taken off once if this answer holds the token at all
// A logit of -infinity stays so, whatever the bias; any other stays finite.

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace k3 {

inline constexpr int64_t kTopLogProbsMax = 20;
inline constexpr float kLogitBiasMax = 100.0f;
inline constexpr float kCountPenaltyMax = 2.0f;

struct LogitBias {
  int32_t id = 0;
  float bias = 0.0f;  // [-kLogitBiasMax, kLogitBiasMax]
};

struct SamplingOptions {
  float temperature = 1.0f;           // 0: greedy
  int64_t top_k = 0;                  // 0: all
  float top_p = 1.0f;                 // (0, 1]; 1: all
  float min_p = 0.0f;                 // [0, 1]; 0: all
  float repetition_penalty = 1.0f;    // above 0; 1: off
  float presence_penalty = 0.0f;      // [-kCountPenaltyMax, kCountPenaltyMax]; 0: off
  float frequency_penalty = 0.0f;     // [-kCountPenaltyMax, kCountPenaltyMax]; 0: off
  std::vector<LogitBias> logit_bias;  // no id twice
  int64_t top_log_probs = 0;          // [0, kTopLogProbsMax] alternatives to report
  uint64_t seed = 0;

  bool greedy() const { return temperature == 0.0f; }

  /// InvalidArgument that names the option, what it was and what it may be.
  Status Validate() const;

  /// InvalidArgument when `logit_bias` names an id that is not in [0, vocab_size).
  Status ValidateFor(int64_t vocab_size) const;
};

}  // namespace k3
