#pragma once
// Generate: lets a session go on from a prompt, token by token.
//
//   class Printer : public TokenSink { bool OnToken(const SampledToken& token) override; };
//   Printer printer;
//   K3_TRY(GenerateResult result, Generate(session, prompt_ids, options, printer));
//
// The prompt goes through the prefill form in chunks, every generated token but the last through
// the decode form: the last one needs no pass of its own, and neither does the id that stops.
// What is generated depends on the session's tokens, the prompt and `sampling` alone.
//
// The sink belongs to the caller and is called from the calling thread between passes. Failures:
// InvalidArgument, before anything runs, for a bad option, an empty prompt, an id outside the
// vocabulary or a prompt that leaves no room in the context; Internal for logits that are no
// numbers. After a failure the session must not be used further.

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

/// Receives a run as it goes. Either call may cancel the run by returning false.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// After each chunk of the prompt: `done` of `total` tokens have been read.
  virtual bool OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) { return true; }
  /// Each generated token in order; the one that stops the run is not among them.
  virtual bool OnToken(const SampledToken& token) = 0;
};

enum class FinishReason {
  kStop,       // one of the stop ids was drawn
  kLength,     // max_tokens or the end of the context was reached
  kCancelled,  // the sink had enough
};

struct GenerateResult {
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<int32_t> stop_id;  // the id that ended the run, with kStop
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;  // as the sink saw them
  double prefill_seconds = 0;
  double decode_seconds = 0;  // passes and sampling after the prompt, without the sink's time
  int64_t decode_passes = 0;  // how many passes that time was for
};

Result<GenerateResult> Generate(Session& session, std::span<const int32_t> prompt,
                                const GenerateOptions& options, TokenSink& sink);

}  // namespace k3
