#pragma once
// A generated token and its log-probabilities as JSON: docs/formats.md, `k3 run --logprobs`.

#include "config/json.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

namespace k3::cli {

/// {"id", "text", "bytes", "logprob", "top": [{"id", "text", "logprob"}, ...]}
JsonValue TokenJson(const Tokenizer& tokenizer, const SampledToken& token);

}  // namespace k3::cli
