#include "train/health.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace k3::train {
namespace {

struct Size {
  double rms = 0;
  double max = 0;
};

Size SizeOf(std::span<const float> values) {
  double squares = 0, max = 0;
  for (float value : values) {
    squares += double{value} * value;
    max = std::max(max, std::abs(double{value}));
  }
  return {std::sqrt(squares / static_cast<double>(values.size())), max};
}

/// log of the decay for the gate's argument z = raw + bias.
double LogDecay(const KdaConfig& kda, double rate, double z) {
  if (kda.gate_lower_bound.has_value()) {
    return *kda.gate_lower_bound / (1.0 + std::exp(-rate * z));
  }
  return -rate * (z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)));
}

/// The range over all tokens and channels; the decay falls with z, so a channel's range is at its
/// ends.
void MeasureDecay(const KdaConfig& kda, const model::KdaParameters& p, const float* raw,
                  int64_t tokens, LayerHealth& health) {
  const int64_t channels = kda.heads * kda.head_dim;
  double least = 0, most = -INFINITY;
  for (int64_t c = 0; c < channels; ++c) {
    float low = INFINITY, high = -INFINITY;
    for (int64_t t = 0; t < tokens; ++t) {
      low = std::min(low, raw[t * channels + c]);
      high = std::max(high, raw[t * channels + c]);
    }
    const double bias = p.dt_bias[static_cast<size_t>(c)];
    const double rate = p.rate[static_cast<size_t>(c / kda.head_dim)];
    least = std::min(least, LogDecay(kda, rate, high + bias));
    most = std::max(most, LogDecay(kda, rate, low + bias));
  }
  health.log_decay_min = least;
  health.log_decay_max = most;
}

/// The strongest decay of a channel over the 16-token tiles of every document.
double TileLogDecay(const KdaConfig& kda, const model::KdaParameters& p, const float* raw,
                    const model::Batch& batch) {
  constexpr int64_t kTile = 16;
  const int64_t channels = kda.heads * kda.head_dim;
  std::vector<double> sums(static_cast<size_t>(channels));
  double least = 0;
  for (const model::Segment& segment : batch.segments) {
    const int64_t tokens = std::ssize(segment.tokens);
    for (int64_t t = 0; t < tokens; ++t, raw += channels) {
      if (t % kTile == 0) std::ranges::fill(sums, 0.0);
      for (int64_t c = 0; c < channels; ++c) {
        const size_t at = static_cast<size_t>(c);
        const double rate = p.rate[static_cast<size_t>(c / kda.head_dim)];
        sums[at] += LogDecay(kda, rate, double{raw[c]} + p.dt_bias[at]);
        least = std::min(least, sums[at]);
      }
    }
  }
  return least;
}

/// The largest magnitude behind SiTU over all places of the routed experts.
double ExpertHiddenMax(const kernels::KernelTable& kernels, const ModelConfig& config,
                       const model::MoeTape& tape, int64_t tokens) {
  const int64_t f = config.moe.intermediate, pairs = tokens * config.moe.experts_per_token;
  std::vector<float> row(static_cast<size_t>(f));
  float most = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    kernels.elementwise.situ(tape.gate + i * f, tape.up + i * f, f, config.situ_beta,
                             config.situ_linear_beta.value_or(0.0f), row.data());
    for (float value : row) most = std::max(most, std::abs(value));
  }
  return most;
}

}  // namespace

std::vector<LayerHealth> MeasureHealth(const kernels::KernelTable& kernels,
                                       const ModelConfig& config,
                                       const model::Parameters& parameters,
                                       const model::Batch& batch, const model::Tape& tape) {
  std::vector<LayerHealth> report;
  const int64_t tokens = tape.tokens();
  for (size_t l = 0; l < tape.layers.size(); ++l) {
    const model::LayerTape& layer = tape.layers[l];
    const float* behind =
        l + 1 < tape.layers.size() ? tape.layers[l + 1].attention_prefix : tape.last_prefix;
    const Size hidden = SizeOf({behind, static_cast<size_t>(tokens * config.hidden_size)});
    LayerHealth health{
        .layer = static_cast<int64_t>(l), .hidden_rms = hidden.rms, .hidden_max = hidden.max};
    if (layer.moe.routed != nullptr && config.moe.latent > 0) {
      const Size routed =
          SizeOf({layer.moe.routed, static_cast<size_t>(tokens * config.moe.latent)});
      health.routed_rms = routed.rms;
      health.routed_max = routed.max;
    }
    if (layer.moe.gate != nullptr) {
      health.expert_hidden_max = ExpertHiddenMax(kernels, config, layer.moe, tokens);
    }
    if (layer.kda.decay != nullptr) {
      const model::KdaParameters& kda = parameters.layers[l].kda;
      MeasureDecay(config.kda, kda, layer.kda.decay, tokens, health);
      health.tile_log_decay_min = TileLogDecay(config.kda, kda, layer.kda.decay, batch);
    }
    report.push_back(health);
  }
  return report;
}

}  // namespace k3::train
