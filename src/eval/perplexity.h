#pragma once
// MeasurePerplexity: how well a model predicts a text, in nats per token.
//
// The ids are cut into consecutive windows of `context` tokens. Each window starts from an empty
// state; every token of it but the first is predicted from those before it in the window. The last
// window may be shorter and counts when it has at least two tokens. Losses are summed in double, in
// order, from float32 logits; the result does not depend on threads, chunks or SIMD target.
//
// One thread calls. Memory: the logits of one chunk (at most kLogitsBytesMax or one row) and one
// window's state. Failures: InvalidArgument for fewer than two ids, a bad option or an id outside
// the vocabulary, Internal for logits that are no numbers.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace k3 {

inline constexpr int64_t kDefaultPerplexityContext = 512;
inline constexpr int64_t kLogitsBytesMax = 64 << 20;

struct PerplexityOptions {
  int64_t context = kDefaultPerplexityContext;  // tokens in a window, at least 2
  int64_t prefill_chunk = kDefaultPrefillChunk;
  /// Called after each chunk with the predictions made so far and in all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct PerplexityResult {
  double nats_sum = 0;
  int64_t predictions_count = 0;
  std::vector<double> window_nats_per_token;

  double nats_per_token() const { return nats_sum / static_cast<double>(predictions_count); }
  double perplexity() const;
};

Result<PerplexityResult> MeasurePerplexity(Engine& engine, std::span<const int32_t> ids,
                                           const PerplexityOptions& options);

/// -ln softmax(logits)[target], in double. logits [V]; NaN when a logit is NaN or +infinity.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

}  // namespace k3
