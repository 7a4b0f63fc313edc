#pragma once
// Session: one sequence of tokens on an engine, and how it goes on, goes back and is reused.
//
//   Session session(engine, Session::Boundaries::kKept);
//   K3_RETURN_IF_ERROR(session.Prefill(prompt_ids, logits));
//   K3_RETURN_IF_ERROR(session.Decode(next_id, logits));
//   ...
//   const int64_t kept = session.Reuse(next_prompt_ids);  // then run the ids behind `kept`
//   K3_RETURN_IF_ERROR(session.Prefill(std::span(next_prompt_ids).subspan(kept), logits));
//
// Prompt tokens go through MLA's prefill form, generated ones through its absorbed form, which
// differs by rounding. So Reuse keeps only what ran in prefill form: what follows gives the same
// bits as a new session would. The session comes back to a boundary from a copy of the KDA states
// there (a fixed size; the latents of MLA stay): one is taken when the first token after a prompt
// is decoded, and wherever the caller says so. The last kBoundariesMax are kept.
//
// Borrows the engine, which must outlive it; one thread at a time, and one running session an
// engine. After a failed pass only Reset makes it usable again.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/sequence_state.h"
#include "engine/engine.h"

namespace k3 {

class Session {
 public:
  static constexpr size_t kBoundariesMax = 3;

  enum class Boundaries { kNone, kKept };

  /// With kNone no copies are made, and Reuse comes back to the end or the beginning alone.
  explicit Session(Engine& engine, Boundaries boundaries = Boundaries::kNone)
      : engine_(&engine),
        keeps_boundaries_(boundaries == Boundaries::kKept),
        state_(engine.config()) {}

  Engine& engine() { return *engine_; }
  /// Tokens seen so far.
  int64_t length() const { return state_.length(); }
  /// Every one of them, in order.
  std::span<const int32_t> tokens() const { return tokens_; }
  /// For those who fill a state without running tokens; Reuse knows nothing of what they put in.
  cache::SequenceState& state() { return state_; }

  /// Runs prompt tokens in chunks through MLA's prefill form. `logits` [V] receives those after the
  /// last token, or is empty.
  Status Prefill(std::span<const int32_t> tokens, std::span<float> logits,
                 int64_t chunk = kDefaultPrefillChunk);

  /// Runs one generated token through the absorbed form. logits [V].
  Status Decode(int32_t token, std::span<float> logits);

  /// Makes the present end a boundary. Nothing to do when a decoded token is among the tokens.
  void MarkBoundary();

  /// Whether it has run just these tokens, all of them in prefill form.
  bool Holds(std::span<const int32_t> tokens) const;

  /// Goes back to the longest boundary, the present end or the beginning, that is a proper prefix
  /// of `prompt` and ran in prefill form, and returns its length: at least one token of the prompt
  /// is left to run. An empty prompt gives the empty sequence.
  int64_t Reuse(std::span<const int32_t> prompt);

  /// The empty sequence.
  void Reset();

 private:
  bool HasPrefix(std::span<const int32_t> prompt, int64_t length) const;

  Engine* engine_;
  bool keeps_boundaries_;
  cache::SequenceState state_;
  std::vector<int32_t> tokens_;                  // [length()]
  int64_t prefilled_ = 0;                        // tokens_ [0, prefilled_) ran in prefill form
  std::vector<cache::SequenceMark> boundaries_;  // ascending, none beyond prefilled_
};

}  // namespace k3
