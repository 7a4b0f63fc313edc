#pragma once
// The network, once: the same function serves decode, prefill and evaluation.
//
//   embed -> per layer: mix, norm, KDA or MLA, mix, norm, dense or LatentMoE -> mix, norm, head
//
// Source: technical report, architecture sections; formulas stand in each block's file.

#include <cstdint>
#include <span>

#include "base/status.h"
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

}  // namespace k3::model
