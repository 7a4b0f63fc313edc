#pragma once
// The options of every command that generates: how tokens are drawn, and which text ends the
// answer. Declared once, on a command; the flags must live until parsing is done.
//
//   AddSamplingFlags(*command, flags);
//   ...
//   K3_TRY(const SamplingOptions sampling, ChooseSampling(flags, generation_config));
//   K3_TRY(StopMatcher matcher, MakeStopMatcher(flags));
//
// A value that an option cannot take is a usage error of the parsing; what takes more to see (an id
// that is biased twice) is InvalidArgument. A value; one thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/model_config.h"
#include "sample/sampling_options.h"
#include "text/stop_matcher.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct SamplingFlags {
  // Not given: what the checkpoint says, else the model card.
  std::optional<float> temperature;
  std::optional<int64_t> top_k;
  std::optional<float> top_p;
  float min_p = 0;
  bool greedy = false;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::string> logit_bias;  // each ID=BIAS
  uint64_t seed = 0;
  std::vector<std::string> stops;  // any bytes
};

/// Declares --temperature, --top-k, --top-p, --min-p, --greedy, --seed, the penalties, --logit-bias
/// and --stop.
void AddSamplingFlags(CLI::App& command, SamplingFlags& flags);

/// Valid options, but for ids of biases that the vocabulary may not have.
Result<SamplingOptions> ChooseSampling(const SamplingFlags& flags,
                                       const GenerationConfig& defaults);

/// Finds the stop strings of --stop.
Result<StopMatcher> MakeStopMatcher(const SamplingFlags& flags);

}  // namespace k3::cli
