// How much a token costs by the numbers of the model, for the shares in `k3 bench`.
#include <algorithm>

#include "cache/sequence_state.h"
#include "eval/bench.h"

namespace k3::eval {
namespace {

/// Sums over the matrices that one token uses.
struct MatrixSum {
  int64_t bytes = 0;
  double weights = 0;

  void Add(const WeightMatrix& w, double share = 1.0) {
    if (w.empty()) return;
    bytes += static_cast<int64_t>(static_cast<double>(w.bytes()) * share);
    weights += static_cast<double>(w.rows) * static_cast<double>(w.cols) * share;
  }
  void Add(const model::MlpParameters& p) {
    Add(p.gate);
    Add(p.up);
    Add(p.down);
  }
};

MatrixSum LayerMatrices(const ModelConfig& config, const model::LayerParameters& p) {
  MatrixSum sum;
  for (const WeightMatrix* w :
       {&p.kda.q,    &p.kda.k,      &p.kda.v,      &p.kda.decay_a,     &p.kda.decay_b,
        &p.kda.beta, &p.kda.gate,   &p.kda.gate_a, &p.kda.gate_b,      &p.kda.output,
        &p.mla.q,    &p.mla.q_a,    &p.mla.q_b,    &p.mla.kv_a,        &p.mla.kv_b,
        &p.mla.gate, &p.mla.output, &p.moe.router, &p.moe.latent_down, &p.moe.latent_up}) {
    sum.Add(*w);
  }
  sum.Add(p.mlp);
  sum.Add(p.moe.shared);
  // Every expert has the same shape; a token uses experts_per_token of them.
  const double share = static_cast<double>(config.moe.experts_per_token) /
                       static_cast<double>(std::max<size_t>(p.moe.experts.size(), 1));
  for (const model::ExpertParameters& expert : p.moe.experts) {
    sum.Add(expert.gate, share);
    sum.Add(expert.up, share);
    sum.Add(expert.down, share);
  }
  return sum;
}

int64_t VectorBytes(const model::LayerParameters& p) {
  size_t floats = 0;
  for (const model::Vector* v :
       {&p.input_norm, &p.post_attention_norm, &p.attention_mix, &p.mlp_mix, &p.kda.conv_q,
        &p.kda.conv_k, &p.kda.conv_v, &p.kda.rate, &p.kda.dt_bias, &p.kda.output_norm,
        &p.mla.q_norm, &p.mla.kv_norm, &p.moe.correction_bias, &p.moe.latent_norm}) {
    floats += v->size();
  }
  return static_cast<int64_t>(floats * sizeof(float));
}

}  // namespace

int64_t DecodeBytes(const ModelConfig& config, const model::Parameters& parameters, int64_t depth) {
  int64_t bytes = parameters.head.bytes() + parameters.embedding.bytes() / config.vocab_size;
  for (const model::LayerParameters& layer : parameters.layers) {
    bytes += LayerMatrices(config, layer).bytes + VectorBytes(layer);
  }
  const int64_t empty = cache::SequenceStateBytes(config, 0);
  // Latents as they are read, not in whole pages.
  const int64_t page = cache::SequenceStateBytes(config, cache::kPageTokens) - empty;
  return bytes + empty + page / cache::kPageTokens * (depth + 1);
}

double PrefillFlops(const ModelConfig& config, const model::Parameters& parameters, int64_t start,
                    int64_t tokens) {
  const double count = static_cast<double>(tokens);
  double flops = 2.0 * static_cast<double>(parameters.head.rows * parameters.head.cols);
  const double visible = static_cast<double>(start) + (count + 1) / 2;
  const double mla =
      static_cast<double>(config.mla.heads) * 2 * visible *
      static_cast<double>(config.mla.qk_nope_dim + config.mla.qk_rope_dim + config.mla.v_dim);
  // Per head: two products with the state, its update, and the chunk's own pairs.
  const double d = static_cast<double>(config.kda.head_dim);
  const double kda = static_cast<double>(config.kda.heads) *
                     (6 * d * d + 4 * d * static_cast<double>(cache::kChunkTokens + 1));
  for (size_t layer = 0; layer < parameters.layers.size(); ++layer) {
    flops += count * (2 * LayerMatrices(config, parameters.layers[layer]).weights +
                      (config.is_mla[layer] ? mla : kda));
  }
  return flops;
}

}  // namespace k3::eval
