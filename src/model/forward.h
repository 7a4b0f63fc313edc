#pragma once
// The network, once: the same function serves decode, prefill, evaluation and training.
//
//   embed -> per layer: mix, norm, KDA or MLA, mix, norm, dense or LatentMoE -> mix, norm, head
//
// Source: technical report, architecture sections; formulas stand in each block's file.

#include <cstdint>
#include <span>

#include "base/status.h"
#include "model/attention_residuals.h"
#include "model/batch.h"
#include "model/parameters.h"

namespace k3::model {

/// Runs a batch and advances its sequences. logits [logit_rows.size(), V] receives the head's
/// output for the chosen batch rows (a row is a token's place in the batch). Scratch is taken from
/// the context's arena, which is reset. InvalidArgument, before anything is changed, for a token id
/// outside the vocabulary, an empty segment, or a sequence that would pass the context limit. After
/// a failure of the expert source the batch's sequences are unusable.
Status Forward(const ForwardContext& ctx, const ModelConfig& config, const Parameters& parameters,
               const Batch& batch, std::span<const int32_t> logit_rows, float* logits);

/// The same up to the final norm, which the head reads: rows [T, D] in the context's arena, valid
/// until it is reset. With a tape, everything that the backward pass needs is in it afterwards.
/// Sequences are not advanced.
Result<const float*> ForwardHidden(const ForwardContext& ctx, const ModelConfig& config,
                                   const Parameters& parameters, const Batch& batch);

/// The residual stream that a configuration asks for.
AttentionResiduals::Options ResidualOptions(const ModelConfig& config, int64_t tokens);

}  // namespace k3::model
