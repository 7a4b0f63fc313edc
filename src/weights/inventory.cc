#include "weights/inventory.h"

#include <fmt/format.h>

#include <cmath>

#include "base/arithmetic.h"

namespace k3 {
namespace {

// Gains of a random start: enough that every block's output stays of order one through all layers.
constexpr float kSharpGain = 1.5f;
constexpr float kDecayGain = 2.0f;
constexpr float kHeadGain = 2.0f;

/// Emits the tensors of one layer or of the outer part under a common prefix.
class Emitter {
 public:
  Emitter(const TensorVisitor& visit, int64_t layer) : visit_(visit) {
    tensor_.layer = layer;
    if (layer >= 0) prefix_ = fmt::format("layers.{}.", layer);
  }

  void Emit(std::string_view name, const Shape& shape, TensorRole role, StoredType stored,
            float gain = 1.0f) {
    tensor_.name = prefix_;
    tensor_.name += name;
    tensor_.shape = shape;
    tensor_.role = role;
    tensor_.stored = stored;
    tensor_.gain = gain;
    visit_(tensor_);
  }
  void Matrix(std::string_view name, int64_t rows, int64_t cols, float gain = 1.0f) {
    Emit(name, {rows, cols}, TensorRole::kMatrix, StoredType::kBf16, gain);
  }
  void Norm(std::string_view name, int64_t count, StoredType stored = StoredType::kBf16) {
    Emit(name, {count}, TensorRole::kNorm, stored);
  }
  void Residual(std::string_view name, int64_t width) {
    Norm(fmt::format("{}_norm.weight", name), width);
    Emit(fmt::format("{}_proj.weight", name), {1, width}, TensorRole::kResidualQuery,
         StoredType::kBf16, 2.0f);
  }
  void set_expert(int64_t expert) { tensor_.expert = expert; }

 private:
  const TensorVisitor& visit_;
  std::string prefix_;
  ExpectedTensor tensor_;
};

void VisitMla(const ModelConfig& config, Emitter& out) {
  const MlaConfig& mla = config.mla;
  const int64_t width = config.hidden_size;
  const int64_t query_rows = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  if (mla.q_lora_rank > 0) {
    out.Matrix("self_attn.q_a_proj.weight", mla.q_lora_rank, width);
    out.Norm("self_attn.q_a_layernorm.weight", mla.q_lora_rank);
    out.Matrix("self_attn.q_b_proj.weight", query_rows, mla.q_lora_rank, kSharpGain);
  } else {
    out.Matrix("self_attn.q_proj.weight", query_rows, width, kSharpGain);
  }
  out.Matrix("self_attn.kv_a_proj_with_mqa.weight", mla.kv_lora_rank + mla.qk_rope_dim, width,
             kSharpGain);
  out.Norm("self_attn.kv_a_layernorm.weight", mla.kv_lora_rank);
  out.Matrix("self_attn.kv_b_proj.weight", mla.heads * (mla.qk_nope_dim + mla.v_dim),
             mla.kv_lora_rank, kSharpGain);
  if (mla.output_gate) out.Matrix("self_attn.g_proj.weight", mla.heads * mla.v_dim, width);
  out.Matrix("self_attn.o_proj.weight", width, mla.heads * mla.v_dim);
}

void VisitKda(const ModelConfig& config, Emitter& out) {
  const KdaConfig& kda = config.kda;
  const int64_t width = config.hidden_size;
  const int64_t channels = kda.heads * kda.head_dim;
  for (const char* name : {"q", "k", "v"}) {
    out.Matrix(fmt::format("self_attn.{}_proj.weight", name), channels, width);
    out.Emit(fmt::format("self_attn.{}_conv1d.weight", name), {channels, 1, kda.conv_kernel},
             TensorRole::kConvolution, StoredType::kF32);
  }
  out.Matrix("self_attn.f_a_proj.weight", kda.head_dim, width);
  out.Matrix("self_attn.f_b_proj.weight", channels, kda.head_dim, kDecayGain);
  out.Matrix("self_attn.b_proj.weight", kda.heads, width);
  if (kda.full_rank_gate) {
    out.Matrix("self_attn.g_proj.weight", channels, width);
  } else {
    out.Matrix("self_attn.g_a_proj.weight", kda.head_dim, width);
    out.Matrix("self_attn.g_b_proj.weight", channels, kda.head_dim);
  }
  out.Emit("self_attn.A_log", {RoundUp(kda.heads, kALogPadding)}, TensorRole::kALog,
           StoredType::kF32);
  out.Emit("self_attn.dt_bias", {channels}, TensorRole::kDtBias, StoredType::kF32);
  out.Norm("self_attn.o_norm.weight", kda.head_dim, StoredType::kF32);
  out.Matrix("self_attn.o_proj.weight", width, channels);
}

void VisitMlp(std::string_view name, int64_t inner, int64_t width, Emitter& out) {
  out.Matrix(fmt::format("{}.gate_proj.weight", name), inner, width);
  out.Matrix(fmt::format("{}.up_proj.weight", name), inner, width);
  out.Matrix(fmt::format("{}.down_proj.weight", name), width, inner);
}

void VisitMoe(const ModelConfig& config, Emitter& out) {
  const MoeConfig& moe = config.moe;
  const int64_t width = config.hidden_size;
  out.Emit("block_sparse_moe.gate.weight", {moe.experts, width}, TensorRole::kRouter,
           StoredType::kBf16, kSharpGain);
  out.Emit("block_sparse_moe.gate.e_score_correction_bias", {moe.experts},
           TensorRole::kCorrectionBias, StoredType::kF32);
  if (moe.latent > 0) {
    out.Matrix("block_sparse_moe.routed_expert_down_proj.weight", moe.latent, width);
    out.Matrix("block_sparse_moe.routed_expert_up_proj.weight", width, moe.latent);
    if (moe.latent_norm) out.Norm("block_sparse_moe.routed_expert_norm.weight", moe.latent);
  }
  if (moe.shared_experts > 0) {
    VisitMlp("block_sparse_moe.shared_experts", moe.shared_experts * moe.intermediate, width, out);
  }
  const int64_t outer = moe.latent > 0 ? moe.latent : width;
  const StoredType stored = config.quantized_experts ? StoredType::kMxfp4 : StoredType::kBf16;
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    out.set_expert(expert);
    for (const char* name : {"w1", "w2", "w3"}) {
      const bool down = name[1] == '2';
      const Shape shape{down ? outer : moe.intermediate, down ? moe.intermediate : outer};
      out.Emit(fmt::format("block_sparse_moe.experts.{}.{}.weight", expert, name), shape,
               TensorRole::kExpert, stored, kSharpGain);
    }
  }
  out.set_expert(-1);
}

}  // namespace

void VisitLayerTensors(const ModelConfig& config, int64_t layer, const TensorVisitor& visit) {
  Emitter out(visit, layer);
  out.Norm("input_layernorm.weight", config.hidden_size);
  out.Norm("post_attention_layernorm.weight", config.hidden_size);
  if (config.residual_block > 0) {
    out.Residual("self_attention_res", config.hidden_size);
    out.Residual("mlp_res", config.hidden_size);
  }
  if (config.is_mla[static_cast<size_t>(layer)]) {
    VisitMla(config, out);
  } else {
    VisitKda(config, out);
  }
  if (config.IsDense(layer)) {
    VisitMlp("mlp", config.dense_intermediate, config.hidden_size, out);
  } else {
    VisitMoe(config, out);
  }
}

void VisitOuterTensors(const ModelConfig& config, const TensorVisitor& visit) {
  Emitter out(visit, -1);
  const Shape table{config.vocab_size, config.hidden_size};
  // N(0, 1) rows: the gain undoes the division by the width.
  out.Emit("embed_tokens.weight", table, TensorRole::kEmbedding, StoredType::kBf16,
           std::sqrt(static_cast<float>(config.hidden_size)));
  out.Norm("norm.weight", config.hidden_size);
  if (config.residual_block > 0) out.Residual("output_attn_res", config.hidden_size);
  out.Emit("lm_head.weight", table, TensorRole::kHead, StoredType::kBf16, kHeadGain);
}

void VisitTensors(const ModelConfig& config, const TensorVisitor& visit) {
  for (int64_t layer = 0; layer < config.layers; ++layer) VisitLayerTensors(config, layer, visit);
  VisitOuterTensors(config, visit);
}

Result<TensorNames> TensorNames::Detect(const Checkpoint& checkpoint) {
  if (!checkpoint.WithPrefix("language_model.").empty()) return TensorNames(true);
  if (!checkpoint.WithPrefix("model.").empty()) return TensorNames(false);
  return NotFound(fmt::format(
      "{}: expected tensors named language_model.model.* or model.*, found neither in {} tensors",
      checkpoint.dir(), checkpoint.tensors().size()));
}

std::string TensorNames::Full(std::string_view relative) const {
  const bool head = relative.substr(0, 8) == "lm_head.";
  return fmt::format("{}{}{}", nested_ ? "language_model." : "", head ? "" : "model.", relative);
}

bool IsVisionTensor(std::string_view full_name) {
  return full_name.starts_with("vision_tower.") || full_name.starts_with("mm_projector.");
}

Result<InventoryDifference> CompareWithInventory(const Checkpoint& checkpoint, int64_t listed_max) {
  K3_TRY(const TensorNames names, TensorNames::Detect(checkpoint));
  const std::span<const TensorInfo> stored = checkpoint.tensors();
  std::vector<bool> matched(stored.size(), false);
  InventoryDifference difference;
  const auto match = [&](const std::string& name) {
    const TensorInfo* tensor = checkpoint.Lookup(name);
    if (tensor == nullptr) return false;
    matched[static_cast<size_t>(tensor - stored.data())] = true;
    ++difference.matched_count;
    return true;
  };
  const auto list = [&](std::vector<std::string>& names_list, std::string name) {
    if (std::ssize(names_list) < listed_max) names_list.push_back(std::move(name));
  };
  const auto visit = [&](const ExpectedTensor& tensor) {
    const std::string name = names.Full(tensor.name);
    const bool plain = match(name);
    const bool matrix = tensor.shape.rank() == 2 && tensor.role != TensorRole::kResidualQuery;
    const bool packed = matrix && match(name + "_packed");
    if (packed && !match(name + "_scale")) list(difference.missing, name + "_scale");
    if (!plain && !packed) list(difference.missing, name);
  };
  const ModelConfig& config = checkpoint.config();
  if (checkpoint.partial_layers().has_value()) {
    const LayerRange range = *checkpoint.partial_layers();
    for (int64_t layer = range.first; layer <= range.last && layer < config.layers; ++layer) {
      VisitLayerTensors(config, layer, visit);
    }
  } else {
    VisitTensors(config, visit);
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    if (matched[i]) continue;
    if (IsVisionTensor(stored[i].name)) {
      ++difference.vision_count;
    } else {
      list(difference.unexpected, std::string(stored[i].name));
    }
  }
  return difference;
}

}  // namespace k3
