#include "model/parameters.h"

#include <fmt/format.h>

#include "kernels/kernels.h"

namespace k3::model {
namespace {

/// Binds the tensors of one layer and remembers the first failure, so that the binding below reads
/// as a list.
class Binder {
 public:
  Binder(const WeightStore& weights, std::string prefix)
      : weights_(weights), prefix_(std::move(prefix)) {}

  /// A matrix of the trunk, whose scales (if it is MXFP4) are checked at once.
  WeightMatrix Matrix(std::string_view name, int64_t rows, int64_t cols) {
    const WeightMatrix w = ExpertMatrix(name, rows, cols);
    const Status valid = weights_.CheckScales(w, prefix_ + std::string(name));
    if (status_.ok()) status_ = valid;
    return w;
  }
  /// A matrix of a routed expert: whoever uses it checks its scales (ExpertSource).
  WeightMatrix ExpertMatrix(std::string_view name, int64_t rows, int64_t cols) {
    return Take(weights_.Matrix(prefix_ + std::string(name), rows, cols));
  }
  Vector Values(std::string_view name, int64_t count) {
    return Take(weights_.Vector(prefix_ + std::string(name), count));
  }
  /// A convolution [C, 1, taps], transposed to [taps, C].
  Vector Convolution(std::string_view name, int64_t channels, int64_t taps) {
    const Vector stored =
        Take(weights_.Array(prefix_ + std::string(name), Shape({channels, 1, taps})));
    Vector transposed(stored.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      const size_t channel = i / static_cast<size_t>(taps), tap = i % static_cast<size_t>(taps);
      transposed[tap * static_cast<size_t>(channels) + channel] = stored[i];
    }
    return transposed;
  }
  /// exp(A_log) of the real heads.
  Vector Rate(std::string_view name, int64_t heads) {
    Vector rate = Take(weights_.ALog(prefix_ + std::string(name), heads));
    kernels::Kernels(SimdTarget::kScalar)
        .elementwise.exp(rate.data(), static_cast<int64_t>(rate.size()), rate.data());
    return rate;
  }
  /// The scoring vector of an attention-residual mix: its norm weight times its query.
  Vector Mix(std::string_view name, int64_t width) {
    Vector mix = Values(fmt::format("{}_norm.weight", name), width);
    const Vector query = Values(fmt::format("{}_proj.weight", name), width);
    for (size_t i = 0; i < std::min(mix.size(), query.size()); ++i) mix[i] *= query[i];
    return mix;
  }

  const Status& status() const { return status_; }

 private:
  template <typename T>
  T Take(Result<T> result) {
    if (result.ok()) return std::move(result).value();
    if (status_.ok()) status_ = result.status();
    return {};
  }

  const WeightStore& weights_;
  const std::string prefix_;
  Status status_;
};

KdaParameters BindKda(Binder& bind, const ModelConfig& config) {
  const KdaConfig& kda = config.kda;
  const int64_t d = config.hidden_size, k = kda.head_dim, c = kda.heads * k;
  KdaParameters p;
  p.q = bind.Matrix("self_attn.q_proj", c, d);
  p.k = bind.Matrix("self_attn.k_proj", c, d);
  p.v = bind.Matrix("self_attn.v_proj", c, d);
  p.decay_a = bind.Matrix("self_attn.f_a_proj", k, d);
  p.decay_b = bind.Matrix("self_attn.f_b_proj", c, k);
  p.beta = bind.Matrix("self_attn.b_proj", kda.heads, d);
  if (kda.full_rank_gate) {
    p.gate = bind.Matrix("self_attn.g_proj", c, d);
  } else {
    p.gate_a = bind.Matrix("self_attn.g_a_proj", k, d);
    p.gate_b = bind.Matrix("self_attn.g_b_proj", c, k);
  }
  p.output = bind.Matrix("self_attn.o_proj", d, c);
  p.conv_q = bind.Convolution("self_attn.q_conv1d.weight", c, kda.conv_kernel);
  p.conv_k = bind.Convolution("self_attn.k_conv1d.weight", c, kda.conv_kernel);
  p.conv_v = bind.Convolution("self_attn.v_conv1d.weight", c, kda.conv_kernel);
  p.rate = bind.Rate("self_attn.A_log", kda.heads);
  p.dt_bias = bind.Values("self_attn.dt_bias", c);
  p.output_norm = bind.Values("self_attn.o_norm.weight", k);
  return p;
}

MlaParameters BindMla(Binder& bind, const ModelConfig& config) {
  const MlaConfig& mla = config.mla;
  const int64_t d = config.hidden_size;
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t value = mla.heads * mla.v_dim;
  MlaParameters p;
  if (mla.q_lora_rank > 0) {
    p.q_a = bind.Matrix("self_attn.q_a_proj", mla.q_lora_rank, d);
    p.q_norm = bind.Values("self_attn.q_a_layernorm.weight", mla.q_lora_rank);
    p.q_b = bind.Matrix("self_attn.q_b_proj", query, mla.q_lora_rank);
  } else {
    p.q = bind.Matrix("self_attn.q_proj", query, d);
  }
  p.kv_a = bind.Matrix("self_attn.kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_dim, d);
  p.kv_norm = bind.Values("self_attn.kv_a_layernorm.weight", mla.kv_lora_rank);
  p.kv_b = bind.Matrix("self_attn.kv_b_proj", mla.heads * (mla.qk_nope_dim + mla.v_dim),
                       mla.kv_lora_rank);
  if (mla.output_gate) p.gate = bind.Matrix("self_attn.g_proj", value, d);
  p.output = bind.Matrix("self_attn.o_proj", d, value);
  return p;
}

MlpParameters BindMlp(Binder& bind, std::string_view name, int64_t width, int64_t hidden) {
  MlpParameters p;
  p.gate = bind.Matrix(fmt::format("{}.gate_proj", name), width, hidden);
  p.up = bind.Matrix(fmt::format("{}.up_proj", name), width, hidden);
  p.down = bind.Matrix(fmt::format("{}.down_proj", name), hidden, width);
  return p;
}

MoeParameters BindMoe(Binder& bind, const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  const int64_t d = config.hidden_size, f = moe.intermediate;
  const int64_t width = moe.latent > 0 ? moe.latent : d;
  MoeParameters p;
  p.router = bind.Matrix("block_sparse_moe.gate", moe.experts, d);
  p.correction_bias = bind.Values("block_sparse_moe.gate.e_score_correction_bias", moe.experts);
  if (moe.latent > 0) {
    p.latent_down = bind.Matrix("block_sparse_moe.routed_expert_down_proj", width, d);
    p.latent_up = bind.Matrix("block_sparse_moe.routed_expert_up_proj", d, width);
    if (moe.latent_norm) {
      p.latent_norm = bind.Values("block_sparse_moe.routed_expert_norm.weight", width);
    }
  }
  if (moe.shared_experts > 0) {
    p.shared = BindMlp(bind, "block_sparse_moe.shared_experts", f * moe.shared_experts, d);
  }
  p.experts.resize(static_cast<size_t>(moe.experts));
  for (int64_t e = 0; e < moe.experts && bind.status().ok(); ++e) {
    ExpertParameters& expert = p.experts[static_cast<size_t>(e)];
    const std::string name = fmt::format("block_sparse_moe.experts.{}.", e);
    expert.gate = bind.ExpertMatrix(name + "w1", f, width);
    expert.up = bind.ExpertMatrix(name + "w3", f, width);
    expert.down = bind.ExpertMatrix(name + "w2", width, f);
  }
  return p;
}

Result<LayerParameters> BindLayer(const WeightStore& weights, int64_t layer) {
  const ModelConfig& config = weights.config();
  const int64_t d = config.hidden_size;
  Binder bind(weights, fmt::format("layers.{}.", layer));
  LayerParameters p;
  p.input_norm = bind.Values("input_layernorm.weight", d);
  p.post_attention_norm = bind.Values("post_attention_layernorm.weight", d);
  if (config.residual_block > 0) {
    p.attention_mix = bind.Mix("self_attention_res", d);
    p.mlp_mix = bind.Mix("mlp_res", d);
  }
  if (config.is_mla[static_cast<size_t>(layer)]) {
    p.mla = BindMla(bind, config);
  } else {
    p.kda = BindKda(bind, config);
  }
  if (config.IsDense(layer)) {
    p.mlp = BindMlp(bind, "mlp", config.dense_intermediate, d);
  } else {
    p.moe = BindMoe(bind, config);
  }
  K3_RETURN_IF_ERROR(bind.status());
  return p;
}

}  // namespace

Result<Parameters> BindParameters(const WeightStore& weights) {
  const ModelConfig& config = weights.config();
  Binder bind(weights, "");
  Parameters p;
  p.embedding = bind.Matrix("embed_tokens", config.vocab_size, config.hidden_size);
  p.head = bind.Matrix("lm_head", config.vocab_size, config.hidden_size);
  p.final_norm = bind.Values("norm.weight", config.hidden_size);
  if (config.residual_block > 0) p.output_mix = bind.Mix("output_attn_res", config.hidden_size);
  K3_RETURN_IF_ERROR(bind.status());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    K3_TRY(LayerParameters bound, BindLayer(weights, layer));
    p.layers.push_back(std::move(bound));
  }
  return p;
}

}  // namespace k3::model
