#pragma once
// One training pass: forward with a tape, cross-entropy in chunks, backward through every block.
//
//   Tape tape;  ctx.tape = &tape;
//   K3_TRY(double nats, LossAndGradients(ctx, config, parameters, batch, targets, scale,
//   &gradients));
//
// The head's logits exist for a chunk of rows at a time, never for the whole batch. Float32
// throughout, the loss summed in float64. The same bits for any number of threads and any policy of
// the tape. Parameters' matrices are float32 (training's; they hold bf16 or MXFP4 values); the
// gradients are added to. Source: the chain rule, formulas above each block.

#include <cstdint>
#include <span>

#include "base/status.h"
#include "model/forward.h"
#include "model/tape.h"

namespace k3::model {

/// A target that is not predicted.
inline constexpr int32_t kNoTarget = -1;

/// Sum of -log p(target) in nats over the rows that have a target. targets [T], ids or kNoTarget.
/// Segments have no state. InvalidArgument as Forward, and for a target outside the vocabulary.
Result<double> Loss(const ForwardContext& ctx, const ModelConfig& config,
                    const Parameters& parameters, const Batch& batch,
                    std::span<const int32_t> targets);

/// The same with ctx.tape, adding the gradients of scale x that sum.
Result<double> LossAndGradients(const ForwardContext& ctx, const ModelConfig& config,
                                const Parameters& parameters, const Batch& batch,
                                std::span<const int32_t> targets, float scale,
                                Gradients& gradients);

}  // namespace k3::model
