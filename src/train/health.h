#pragma once
// MeasureHealth: how large the values inside a model are, from the tape of a forward pass: what to
// watch beside the loss (docs/training.md). One thread; reads the tape, changes nothing. What the
// tape does not keep is not measured.

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "model/batch.h"
#include "model/parameters.h"
#include "model/tape.h"

namespace k3::train {

/// How large values are at one layer, over the tokens of one micro-batch.
struct LayerHealth {
  int64_t layer = 0;
  double hidden_rms = 0;             // running sum behind the layer
  double hidden_max = 0;             // its largest magnitude
  std::optional<double> routed_rms;  // MoE: sum over experts, before the latent norm
  std::optional<double> routed_max;
  std::optional<double> expert_hidden_max;  // MoE: largest magnitude behind SiTU
  std::optional<double> log_decay_min;  // KDA: the strongest decay of a channel and token, in nats
  std::optional<double> log_decay_max;  // and the weakest
  /// KDA: the strongest decay over 16 tokens of a document. e^-this is the largest reciprocal that
  /// a tile's matrix form needs; float32 ends at 88.7.
  std::optional<double> tile_log_decay_min;
};

/// `batch` is what the tape is of.
std::vector<LayerHealth> MeasureHealth(const kernels::KernelTable& kernels,
                                       const ModelConfig& config,
                                       const model::Parameters& parameters,
                                       const model::Batch& batch, const model::Tape& tape);

}  // namespace k3::train
