#pragma once
// ModelConfig: every number of a Kimi K3 text model, read from config.json and validated once.
// Nothing but formulas is hard-coded elsewhere: all shapes come from here. Plain value, any thread.
// Source: the released config.json and its class defaults (docs/formats.md lists every field).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3 {

/// Multi-head latent attention without positions (NoPE).
struct MlaConfig {
  int64_t heads = 0;
  int64_t q_lora_rank = 0;   // 0: no low-rank query path, one q_proj
  int64_t kv_lora_rank = 0;  // L: width of the cached latent
  int64_t qk_nope_dim = 0;
  int64_t qk_rope_dim = 0;  // ordinary extra dims shared by all heads; no rotation
  int64_t v_dim = 0;
  bool output_gate = false;
};

/// Kimi Delta Attention.
struct KdaConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;                   // dk = dv
  int64_t conv_kernel = 0;                // taps of the short convolution
  bool full_rank_gate = true;             // false: g_a_proj, g_b_proj
  std::optional<float> gate_lower_bound;  // absent: the unbounded -exp(A_log) softplus(z) gate
};

/// Stable LatentMoE.
struct MoeConfig {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;  // one fused MLP of shared_experts x intermediate; may be 0
  int64_t intermediate = 0;    // F
  int64_t latent = 0;          // L; 0: experts work on the full width, no down/up projection
  bool latent_norm = true;
  bool renormalize = true;
  float routed_scaling_factor = 1.0f;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // D
  int64_t layers = 0;
  int64_t dense_layers = 0;  // the first layers with a dense MLP (first_k_dense_replace)
  int64_t moe_layer_freq = 1;
  int64_t dense_intermediate = 0;
  int64_t residual_block = 0;  // attention-residual block size; 0: plain residuals
  int64_t context_max = 0;     // max_position_embeddings
  float rms_norm_eps = 1e-5f;
  float situ_beta = 4.0f;                 // 0 in the file becomes 1
  std::optional<float> situ_linear_beta;  // absent or 0: the up branch is unchanged
  MlaConfig mla;
  KdaConfig kda;
  MoeConfig moe;
  std::vector<bool> is_mla;  // [layers], true: gated MLA, false: KDA

  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;

  bool has_vision = false;
  bool quantized_experts = false;  // quantization_config present; each tensor decides for itself
  /// Fields of the file that this engine neither uses nor checks, as "text_config.name".
  std::vector<std::string> unknown_fields;

  bool IsDense(int64_t layer) const { return layer < dense_layers || layer % moe_layer_freq != 0; }
};

/// Both MLA low-rank norms use this; every other RMSNorm uses rms_norm_eps.
inline constexpr float kLowRankNormEps = 1e-6f;
/// Inside the square root of KDA's L2 norm of q and k.
inline constexpr float kL2NormEps = 1e-6f;

/// Parses and validates the content of config.json. `where` names the file in messages.
Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view where);

/// Defaults for sampling from generation_config.json; every field is optional there.
struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_length;
};
Result<GenerationConfig> ParseGenerationConfig(std::string_view json, std::string_view where);

}  // namespace k3
