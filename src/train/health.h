#pragma once
// MeasureHealth: how large the values inside a model are, from the tape of a training pass: what to
// watch beside the loss (docs/training.md). One thread; reads the tape, changes nothing.

#include <cstdint>
#include <optional>
#include <vector>

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
  std::optional<double> log_decay_min;  // KDA: the strongest decay of a channel and token, in nats
  std::optional<double> log_decay_max;  // and the weakest
};

std::vector<LayerHealth> MeasureHealth(const ModelConfig& config,
                                       const model::Parameters& parameters,
                                       const model::Tape& tape);

}  // namespace k3::train
