#pragma once
// Generate: lets a session go on from a prompt, token by token.
//
//   class Printer : public TokenSink { SinkVerdict OnToken(const SampledToken& token) override; };
//   Printer printer;
//   K3_TRY(GenerateResult result, Generate(session, prompt_ids, options, printer));
//
// The prompt goes through the prefill form in chunks, every generated token but the last through
// the decode form: the last one needs no pass of its own, and neither does one that stops the run.
// What is generated depends on the session's tokens, the prompt and `sampling` alone: for penalties
// all of the sequence before the answer is the prompt, so that a session that goes on draws as a
// new one would from the same ids.
//
// The sink belongs to the caller and is called from the calling thread between passes. Failures:
// InvalidArgument, before anything runs, for a bad option, an empty prompt, an id outside the
// vocabulary in the prompt or the biases, or a prompt that leaves no room in the context; Internal
// for logits that are no numbers. After a failure the session must not be used further.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/session.h"
#include "sample/sampler.h"

namespace k3 {

inline constexpr int64_t kDefaultGeneratedTokens = 256;

struct GenerateOptions {
  SamplingOptions sampling;
  /// Fewer are generated when the model's context ends first.
  int64_t max_tokens = kDefaultGeneratedTokens;
  std::vector<int64_t> stop_ids;
  int64_t prefill_chunk = kDefaultPrefillChunk;
};

/// What a sink makes of a token: whether the run goes on, is complete, or is no longer wanted.
enum class SinkVerdict { kContinue, kStop, kCancel };

/// Receives a run as it goes. Stop strings are the sink's to find: it knows the text.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// After each chunk of the prompt: `done` of `total` tokens have been read. False cancels the
  /// run.
  virtual bool OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) { return true; }
  /// Each generated token in order; a stop id that ends the run is not among them.
  virtual SinkVerdict OnToken(const SampledToken& token) = 0;
};

enum class FinishReason {
  kStop,       // one of the stop ids was drawn, or the sink saw the end
  kLength,     // max_tokens or the end of the context was reached
  kCancelled,  // the sink had enough
};

struct GenerateResult {
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<int32_t> stop_id;  // with kStop, the id that ended the run, if it was one
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;  // as the sink saw them
  double prefill_seconds = 0;
  double decode_seconds = 0;  // passes and sampling after the prompt, without the sink's time
  int64_t decode_passes = 0;  // how many passes that time was for
};

/// What Generate refuses before anything runs, for a sequence that has `position` tokens already.
Status CheckGeneration(const ModelConfig& config, int64_t position, std::span<const int32_t> prompt,
                       const SamplingOptions& sampling, int64_t max_tokens);

Result<GenerateResult> Generate(Session& session, std::span<const int32_t> prompt,
                                const GenerateOptions& options, TokenSink& sink);

}  // namespace k3
