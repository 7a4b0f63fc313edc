#pragma once
// What a cached entry is worth: the clock of its last use plus the work it saves per byte, after
// Marconi (arXiv 2411.19379). Private to this room.
//
// The clock counts turnovers: it advances by one when as many bytes were added as the budget holds.
// So `work_weight` says how many turnovers longer than a worthless entry the most valuable one is
// kept, at any size of the cache, and an entry keeps its score until it is used again: a queue in
// order of the scores needs no passing over all entries. PrefixTree adds what it alone knows: that
// a conversation left a turn behind, and a spread that makes some of equal worth outlast others.
//
// Pure functions, any thread.

#include <cstdint>

#include "config/model_config.h"

namespace k3::cache {

/// Operations of a prefill, in units of the first token's: every token costs the same but for MLA,
/// which looks at all tokens before.
class PrefillCost {
 public:
  explicit PrefillCost(const ModelConfig& config);

  /// Of tokens [begin, end).
  double Of(int64_t begin, int64_t end) const;

 private:
  double attention_ = 0;  // what one more token before it adds to a token's cost
};

/// In [0, 1): `saved_tokens` (of PrefillCost) against the tokens whose latents fill the same
/// `bytes`.
double WorkPerByte(double saved_tokens, double bytes, double bytes_per_token);

}  // namespace k3::cache
