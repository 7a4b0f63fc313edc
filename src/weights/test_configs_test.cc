#include "weights/test_configs.h"

#include <nlohmann/json.hpp>

namespace k3 {
namespace {

using Json = nlohmann::ordered_json;

Json TinyConfig() {
  return Json::parse(R"({
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
    "text_config": {
      "model_type": "kimi_linear", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
      "num_hidden_layers": 5, "num_attention_heads": 2, "hidden_act": "situ",
      "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05,
      "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2, "q_lora_rank": 24,
      "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
      "mla_use_nope": true, "mla_use_output_gate": true, "num_experts": 6,
      "num_experts_per_token": 2, "num_shared_experts": 2, "moe_intermediate_size": 32,
      "routed_expert_hidden_size": 64, "latent_moe_use_norm": true, "first_k_dense_replace": 1,
      "attn_res_block_size": 2,
      "linear_attn_config": {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5], "use_full_rank_gate": true,
        "gate_lower_bound": -5.0}},
    "quantization_config": {"quant_method": "compressed-tensors",
                            "format": "mxfp4-pack-quantized"}})");
}

}  // namespace

std::vector<NamedConfig> TestConfigs() {
  std::vector<NamedConfig> configs;
  const auto add = [&](const std::string& name, auto change) {
    Json config = TinyConfig();
    change(config, config["text_config"]);
    configs.push_back({name, config.dump(1)});
  };
  add("released shape", [](Json&, Json&) {});
  add("low-rank gate",
      [](Json&, Json& text) { text["linear_attn_config"]["use_full_rank_gate"] = false; });
  add("no low-rank query", [](Json&, Json& text) { text["q_lora_rank"] = nullptr; });
  add("no output gate", [](Json&, Json& text) { text["mla_use_output_gate"] = false; });
  add("no latent", [](Json&, Json& text) { text["routed_expert_hidden_size"] = nullptr; });
  add("no latent norm", [](Json&, Json& text) { text["latent_moe_use_norm"] = false; });
  add("no shared experts", [](Json&, Json& text) { text["num_shared_experts"] = 0; });
  add("plain residuals", [](Json&, Json& text) { text["attn_res_block_size"] = nullptr; });
  add("plain experts", [](Json& top, Json&) { top.erase("quantization_config"); });
  add("dense only", [](Json&, Json& text) {
    text["first_k_dense_replace"] = 5;
    text["num_experts"] = 0;
    text.erase("num_experts_per_token");
  });
  add("every second layer dense", [](Json&, Json& text) { text["moe_layer_freq"] = 2; });
  return configs;
}

std::string ReleasedConfigJson() {
  Json config = TinyConfig();
  Json& text = config["text_config"];
  const std::vector<std::pair<const char*, int>> sizes = {{"vocab_size", 163840},
                                                          {"hidden_size", 7168},
                                                          {"intermediate_size", 33792},
                                                          {"num_hidden_layers", 93},
                                                          {"num_attention_heads", 96},
                                                          {"q_lora_rank", 1536},
                                                          {"kv_lora_rank", 512},
                                                          {"qk_nope_head_dim", 128},
                                                          {"qk_rope_head_dim", 64},
                                                          {"v_head_dim", 128},
                                                          {"num_experts", 896},
                                                          {"num_experts_per_token", 16},
                                                          {"moe_intermediate_size", 3072},
                                                          {"routed_expert_hidden_size", 3584},
                                                          {"attn_res_block_size", 12}};
  for (const auto& [name, value] : sizes) text[name] = value;
  Json& linear = text["linear_attn_config"];
  linear["head_dim"] = 128;
  linear["num_heads"] = 96;
  linear["kda_layers"] = Json::array();
  linear["full_attn_layers"] = Json::array();
  for (int layer = 1; layer <= 93; ++layer) {
    linear[layer % 4 == 0 || layer == 93 ? "full_attn_layers" : "kda_layers"].push_back(layer);
  }
  return config.dump(1);
}

}  // namespace k3
