#pragma once
// Batch: what one forward pass runs on. A batch is a list of segments, each a run of tokens of one
// sequence that starts at the sequence's length; all tokens lie in one [T, D] array, and only KDA
// and MLA look at segments. Plain values; spans and states belong to the caller and must outlive
// the pass. Two segments never share a state.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/sequence_state.h"
#include "ops/exec_context.h"

namespace k3::model {

class Tape;

/// How MLA attends. Prompts take the prefill form (keys and values expanded from the latents),
/// generated tokens the absorbed form (queries moved into latent space). They differ by rounding.
enum class AttentionForm { kPrefill, kDecode };

/// A point of the 16-token grid at which others may go on from what the sequence is there: inside
/// the segment or at its end. The pass fills the snapshot, which has its arrays; the state itself
/// goes on to the segment's end.
struct SnapshotPoint {
  int64_t at = 0;  // position in the sequence, behind the segment's start
  cache::KdaSnapshot* snapshot = nullptr;
};

struct Segment {
  /// Null in training: the segment is a document of its own, and nothing is kept of it.
  cache::SequenceState* state = nullptr;
  std::span<const int32_t> tokens;
  AttentionForm form = AttentionForm::kPrefill;
  std::span<const SnapshotPoint> snapshots;  // ascending; only with a state
};

struct Batch {
  std::vector<Segment> segments;

  int64_t tokens_count() const {
    int64_t count = 0;
    for (const Segment& segment : segments) count += static_cast<int64_t>(segment.tokens.size());
    return count;
  }
};

/// Sees values as they pass, for tests and research. Called from the thread that drives the pass.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  /// The running sum after a layer, [T, D].
  virtual void OnHidden(int64_t layer, std::span<const float> hidden) = 0;
  /// The chosen experts of a MoE layer, ascending for each token, [T, k].
  virtual void OnRoute(int64_t layer, std::span<const int32_t> experts) = 0;
};

/// Whoever makes routed experts ready for use. Called from the thread that drives the pass, after
/// the router has chosen and before an expert's bytes are read.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  /// `experts` ascending and distinct. A failure ends the pass; the sequences must not go on.
  virtual Status Prepare(int64_t layer, std::span<const int32_t> experts) = 0;
};

struct ForwardContext {
  ops::ExecContext exec;
  ExpertSource* experts = nullptr;      // may be null: every expert is ready
  ForwardObserver* observer = nullptr;  // may be null
  Tape* tape = nullptr;                 // training: what the backward pass will need
  /// Training's option: inputs of the routed experts' matrices are rounded to MXFP8
  /// (number_formats.h). Needs a latent.
  bool mxfp8_expert_inputs = false;
};

}  // namespace k3::model
