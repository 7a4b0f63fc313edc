#pragma once
// LogitAdjuster: adds biases to logits and takes penalties off them, as sampling_options.h says,
// and remembers for that which tokens a sequence holds.
//
//   LogitAdjuster adjuster(options);
//   adjuster.See(prompt);
//   K3_TRY(const std::span<const float> adjusted, adjuster.Adjust(logits));  // [V]
//   adjuster.Count(drawn);
//
// A step costs one copy of the logits and then time for the ids that are biased or were seen; where
// no option asks for anything it costs nothing, and nothing is remembered. What comes out depends
// on the logits, the options and the set and counts of tokens alone, not on their order. Float32
// throughout, one rounding an operation. A value that owns up to 8 bytes a logit and 16 a distinct
// token; one thread at a time.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "sample/sampling_options.h"

namespace k3 {

class LogitAdjuster {
 public:
  /// `options` must be valid.
  explicit LogitAdjuster(const SamplingOptions& options);

  /// More tokens of the prompt, ids in [0, kVocabularyMax).
  void See(std::span<const int32_t> prompt);

  /// One more token of the answer.
  void Count(int32_t id);

  /// `logits` [V], without NaN, adjusted: `logits` itself when nothing is asked for, otherwise a
  /// view [V] that lasts until the next call. InvalidArgument when a token that was seen or is
  /// biased has no logit.
  Result<std::span<const float>> Adjust(std::span<const float> logits);

 private:
  struct SeenToken {
    int32_t id;
    int64_t generated_count;
  };

  SeenToken& Find(int32_t id);
  float Penalise(float logit, int64_t generated_count) const;

  bool has_repetition_;
  bool has_counts_;
  float repetition_penalty_;
  float presence_penalty_;
  float frequency_penalty_;
  std::vector<LogitBias> biases_;
  int64_t ids_end_ = 0;          // one above the largest id that needs a logit
  std::vector<int32_t> slots_;   // by id: its index in seen_, or -1
  std::vector<SeenToken> seen_;  // each once, in order of appearance
  std::vector<float> adjusted_;  // [V]
};

}  // namespace k3
