#include "model/parameters.h"

#include <fmt/format.h>

#include "kernels/kernels.h"
#include "model/parameter_visitor.h"

namespace k3::model {
namespace {

/// Shows a visitor the parameters of one layer and remembers the first failure, after which it
/// shows no more, so that the lists below read as lists.
template <typename M>
class Walker {
 public:
  Walker(ParameterVisitor<M>& visitor, std::string prefix)
      : visitor_(visitor), prefix_(std::move(prefix)) {}

  void Matrix(std::string_view name, int64_t rows, int64_t cols, M* matrix) {
    if (status_.ok()) status_ = visitor_.VisitMatrix(Full(name), rows, cols, false, matrix);
  }
  void ExpertMatrix(std::string_view name, int64_t rows, int64_t cols, M* matrix) {
    if (status_.ok()) status_ = visitor_.VisitMatrix(Full(name), rows, cols, true, matrix);
  }
  void Values(std::string_view name, int64_t count, Vector* vector) {
    Show(name, VectorForm::kPlain, {count}, vector);
  }
  void Convolution(std::string_view name, int64_t channels, int64_t taps, Vector* vector) {
    Show(name, VectorForm::kConvolution, {channels, 1, taps}, vector);
  }
  void Rate(std::string_view name, int64_t heads, Vector* vector) {
    Show(name, VectorForm::kRate, {heads}, vector);
  }
  /// The scoring vector of an attention-residual mix: its norm weight times its query.
  void Mix(std::string_view name, int64_t width, Vector* vector) {
    Show(name, VectorForm::kMix, {width}, vector);
  }

  const Status& status() const { return status_; }

 private:
  std::string Full(std::string_view name) const { return prefix_ + std::string(name); }
  void Show(std::string_view name, VectorForm form, const Shape& shape, Vector* vector) {
    if (status_.ok()) status_ = visitor_.VisitVector(Full(name), form, shape, vector);
  }

  ParameterVisitor<M>& visitor_;
  const std::string prefix_;
  Status status_;
};

template <typename M>
void WalkKda(Walker<M>& walk, const ModelConfig& config, KdaParametersOf<M>* p) {
  const KdaConfig& kda = config.kda;
  const int64_t d = config.hidden_size, k = kda.head_dim, c = kda.heads * k;
  walk.Matrix("self_attn.q_proj", c, d, &p->q);
  walk.Matrix("self_attn.k_proj", c, d, &p->k);
  walk.Matrix("self_attn.v_proj", c, d, &p->v);
  walk.Matrix("self_attn.f_a_proj", k, d, &p->decay_a);
  walk.Matrix("self_attn.f_b_proj", c, k, &p->decay_b);
  walk.Matrix("self_attn.b_proj", kda.heads, d, &p->beta);
  if (kda.full_rank_gate) {
    walk.Matrix("self_attn.g_proj", c, d, &p->gate);
  } else {
    walk.Matrix("self_attn.g_a_proj", k, d, &p->gate_a);
    walk.Matrix("self_attn.g_b_proj", c, k, &p->gate_b);
  }
  walk.Matrix("self_attn.o_proj", d, c, &p->output);
  walk.Convolution("self_attn.q_conv1d.weight", c, kda.conv_kernel, &p->conv_q);
  walk.Convolution("self_attn.k_conv1d.weight", c, kda.conv_kernel, &p->conv_k);
  walk.Convolution("self_attn.v_conv1d.weight", c, kda.conv_kernel, &p->conv_v);
  walk.Rate("self_attn.A_log", kda.heads, &p->rate);
  walk.Values("self_attn.dt_bias", c, &p->dt_bias);
  walk.Values("self_attn.o_norm.weight", k, &p->output_norm);
}

template <typename M>
void WalkMla(Walker<M>& walk, const ModelConfig& config, MlaParametersOf<M>* p) {
  const MlaConfig& mla = config.mla;
  const int64_t d = config.hidden_size;
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t value = mla.heads * mla.v_dim;
  if (mla.q_lora_rank > 0) {
    walk.Matrix("self_attn.q_a_proj", mla.q_lora_rank, d, &p->q_a);
    walk.Values("self_attn.q_a_layernorm.weight", mla.q_lora_rank, &p->q_norm);
    walk.Matrix("self_attn.q_b_proj", query, mla.q_lora_rank, &p->q_b);
  } else {
    walk.Matrix("self_attn.q_proj", query, d, &p->q);
  }
  walk.Matrix("self_attn.kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_dim, d, &p->kv_a);
  walk.Values("self_attn.kv_a_layernorm.weight", mla.kv_lora_rank, &p->kv_norm);
  walk.Matrix("self_attn.kv_b_proj", mla.heads * (mla.qk_nope_dim + mla.v_dim), mla.kv_lora_rank,
              &p->kv_b);
  if (mla.output_gate) walk.Matrix("self_attn.g_proj", value, d, &p->gate);
  walk.Matrix("self_attn.o_proj", d, value, &p->output);
}

template <typename M>
void WalkMlp(Walker<M>& walk, std::string_view name, int64_t width, int64_t hidden,
             MlpParametersOf<M>* p) {
  walk.Matrix(fmt::format("{}.gate_proj", name), width, hidden, &p->gate);
  walk.Matrix(fmt::format("{}.up_proj", name), width, hidden, &p->up);
  walk.Matrix(fmt::format("{}.down_proj", name), hidden, width, &p->down);
}

template <typename M>
void WalkMoe(Walker<M>& walk, const ModelConfig& config, MoeParametersOf<M>* p) {
  const MoeConfig& moe = config.moe;
  const int64_t d = config.hidden_size, f = moe.intermediate;
  const int64_t width = moe.latent > 0 ? moe.latent : d;
  walk.Matrix("block_sparse_moe.gate", moe.experts, d, &p->router);
  walk.Values("block_sparse_moe.gate.e_score_correction_bias", moe.experts, &p->correction_bias);
  if (moe.latent > 0) {
    walk.Matrix("block_sparse_moe.routed_expert_down_proj", width, d, &p->latent_down);
    walk.Matrix("block_sparse_moe.routed_expert_up_proj", d, width, &p->latent_up);
    if (moe.latent_norm) {
      walk.Values("block_sparse_moe.routed_expert_norm.weight", width, &p->latent_norm);
    }
  }
  if (moe.shared_experts > 0) {
    WalkMlp(walk, "block_sparse_moe.shared_experts", f * moe.shared_experts, d, &p->shared);
  }
  p->experts.resize(static_cast<size_t>(moe.experts));
  for (int64_t e = 0; e < moe.experts && walk.status().ok(); ++e) {
    ExpertParametersOf<M>& expert = p->experts[static_cast<size_t>(e)];
    const std::string name = fmt::format("block_sparse_moe.experts.{}.", e);
    walk.ExpertMatrix(name + "w1", f, width, &expert.gate);
    walk.ExpertMatrix(name + "w3", f, width, &expert.up);
    walk.ExpertMatrix(name + "w2", width, f, &expert.down);
  }
}

template <typename M>
Status WalkLayer(ParameterVisitor<M>& visitor, const ModelConfig& config, int64_t layer,
                 LayerParametersOf<M>* p) {
  const int64_t d = config.hidden_size;
  Walker<M> walk(visitor, fmt::format("layers.{}.", layer));
  walk.Values("input_layernorm.weight", d, &p->input_norm);
  walk.Values("post_attention_layernorm.weight", d, &p->post_attention_norm);
  if (config.residual_block > 0) {
    walk.Mix("self_attention_res", d, &p->attention_mix);
    walk.Mix("mlp_res", d, &p->mlp_mix);
  }
  if (config.is_mla[static_cast<size_t>(layer)]) {
    WalkMla(walk, config, &p->mla);
  } else {
    WalkKda(walk, config, &p->kda);
  }
  if (config.IsDense(layer)) {
    WalkMlp(walk, "mlp", config.dense_intermediate, d, &p->mlp);
  } else {
    WalkMoe(walk, config, &p->moe);
  }
  return walk.status();
}

/// Takes every parameter from a checkpoint.
class Binder : public ParameterVisitor<WeightMatrix> {
 public:
  explicit Binder(const WeightStore& weights) : weights_(weights) {}

  Status VisitMatrix(std::string_view name, int64_t rows, int64_t cols, bool expert,
                     WeightMatrix* matrix) override {
    K3_TRY(*matrix, weights_.Matrix(name, rows, cols));
    // The scales of a routed expert are checked by whoever uses it (ExpertSource).
    return expert ? OkStatus() : weights_.CheckScales(*matrix, name);
  }
  Status VisitVector(std::string_view name, VectorForm form, const Shape& shape,
                     Vector* vector) override {
    switch (form) {
      case VectorForm::kPlain: {
        K3_TRY(*vector, weights_.Vector(name, shape[0]));
        break;
      }
      case VectorForm::kConvolution: {
        K3_TRY(const Vector stored, weights_.Array(name, shape));
        *vector = TransposedConvolution(stored, shape[2]);
        break;
      }
      case VectorForm::kRate: {
        K3_TRY(*vector, weights_.ALog(name, shape[0]));
        ToRate(vector);
        break;
      }
      case VectorForm::kMix: {
        K3_TRY(*vector, weights_.Vector(fmt::format("{}_norm.weight", name), shape[0]));
        K3_TRY(const Vector query, weights_.Vector(fmt::format("{}_proj.weight", name), shape[0]));
        ToMix(query, vector);
        break;
      }
    }
    return OkStatus();
  }

 private:
  const WeightStore& weights_;
};

}  // namespace

template <typename M>
Status VisitParameters(const ModelConfig& config, ParameterVisitor<M>& visitor,
                       ParametersOf<M>* p) {
  Walker<M> walk(visitor, "");
  walk.Matrix("embed_tokens", config.vocab_size, config.hidden_size, &p->embedding);
  walk.Matrix("lm_head", config.vocab_size, config.hidden_size, &p->head);
  walk.Values("norm.weight", config.hidden_size, &p->final_norm);
  if (config.residual_block > 0) walk.Mix("output_attn_res", config.hidden_size, &p->output_mix);
  K3_RETURN_IF_ERROR(walk.status());
  p->layers.resize(static_cast<size_t>(config.layers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    K3_RETURN_IF_ERROR(WalkLayer(visitor, config, layer, &p->layers[static_cast<size_t>(layer)]));
  }
  return OkStatus();
}

template Status VisitParameters(const ModelConfig& config, ParameterVisitor<WeightMatrix>& visitor,
                                ParametersOf<WeightMatrix>* parameters);
template Status VisitParameters(const ModelConfig& config,
                                ParameterVisitor<GradientMatrix>& visitor,
                                ParametersOf<GradientMatrix>* parameters);

Vector TransposedConvolution(const Vector& stored, int64_t taps) {
  const size_t width = static_cast<size_t>(taps), channels = stored.size() / width;
  Vector transposed(stored.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    transposed[i % width * channels + i / width] = stored[i];
  }
  return transposed;
}

void ToRate(Vector* a_log) {
  kernels::Kernels(SimdTarget::kScalar)
      .elementwise.exp(a_log->data(), std::ssize(*a_log), a_log->data());
}

void ToMix(const Vector& query, Vector* norm) {
  for (size_t i = 0; i < norm->size(); ++i) (*norm)[i] *= query[i];
}

Result<Parameters> BindParameters(const WeightStore& weights) {
  Binder binder(weights);
  Parameters parameters;
  K3_RETURN_IF_ERROR(VisitParameters(weights.config(), binder, &parameters));
  return parameters;
}

}  // namespace k3::model
