#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"

namespace k3 {
namespace {

/// Reads the prompt; false when the sink cancelled. `logits` [V] or empty, as for Prefill.
Result<bool> ReadPrompt(Session& session, std::span<const int32_t> prompt, int64_t chunk,
                        std::span<float> logits, TokenSink& sink) {
  const size_t step = static_cast<size_t>(std::max<int64_t>(chunk, 1));
  for (size_t at = 0; at < prompt.size(); at += step) {
    const std::span<const int32_t> part = prompt.subspan(at, std::min(step, prompt.size() - at));
    const size_t done = at + part.size();
    const bool last = done == prompt.size();
    K3_RETURN_IF_ERROR(session.Prefill(part, last ? logits : std::span<float>(), chunk));
    if (!sink.OnPrefillProgress(static_cast<int64_t>(done), std::ssize(prompt))) return false;
  }
  return true;
}

}  // namespace

Status CheckGeneration(const ModelConfig& config, int64_t position, std::span<const int32_t> prompt,
                       const SamplingOptions& sampling, int64_t max_tokens) {
  K3_RETURN_IF_ERROR(sampling.Validate());
  K3_RETURN_IF_ERROR(sampling.ValidateFor(config.vocab_size));
  if (max_tokens < 0) {
    return InvalidArgument(fmt::format("max_tokens: expected 0 or more, found {}", max_tokens));
  }
  if (prompt.empty()) return InvalidArgument("the prompt is empty: expected at least one token");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= config.vocab_size) {
      return InvalidArgument(fmt::format("prompt token {}: expected an id in [0, {}), found {}", i,
                                         config.vocab_size, prompt[i]));
    }
  }
  const int64_t end = position + std::ssize(prompt);
  const int64_t room_wanted = max_tokens > 0 ? 1 : 0;
  if (end + room_wanted > config.context_max) {
    return InvalidArgument(fmt::format(
        "the prompt ends at token {}, which leaves no room in the model's context of {}; shorten "
        "the prompt",
        end, config.context_max));
  }
  return OkStatus();
}

Result<GenerateResult> Generate(Session& session, std::span<const int32_t> prompt,
                                const GenerateOptions& options, TokenSink& sink) {
  const ModelConfig& config = session.engine().config();
  K3_RETURN_IF_ERROR(
      CheckGeneration(config, session.length(), prompt, options.sampling, options.max_tokens));
  const int64_t room = config.context_max - session.length() - std::ssize(prompt);
  const int64_t tokens_max = std::min(options.max_tokens, room);
  // Without tokens to draw nobody needs logits.
  std::vector<float> logits(static_cast<size_t>(tokens_max > 0 ? config.vocab_size : 0));
  Sampler sampler(options.sampling);
  sampler.See(session.tokens());
  sampler.See(prompt);
  GenerateResult result;
  result.prompt_tokens = std::ssize(prompt);

  const int64_t prefill_start_ns = MonotonicNanoseconds();
  K3_TRY(const bool read, ReadPrompt(session, prompt, options.prefill_chunk, logits, sink));
  result.prefill_seconds = SecondsBetween(prefill_start_ns, MonotonicNanoseconds());
  if (!read) result.finish_reason = FinishReason::kCancelled;
  if (!read || tokens_max == 0) return result;

  while (true) {
    const int64_t sample_start_ns = MonotonicNanoseconds();
    K3_TRY(const SampledToken token, sampler.Next(logits));
    result.decode_seconds += SecondsBetween(sample_start_ns, MonotonicNanoseconds());
    if (std::ranges::count(options.stop_ids, token.id) > 0) {
      result.finish_reason = FinishReason::kStop;
      result.stop_id = token.id;
      return result;
    }
    ++result.generated_tokens;
    const SinkVerdict verdict = sink.OnToken(token);
    if (verdict != SinkVerdict::kContinue) {
      result.finish_reason =
          verdict == SinkVerdict::kStop ? FinishReason::kStop : FinishReason::kCancelled;
      return result;
    }
    if (result.generated_tokens == tokens_max) return result;
    const int64_t pass_start_ns = MonotonicNanoseconds();
    K3_RETURN_IF_ERROR(session.Decode(token.id, logits));
    result.decode_seconds += SecondsBetween(pass_start_ns, MonotonicNanoseconds());
    ++result.decode_passes;
  }
}

}  // namespace k3
