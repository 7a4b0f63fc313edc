#include "cache/eviction_score.h"

namespace k3::cache {
namespace {

/// Multiplications of a token in layer `layer`'s attention, without the tokens before it.
double MixerCost(const ModelConfig& config, bool is_mla) {
  const double hidden = static_cast<double>(config.hidden_size);
  if (is_mla) {
    const MlaConfig& mla = config.mla;
    const int64_t key = mla.qk_nope_dim + mla.qk_rope_dim;
    const double query = static_cast<double>(mla.heads * key);
    const double value = static_cast<double>(mla.heads * mla.v_dim);
    const double low = static_cast<double>(mla.q_lora_rank);
    const double queries = low > 0 ? low * (hidden + query) : hidden * query;
    const double latent = static_cast<double>(mla.kv_lora_rank);
    return queries + hidden * (latent + static_cast<double>(mla.qk_rope_dim)) +
           latent * static_cast<double>(mla.heads * (mla.qk_nope_dim + mla.v_dim)) +
           hidden * value * (mla.output_gate ? 2 : 1);
  }
  const double dim = static_cast<double>(config.kda.head_dim);
  const double channels = static_cast<double>(config.kda.heads) * dim;
  // q, k, v, the gate and the output; the decay's low rank; the state is read and written.
  return 5 * hidden * channels + dim * (hidden + channels) + 3 * channels * dim;
}

double MlpCost(const ModelConfig& config, int64_t layer) {
  const double hidden = static_cast<double>(config.hidden_size);
  if (config.IsDense(layer)) return 3 * hidden * static_cast<double>(config.dense_intermediate);
  const MoeConfig& moe = config.moe;
  const double width = moe.latent > 0 ? static_cast<double>(moe.latent) : hidden;
  const double inner = static_cast<double>(moe.intermediate);
  return 3 * inner *
             (width * static_cast<double>(moe.experts_per_token) +
              hidden * static_cast<double>(moe.shared_experts)) +
         hidden * (static_cast<double>(moe.experts) + 2 * static_cast<double>(moe.latent));
}

}  // namespace

PrefillCost::PrefillCost(const ModelConfig& config) {
  double token = 0, attention = 0;
  for (int64_t layer = 0; layer < static_cast<int64_t>(config.is_mla.size()); ++layer) {
    const bool is_mla = config.is_mla[static_cast<size_t>(layer)];
    token += MixerCost(config, is_mla) + MlpCost(config, layer);
    if (!is_mla) continue;
    attention += static_cast<double>(
        config.mla.heads * (config.mla.qk_nope_dim + config.mla.qk_rope_dim + config.mla.v_dim));
  }
  if (token > 0) attention_ = attention / token;
}

double PrefillCost::Of(int64_t begin, int64_t end) const {
  const double count = static_cast<double>(end - begin);
  return count * (1 + attention_ * static_cast<double>(begin + end) / 2);
}

double WorkPerByte(double saved_tokens, double bytes, double bytes_per_token) {
  const double ratio = saved_tokens * bytes_per_token / bytes;
  return ratio / (1 + ratio);
}

}  // namespace k3::cache
