#pragma once
// Sampler: from the logits of one position to the next token.
//
//   Sampler sampler({.temperature = 0.6f, .top_p = 0.95f, .seed = 7});
//   sampler.See(prompt);
//   K3_TRY(SampledToken next, sampler.Next(logits));  // logits [V]; a grammar's mask may follow
//
// First the logits are adjusted by biases and penalties (sampling_options.h). The filters come in
// the order of Hugging Face's generation: temperature, then top-k, then top-p (of what top-k left,
// renormalised), then min-p. Each keeps a prefix of one order, higher logit first and lower id
// among equals, so what remains is one prefix:
//   top-k  the first k tokens (exactly k: a tie at the edge goes to the lower id)
//   top-p  the shortest prefix whose probability reaches top_p; the token that crosses it stays
//   min-p  tokens with at least min_p times the probability of the best
// The draw then walks the kept tokens in order of id. Temperature 0 is greedy: the best token.
//
// Token number n is a function of (seed, n, logits, tokens seen) and the options alone. A Sampler
// is a value that owns scratch of up to 21 bytes a logit and what LogitAdjuster owns; one thread at
// a time. Copy it to replay from a step. A logit that is NaN or +infinity is Internal and named by
// its position; -infinity is a token that cannot be drawn. Log-probabilities are of the raw logits,
// before biases, penalties, temperature and filters.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "sample/logit_adjuster.h"
#include "sample/sampling_options.h"

namespace k3 {

struct TokenLogProb {
  int32_t id = 0;
  float log_prob = 0.0f;  // natural logarithm, of softmax(logits)
};

struct SampledToken {
  int32_t id = 0;
  float log_prob = 0.0f;
  /// The most probable tokens, higher logit first and lower id among equals: top_log_probs of them,
  /// fewer when fewer have a probability. The drawn token may be missing.
  std::vector<TokenLogProb> top;
};

class Sampler {
 public:
  /// `options` must be valid.
  explicit Sampler(const SamplingOptions& options);

  /// Tokens before the answer, for the repetition penalty; in parts, before the first draw. Ids in
  /// [0, kVocabularyMax).
  void See(std::span<const int32_t> prompt);

  /// Draws the next token from `logits` [V], 1 <= V <= kVocabularyMax, and counts it as seen. A
  /// failure draws nothing: the next call is the same step. InvalidArgument when a token that was
  /// seen or is biased has no logit. `allowed` is the mask of a TokenConstraint (words
  /// [ceil(V / 32)]) or empty: what it leaves out cannot be drawn, as if its logit were -infinity
  /// once biases and penalties are applied. Log-probabilities and `top` do not know of it. Internal
  /// when it leaves nothing that can be drawn.
  Result<SampledToken> Next(std::span<const float> logits, std::span<const uint32_t> allowed = {});

  /// How many tokens were drawn.
  int64_t steps_count() const { return steps_count_; }

 private:
  Result<std::span<const float>> Mask(std::span<const float> logits,
                                      std::span<const uint32_t> allowed);
  int32_t Draw(std::span<const float> logits, float max_logit, std::optional<double> total_at_one);
  void ListTop(std::span<const float> logits, int64_t count);
  void ListHeavy(std::span<const float> logits, double total);
  double Keep(std::span<const float> logits, uint64_t last_kept);
  int32_t DrawFrom(double total) const;

  SamplingOptions options_;
  LogitAdjuster adjuster_;
  int64_t steps_count_ = 0;
  std::vector<double> weights_;    // [V] exp((logit - max) / temperature) of the candidates
  std::vector<uint64_t> ordered_;  // order keys of the candidates, if a filter lists them
  std::vector<double> sums_;       // the sum of all weights before each block of kSumBlock
  std::vector<float> masked_;      // [V] logits with what a mask leaves out at -infinity
};

}  // namespace k3
