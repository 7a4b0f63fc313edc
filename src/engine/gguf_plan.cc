#include "engine/gguf_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor/number_formats.h"

namespace k3 {
namespace {

// Sizes of fixed arrays in llama.cpp.
constexpr int64_t kLayersMax = 512;
constexpr int64_t kExpertsMax = 1024;
// Its number for sigmoid scores.
constexpr uint32_t kSigmoidGating = 2;

Status Refuse(std::string_view what, std::string_view expected, const auto& found) {
  return Unimplemented(fmt::format(
      "config.json: {}: expected {}, which is all that the GGUF architecture kimi-k3 has, found "
      "{}; run this model with k3 itself",
      what, expected, found));
}

bool Has(const ModelConfig& config, bool mla) {
  return std::ranges::find(config.is_mla, mla) != config.is_mla.end();
}

bool HasExperts(const ModelConfig& config) { return config.dense_layers < config.layers; }

class Planner {
 public:
  Planner(const WeightStore& weights, const GgufTypes& types)
      : weights_(weights), config_(weights.config()), types_(types) {}

  Result<GgufPlan> Run() {
    const int64_t width = config_.hidden_size;
    K3_RETURN_IF_ERROR(Matrix("token_embd.weight", "embed_tokens", config_.vocab_size, width));
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      source_ = fmt::format("layers.{}.", layer);
      target_ = fmt::format("blk.{}.", layer);
      K3_RETURN_IF_ERROR(Layer(layer));
    }
    source_.clear();
    target_.clear();
    K3_RETURN_IF_ERROR(Vector("output_norm.weight", "norm.weight", width));
    if (config_.residual_block > 0) {
      K3_RETURN_IF_ERROR(Score("output_res_score.weight", "output_attn_res"));
    }
    K3_RETURN_IF_ERROR(Matrix("output.weight", "lm_head", config_.vocab_size, width));
    return std::move(plan_);
  }

 private:
  Status Layer(int64_t layer) {
    const int64_t width = config_.hidden_size;
    K3_RETURN_IF_ERROR(Vector("attn_norm.weight", "input_layernorm.weight", width));
    K3_RETURN_IF_ERROR(Vector("ffn_norm.weight", "post_attention_layernorm.weight", width));
    if (config_.residual_block > 0) {
      K3_RETURN_IF_ERROR(Score("attn_res_score.weight", "self_attention_res"));
      K3_RETURN_IF_ERROR(Score("ffn_res_score.weight", "mlp_res"));
    }
    K3_RETURN_IF_ERROR(config_.is_mla[static_cast<size_t>(layer)] ? Mla() : Kda());
    return config_.IsDense(layer) ? Mlp("", "mlp", config_.dense_intermediate) : Moe();
  }

  Status Kda() {
    const KdaConfig& kda = config_.kda;
    const int64_t width = config_.hidden_size;
    const int64_t channels = kda.heads * kda.head_dim;
    for (const char* name : {"q", "k", "v"}) {
      K3_RETURN_IF_ERROR(Matrix(fmt::format("attn_{}.weight", name),
                                fmt::format("self_attn.{}_proj", name), channels, width));
      // The same order of elements, with the taps innermost.
      K3_TRY(std::vector<float> taps,
             weights_.Array(fmt::format("{}self_attn.{}_conv1d.weight", source_, name),
                            Shape{channels, 1, kda.conv_kernel}));
      Values(fmt::format("ssm_conv1d_{}.weight", name), {kda.conv_kernel, 1, channels, 1},
             std::move(taps));
    }
    K3_RETURN_IF_ERROR(Matrix("ssm_f_a.weight", "self_attn.f_a_proj", kda.head_dim, width));
    K3_RETURN_IF_ERROR(Matrix("ssm_f_b.weight", "self_attn.f_b_proj", channels, kda.head_dim));
    K3_RETURN_IF_ERROR(Matrix("ssm_beta.weight", "self_attn.b_proj", kda.heads, width));
    K3_TRY(std::vector<float> a, weights_.ALog(source_ + "self_attn.A_log", kda.heads));
    for (float& value : a) value = -std::exp(value);
    Values("ssm_a", {kda.heads}, std::move(a));
    K3_RETURN_IF_ERROR(Vector("ssm_dt.bias", "self_attn.dt_bias", channels));
    K3_RETURN_IF_ERROR(Matrix("ssm_g.weight", "self_attn.g_proj", channels, width));
    K3_RETURN_IF_ERROR(Vector("ssm_norm.weight", "self_attn.o_norm.weight", kda.head_dim));
    return Matrix("attn_output.weight", "self_attn.o_proj", width, channels);
  }

  Status Mla() {
    const MlaConfig& mla = config_.mla;
    const int64_t width = config_.hidden_size;
    const int64_t query_rows = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
    if (mla.q_lora_rank > 0) {
      K3_RETURN_IF_ERROR(Matrix("attn_q_a.weight", "self_attn.q_a_proj", mla.q_lora_rank, width));
      K3_RETURN_IF_ERROR(
          Vector("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", mla.q_lora_rank));
      K3_RETURN_IF_ERROR(
          Matrix("attn_q_b.weight", "self_attn.q_b_proj", query_rows, mla.q_lora_rank));
    } else {
      K3_RETURN_IF_ERROR(Matrix("attn_q.weight", "self_attn.q_proj", query_rows, width));
    }
    K3_RETURN_IF_ERROR(Matrix("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa",
                              mla.kv_lora_rank + mla.qk_rope_dim, width));
    K3_RETURN_IF_ERROR(
        Vector("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", mla.kv_lora_rank));
    K3_RETURN_IF_ERROR(KvB());
    if (mla.output_gate) {
      K3_RETURN_IF_ERROR(
          Matrix("attn_gate.weight", "self_attn.g_proj", mla.heads * mla.v_dim, width));
    }
    return Matrix("attn_output.weight", "self_attn.o_proj", width, mla.heads * mla.v_dim);
  }

  /// kv_b_proj holds a head's key rows, then its value rows. llama.cpp multiplies queries by the
  /// keys' matrix, so that one is transposed.
  Status KvB() {
    const MlaConfig& mla = config_.mla;
    const int64_t head_rows = mla.qk_nope_dim + mla.v_dim;
    const std::string name = source_ + "self_attn.kv_b_proj";
    K3_TRY(const WeightMatrix matrix,
           weights_.Matrix(name, mla.heads * head_rows, mla.kv_lora_rank));
    GgufItem keys;
    GgufItem values;
    keys.transposed = true;
    for (int64_t head = 0; head < mla.heads; ++head) {
      const int64_t begin = head * head_rows;
      keys.parts.push_back(matrix.Rows(begin, begin + mla.qk_nope_dim));
      values.parts.push_back(matrix.Rows(begin + mla.qk_nope_dim, begin + head_rows));
    }
    keys.part_names.assign(keys.parts.size(), name);
    values.part_names = keys.part_names;
    keys.tensor = {"attn_k_b.weight",
                   TrunkType(mla.qk_nope_dim),
                   {mla.qk_nope_dim, mla.kv_lora_rank, mla.heads}};
    values.tensor = {
        "attn_v_b.weight", TrunkType(mla.kv_lora_rank), {mla.kv_lora_rank, mla.v_dim, mla.heads}};
    Add(std::move(keys));
    Add(std::move(values));
    return OkStatus();
  }

  /// `suffix` is "" or "_shexp".
  Status Mlp(std::string_view suffix, std::string_view source, int64_t inner) {
    const int64_t width = config_.hidden_size;
    for (const char* name : {"gate", "up", "down"}) {
      const bool down = name[0] == 'd';
      K3_RETURN_IF_ERROR(Matrix(fmt::format("ffn_{}{}.weight", name, suffix),
                                fmt::format("{}.{}_proj", source, name), down ? width : inner,
                                down ? inner : width));
    }
    return OkStatus();
  }

  Status Moe() {
    const MoeConfig& moe = config_.moe;
    const int64_t width = config_.hidden_size;
    // Scores decide about experts: they stay float32.
    K3_TRY(std::vector<float> router,
           weights_.Array(source_ + "block_sparse_moe.gate.weight", Shape{moe.experts, width}));
    Values("ffn_gate_inp.weight", {width, moe.experts}, std::move(router));
    K3_RETURN_IF_ERROR(
        Vector("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", moe.experts));
    const int64_t outer = moe.latent > 0 ? moe.latent : width;
    K3_RETURN_IF_ERROR(Experts("gate", "w1", moe.intermediate, outer));
    K3_RETURN_IF_ERROR(Experts("up", "w3", moe.intermediate, outer));
    K3_RETURN_IF_ERROR(Experts("down", "w2", outer, moe.intermediate));
    if (moe.latent > 0) {
      K3_RETURN_IF_ERROR(Matrix("ffn_routed_down.weight",
                                "block_sparse_moe.routed_expert_down_proj", moe.latent, width));
      K3_RETURN_IF_ERROR(Matrix("ffn_routed_up.weight", "block_sparse_moe.routed_expert_up_proj",
                                width, moe.latent));
      if (moe.latent_norm) {
        K3_RETURN_IF_ERROR(Vector("ffn_routed_norm.weight",
                                  "block_sparse_moe.routed_expert_norm.weight", moe.latent));
      }
    }
    if (moe.shared_experts == 0) return OkStatus();
    return Mlp("_shexp", "block_sparse_moe.shared_experts", moe.shared_experts * moe.intermediate);
  }

  Status Experts(std::string_view target, std::string_view source, int64_t rows, int64_t cols) {
    GgufItem item;
    bool packed = true;
    for (int64_t expert = 0; expert < config_.moe.experts; ++expert) {
      std::string name = fmt::format("{}block_sparse_moe.experts.{}.{}", source_, expert, source);
      K3_TRY(const WeightMatrix matrix, weights_.Matrix(name, rows, cols));
      packed = packed && matrix.format == WeightFormat::kMxfp4;
      item.parts.push_back(matrix);
      item.part_names.push_back(std::move(name));
    }
    GgufType type = GgufType::kBf16;
    if (types_.experts == GgufExperts::kF32) type = GgufType::kF32;
    if (types_.experts == GgufExperts::kMxfp4) {
      if (packed) type = GgufType::kMxfp4;
      plan_.plain_banks_count += packed ? 0 : 1;
    }
    item.tensor = {
        fmt::format("ffn_{}_exps.weight", target), type, {cols, rows, config_.moe.experts}};
    Add(std::move(item));
    return OkStatus();
  }

  Status Matrix(std::string_view target, std::string_view source, int64_t rows, int64_t cols) {
    std::string name = source_;
    name += source;
    K3_TRY(const WeightMatrix matrix, weights_.Matrix(name, rows, cols));
    GgufItem item;
    item.tensor = {std::string(target), TrunkType(cols), {cols, rows}};
    item.parts = {matrix};
    item.part_names = {std::move(name)};
    Add(std::move(item));
    return OkStatus();
  }

  GgufType TrunkType(int64_t row_elements) {
    if (types_.trunk == GgufTrunk::kF32) return GgufType::kF32;
    if (types_.trunk == GgufTrunk::kBf16) return GgufType::kBf16;
    if (row_elements % GgufBlockElements(GgufType::kQ8) == 0) return GgufType::kQ8;
    ++plan_.unblocked_count;
    return GgufType::kBf16;
  }

  Status Vector(std::string_view target, std::string_view source, int64_t count) {
    K3_TRY(std::vector<float> values, weights_.Vector(fmt::format("{}{}", source_, source), count));
    Values(target, {count}, std::move(values));
    return OkStatus();
  }

  /// The scoring vector of a mix: the norm's weight times the query.
  Status Score(std::string_view target, std::string_view source) {
    const int64_t width = config_.hidden_size;
    K3_TRY(std::vector<float> score,
           weights_.Vector(fmt::format("{}{}_norm.weight", source_, source), width));
    K3_TRY(const std::vector<float> query,
           weights_.Vector(fmt::format("{}{}_proj.weight", source_, source), width));
    for (size_t i = 0; i < score.size(); ++i) score[i] *= query[i];
    Values(target, {width}, std::move(score));
    return OkStatus();
  }

  void Values(std::string_view target, std::vector<int64_t> dims, std::vector<float> values) {
    GgufItem item;
    item.tensor = {std::string(target), GgufType::kF32, std::move(dims)};
    item.values = std::move(values);
    Add(std::move(item));
  }

  void Add(GgufItem item) {
    item.tensor.name.insert(0, target_);
    plan_.items.push_back(std::move(item));
  }

  const WeightStore& weights_;
  const ModelConfig& config_;
  const GgufTypes types_;
  std::string source_;  // prefix of the checkpoint's names
  std::string target_;  // prefix of the file's names
  GgufPlan plan_;
};

}  // namespace

Status CheckGgufCanExpress(const ModelConfig& config) {
  const bool has_kda = Has(config, /*mla=*/false);
  if (!has_kda || !Has(config, /*mla=*/true)) {
    return Refuse("linear_attn_config", "layers of both kinds",
                  has_kda ? "no MLA layer" : "no KDA layer");
  }
  if (config.kda.heads != config.mla.heads) {
    return Refuse("linear_attn_config.num_heads",
                  fmt::format("num_attention_heads, {}", config.mla.heads), config.kda.heads);
  }
  if (!config.kda.full_rank_gate) {
    return Refuse("linear_attn_config.use_full_rank_gate", "true", "false");
  }
  if (config.layers > kLayersMax) {
    return Refuse("num_hidden_layers", fmt::format("at most {}", kLayersMax), config.layers);
  }
  if (!HasExperts(config)) return OkStatus();
  if (config.moe.experts > kExpertsMax) {
    return Refuse("num_experts", fmt::format("at most {}", kExpertsMax), config.moe.experts);
  }
  for (int64_t layer = config.dense_layers; layer < config.layers; ++layer) {
    if (config.IsDense(layer)) {
      return Refuse("moe_layer_freq", "1 (experts in every layer behind the first dense ones)",
                    config.moe_layer_freq);
    }
  }
  return OkStatus();
}

Result<GgufPlan> PlanGguf(const WeightStore& weights, const GgufTypes& types) {
  return Planner(weights, types).Run();
}

void AddGgufArchitecture(const ModelConfig& config, GgufMetadata* metadata) {
  const auto u32 = [&](std::string_view key, int64_t value) {
    metadata->AddU32(fmt::format("kimi-k3.{}", key), static_cast<uint32_t>(value));
  };
  const auto f32 = [&](std::string_view key, float value) {
    metadata->AddF32(fmt::format("kimi-k3.{}", key), value);
  };
  const MlaConfig& mla = config.mla;
  const MoeConfig& moe = config.moe;
  u32("vocab_size", config.vocab_size);
  u32("context_length", config.context_max);
  u32("embedding_length", config.hidden_size);
  u32("block_count", config.layers);
  u32("feed_forward_length", config.dense_intermediate);
  u32("attention.head_count", mla.heads);
  // Attention runs in latent space with one head of keys; none marks a KDA layer.
  std::vector<int32_t> kv_heads;
  for (const bool is_mla : config.is_mla) kv_heads.push_back(is_mla ? 1 : 0);
  metadata->AddI32Array("kimi-k3.attention.head_count_kv", kv_heads);
  f32("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  if (mla.q_lora_rank > 0) u32("attention.q_lora_rank", mla.q_lora_rank);
  u32("attention.kv_lora_rank", mla.kv_lora_rank);
  u32("attention.key_length", mla.kv_lora_rank + mla.qk_rope_dim);
  u32("attention.value_length", mla.kv_lora_rank);
  u32("attention.key_length_mla", mla.qk_nope_dim + mla.qk_rope_dim);
  u32("attention.value_length_mla", mla.v_dim);
  u32("rope.dimension_count", mla.qk_rope_dim);
  u32("kda.head_dim", config.kda.head_dim);
  u32("ssm.conv_kernel", config.kda.conv_kernel);
  if (config.kda.gate_lower_bound.has_value()) {
    f32("kda.gate_lower_bound", *config.kda.gate_lower_bound);
  }
  const bool experts = HasExperts(config);
  u32("leading_dense_block_count", std::min(config.dense_layers, config.layers));
  u32("expert_count", experts ? moe.experts : 0);
  u32("expert_used_count", experts ? moe.experts_per_token : 0);
  u32("expert_shared_count", experts ? moe.shared_experts : 0);
  u32("expert_feed_forward_length", moe.intermediate);
  if (experts && moe.latent > 0) u32("expert_latent_length", moe.latent);
  f32("expert_weights_scale", moe.routed_scaling_factor);
  metadata->AddBool("kimi-k3.expert_weights_norm", moe.renormalize);
  u32("expert_gating_func", kSigmoidGating);
  f32("activation.situ_beta", config.situ_beta);
  // 0 leaves the up branch as it is, and a block size of 0 means plain residuals.
  f32("activation.situ_linear_beta", config.situ_linear_beta.value_or(0.0f));
  u32("attn_res.block_size", config.residual_block);
}

}  // namespace k3
