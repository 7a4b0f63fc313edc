#pragma once
// The tensors a checkpoint of a given configuration must hold: names, shapes, roles and the types
// the official one stores them in. Generated one at a time through a callback, because the largest
// model has half a million. Pure functions of the configuration; any thread; nothing fails.
//
// Names here are relative: "embed_tokens.weight", "layers.3.self_attn.q_proj.weight",
// "lm_head.weight". TensorNames turns them into a checkpoint's own. An MXFP4 matrix "x.weight" is
// stored as "x.weight_packed" [rows, cols / 2] and "x.weight_scale" [rows, cols / 32].
//
// Layout: the released Kimi K3 checkpoint, [out, in] matrices; docs/formats.md has the table.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "tensor/tensor_view.h"

namespace k3 {

enum class TensorRole : uint8_t {
  kEmbedding,       // [V, D]
  kHead,            // [V, D]
  kMatrix,          // [out, in]
  kNorm,            // [n]
  kResidualQuery,   // [1, D], the scoring vector of an attention residual
  kConvolution,     // [H*K, 1, taps]
  kALog,            // [at least H], zeros behind the first H
  kDtBias,          // [H*K]
  kRouter,          // [E, D]
  kCorrectionBias,  // [E]
  kExpert,          // [out, in], one of w1, w2, w3
};

enum class StoredType : uint8_t { kBf16, kF32, kMxfp4 };

struct ExpectedTensor {
  std::string name;  // relative
  Shape shape;       // of the values, also for MXFP4
  TensorRole role = TensorRole::kMatrix;
  StoredType stored = StoredType::kBf16;
  int64_t layer = -1;   // -1: none
  int64_t expert = -1;  // -1: none
  /// How wide a random start is: matrices are N(0, gain^2 / in).
  float gain = 1.0f;
};

using TensorVisitor = std::function<void(const ExpectedTensor&)>;

/// Everything of decoder layer `layer`, in the order in which it is written.
void VisitLayerTensors(const ModelConfig& config, int64_t layer, const TensorVisitor& visit);
/// Embedding, final norms and head.
void VisitOuterTensors(const ModelConfig& config, const TensorVisitor& visit);
/// All layers, then the outer tensors.
void VisitTensors(const ModelConfig& config, const TensorVisitor& visit);

/// A_log is stored with zeros up to a multiple of this.
inline constexpr int64_t kALogPadding = 128;

/// A checkpoint's prefixes: "language_model.model." and "language_model.", or "model." and "" when
/// the text model stands alone.
class TensorNames {
 public:
  explicit TensorNames(bool nested) : nested_(nested) {}
  /// From the names in the checkpoint; NotFound when it holds no text model of either kind.
  static Result<TensorNames> Detect(const Checkpoint& checkpoint);

  bool nested() const { return nested_; }
  /// The stored name of a relative one.
  std::string Full(std::string_view relative) const;

 private:
  bool nested_;
};

/// Vision tower and projector: listed by a checkpoint, but no part of the text model.
bool IsVisionTensor(std::string_view full_name);

struct InventoryDifference {
  std::vector<std::string> missing;     // full names
  std::vector<std::string> unexpected;  // full names, vision left out
  int64_t vision_count = 0;
  int64_t matched_count = 0;  // stored tensors, so an MXFP4 matrix counts two
};

/// Compares names only. A matrix counts as present in plain and in MXFP4 form alike. Of a partial
/// checkpoint only the layers it claims are expected. Each list stops at `listed_max` names.
Result<InventoryDifference> CompareWithInventory(const Checkpoint& checkpoint, int64_t listed_max);

}  // namespace k3
