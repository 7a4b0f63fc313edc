#include "config/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace k3 {
namespace {

using Json = nlohmann::ordered_json;

/// The released configuration, but for fields that repeat library defaults.
Json ReleasedConfig() {
  Json config = Json::parse(R"({
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
    "dtype": "bfloat16", "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839,
    "ignore_index": -100, "image_placeholder": "<|kimi_image_placeholder|>",
    "media_placeholder_token_id": 163605, "tie_word_embeddings": false,
    "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"},
    "vision_config": {"patch_size": 14, "vt_hidden_size": 1024},
    "text_config": {
      "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"],
      "transformers_version": "4.56.2", "vocab_size": 163840, "num_hidden_layers": 93,
      "hidden_size": 7168, "num_attention_heads": 96, "num_key_value_heads": 96,
      "intermediate_size": 33792, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05,
      "initializer_range": 0.02, "hidden_act": "situ", "activation_situ_beta": 4.0,
      "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12, "first_k_dense_replace": 1,
      "moe_layer_freq": 1, "num_experts": 896, "num_experts_per_token": 16,
      "num_shared_experts": 2, "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
      "latent_moe_use_norm": true, "moe_renormalize": true,
      "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc",
      "routed_scaling_factor": 1.0, "use_grouped_topk": true, "num_expert_group": 1,
      "topk_group": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true,
      "mla_use_output_gate": true, "num_nextn_predict_layers": 0, "tie_word_embeddings": false,
      "linear_attn_config": {"head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4,
                             "use_full_rank_gate": true, "gate_lower_bound": -5.0},
      "quantization_config": {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "quantization_status": "compressed", "kv_cache_scheme": null,
        "ignore": ["re:.*self_attn.*", "lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null,
          "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                      "symmetric": true, "dynamic": false, "scale_dtype": "torch.uint8"}}}}
    }
  })");
  Json kda = Json::array();
  Json full = Json::array();
  for (int layer = 1; layer <= 93; ++layer) {
    (layer % 4 == 0 || layer == 93 ? full : kda).push_back(layer);
  }
  config["text_config"]["linear_attn_config"]["kda_layers"] = kda;
  config["text_config"]["linear_attn_config"]["full_attn_layers"] = full;
  return config;
}

/// The released one with a JSON patch applied: null removes nothing here, it is written as null.
Json With(const std::string& pointer, const Json& value) {
  Json config = ReleasedConfig();
  config[Json::json_pointer(pointer)] = value;
  return config;
}
Json Without(const std::string& pointer) {
  Json config = ReleasedConfig();
  const Json::json_pointer at(pointer);
  config[at.parent_pointer()].erase(at.back());
  return config;
}

ModelConfig Parsed(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : ModelConfig();
}

/// The message of the failure; it must name the file and `field`.
std::string FailureOf(const Json& json, const std::string& field) {
  const auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_FALSE(config.ok()) << field;
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  const std::string message = config.status().message();
  EXPECT_EQ(message.rfind("config.json: ", 0), 0u) << message;
  EXPECT_NE(message.find(field + ": expected "), std::string::npos) << message;
  EXPECT_NE(message.find(", found "), std::string::npos) << message;
  return message;
}

const std::string kText = "/text_config/";
const std::string kLinear = "/text_config/linear_attn_config/";

TEST(ModelConfigTest, ReadsTheReleasedConfiguration) {
  const ModelConfig config = Parsed(ReleasedConfig());
  EXPECT_EQ(config.vocab_size, 163840);
  EXPECT_EQ(config.hidden_size, 7168);
  EXPECT_EQ(config.layers, 93);
  EXPECT_EQ(config.dense_layers, 1);
  EXPECT_EQ(config.dense_intermediate, 33792);
  EXPECT_EQ(config.residual_block, 12);
  EXPECT_EQ(config.context_max, 1048576);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.situ_beta, 4.0f);
  EXPECT_EQ(config.situ_linear_beta, 25.0f);
  EXPECT_EQ(config.mla.heads, 96);
  EXPECT_EQ(config.mla.q_lora_rank, 1536);
  EXPECT_EQ(config.mla.kv_lora_rank, 512);
  EXPECT_EQ(config.mla.qk_nope_dim + config.mla.qk_rope_dim + config.mla.v_dim, 128 + 64 + 128);
  EXPECT_TRUE(config.mla.output_gate);
  EXPECT_EQ(config.kda.heads, 96);
  EXPECT_EQ(config.kda.head_dim, 128);
  EXPECT_EQ(config.kda.conv_kernel, 4);
  EXPECT_TRUE(config.kda.full_rank_gate);
  EXPECT_EQ(config.kda.gate_lower_bound, -5.0f);
  EXPECT_EQ(config.moe.experts, 896);
  EXPECT_EQ(config.moe.experts_per_token, 16);
  EXPECT_EQ(config.moe.shared_experts, 2);
  EXPECT_EQ(config.moe.intermediate, 3072);
  EXPECT_EQ(config.moe.latent, 3584);
  EXPECT_TRUE(config.moe.latent_norm && config.moe.renormalize && config.quantized_experts);
  EXPECT_EQ(std::count(config.is_mla.begin(), config.is_mla.end(), true), 24);
  EXPECT_TRUE(config.is_mla[3] && config.is_mla[91] && config.is_mla[92] && !config.is_mla[0]);
  EXPECT_TRUE(config.IsDense(0) && !config.IsDense(1));
  EXPECT_EQ(config.bos_token_id, 163584);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{163586});
  EXPECT_EQ(config.pad_token_id, 163839);
  EXPECT_TRUE(config.has_vision);
  EXPECT_TRUE(config.unknown_fields.empty()) << config.unknown_fields[0];
}

TEST(ModelConfigTest, AbsentOrNullMeansWhatTheArchitectureSays) {
  for (const bool null : {true, false}) {
    const auto drop = [&](const std::string& at) { return null ? With(at, nullptr) : Without(at); };
    EXPECT_EQ(Parsed(drop(kText + "attn_res_block_size")).residual_block, 0);
    EXPECT_EQ(Parsed(drop(kLinear + "gate_lower_bound")).kda.gate_lower_bound, std::nullopt);
    EXPECT_FALSE(Parsed(drop(kLinear + "use_full_rank_gate")).kda.full_rank_gate);
    EXPECT_EQ(Parsed(drop(kText + "q_lora_rank")).mla.q_lora_rank, 0);
    EXPECT_EQ(Parsed(drop(kText + "routed_expert_hidden_size")).moe.latent, 0);
    EXPECT_FALSE(Parsed(drop(kText + "routed_expert_hidden_size")).moe.latent_norm);
    EXPECT_EQ(Parsed(drop(kText + "num_shared_experts")).moe.shared_experts, 0);
    EXPECT_EQ(Parsed(drop(kText + "activation_situ_beta")).situ_beta, 1.0f);
    EXPECT_EQ(Parsed(drop(kText + "activation_situ_linear_beta")).situ_linear_beta, std::nullopt);
    EXPECT_FALSE(Parsed(drop(kText + "quantization_config")).quantized_experts);
    EXPECT_FALSE(Parsed(drop(kText + "mla_use_output_gate")).mla.output_gate);
    EXPECT_FALSE(Parsed(drop("/vision_config")).has_vision);
    EXPECT_TRUE(Parsed(drop("/eos_token_id")).eos_token_ids.empty());
    for (const char* name : {"num_key_value_heads", "use_grouped_topk", "num_expert_group",
                             "topk_group", "topk_method", "num_nextn_predict_layers"}) {
      EXPECT_EQ(Parsed(drop(kText + name)).layers, 93) << name;
    }
  }
  EXPECT_EQ(Parsed(With(kText + "activation_situ_beta", 0)).situ_beta, 1.0f);
  EXPECT_EQ(Parsed(With(kText + "activation_situ_linear_beta", 0.0)).situ_linear_beta,
            std::nullopt);
  EXPECT_FALSE(Parsed(With(kText + "moe_renormalize", false)).moe.renormalize);
  EXPECT_FALSE(Parsed(With(kText + "latent_moe_use_norm", false)).moe.latent_norm);
}

TEST(ModelConfigTest, ReadsAFlatFileAndQuantizationAtTheTop) {
  Json flat = ReleasedConfig()["text_config"];
  flat["eos_token_id"] = {5, 7};
  const ModelConfig config = Parsed(flat);
  EXPECT_EQ(config.layers, 93);
  EXPECT_TRUE(config.quantized_experts);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{5, 7}));

  Json moved = ReleasedConfig();
  moved["quantization_config"] = moved["text_config"]["quantization_config"];
  moved["text_config"].erase("quantization_config");
  EXPECT_TRUE(Parsed(moved).quantized_experts);
  moved["quantization_config"]["format"] = "pack-quantized";
  FailureOf(moved, "quantization_config.format");
}

TEST(ModelConfigTest, TheTopsTokenIdsWin) {
  Json config = With(kText + "eos_token_id", 1);
  config["text_config"]["bos_token_id"] = 2;
  config.erase("bos_token_id");
  EXPECT_EQ(Parsed(config).eos_token_ids, std::vector<int64_t>{163586});
  EXPECT_EQ(Parsed(config).bos_token_id, 2);
}

TEST(ModelConfigTest, UnknownFieldsAreCollected) {
  Json config = With(kText + "surprise", 1);
  config["other"] = Json::object();
  config["text_config"]["linear_attn_config"]["new_gate"] = true;
  EXPECT_EQ(Parsed(config).unknown_fields,
            (std::vector<std::string>{"other", "text_config.surprise",
                                      "text_config.linear_attn_config.new_gate"}));
}

TEST(ModelConfigTest, EverySizeIsChecked) {
  for (const char* name :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "max_position_embeddings", "attn_res_block_size", "moe_layer_freq",
        "num_experts_per_token", "moe_intermediate_size", "routed_expert_hidden_size",
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    const std::vector<Json> bad = {0,          -1,  1.5, "7", true, Json::array(), int64_t{1} << 40,
                                   UINT64_MAX, 1e30};
    for (const Json& value : bad) {
      FailureOf(With(kText + name, value), std::string("text_config.") + name);
    }
  }
  for (const char* name : {"head_dim", "num_heads", "short_conv_kernel_size"}) {
    const std::vector<Json> bad = {0, -4, 2.5, "x", nullptr, 1 << 20};
    for (const Json& value : bad) {
      FailureOf(With(kLinear + name, value), std::string("text_config.linear_attn_config.") + name);
    }
  }
  FailureOf(With(kLinear + "short_conv_kernel_size", 17), "short_conv_kernel_size");
  FailureOf(With(kText + "num_experts", 70000), "num_experts");
  FailureOf(With(kText + "num_experts_per_token", 897), "num_experts_per_token");
  FailureOf(With(kText + "num_shared_experts", -1), "num_shared_experts");
  FailureOf(With(kText + "num_shared_experts", 60000), "num_shared_experts");
  FailureOf(With(kText + "first_k_dense_replace", 94), "first_k_dense_replace");
  FailureOf(With(kText + "rms_norm_eps", 0), "rms_norm_eps");
  FailureOf(With(kText + "rms_norm_eps", 1e-60), "rms_norm_eps");
  FailureOf(With(kText + "routed_scaling_factor", -1), "routed_scaling_factor");
  FailureOf(With(kText + "activation_situ_beta", -4), "activation_situ_beta");
  for (const char* name : {"vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps",
                           "hidden_act", "mla_use_nope", "linear_attn_config", "kv_lora_rank",
                           "num_experts_per_token", "latent_moe_use_norm"}) {
    FailureOf(Without(kText + name), std::string("text_config.") + name);
  }
}

TEST(ModelConfigTest, FieldsWithOneMeaningAreChecked) {
  FailureOf(With("/model_type", "llama"), "model_type");
  FailureOf(Without("/model_type"), "model_type");
  FailureOf(With(kText + "model_type", "qwen"), "text_config.model_type");
  FailureOf(With("/architectures", Json::array({"LlamaForCausalLM"})), "architectures");
  FailureOf(With("/architectures", "KimiK3ForConditionalGeneration"), "architectures");
  FailureOf(With("/tie_word_embeddings", true), "tie_word_embeddings");
  FailureOf(With(kText + "tie_word_embeddings", true), "text_config.tie_word_embeddings");
  FailureOf(With(kText + "hidden_act", "silu"), "hidden_act");
  FailureOf(With(kText + "mla_use_nope", false), "mla_use_nope");
  FailureOf(With(kText + "moe_router_activation_func", "softmax"), "moe_router_activation_func");
  FailureOf(With(kText + "topk_method", "greedy"), "topk_method");
  FailureOf(With(kText + "num_expert_group", 8), "num_expert_group");
  FailureOf(With(kText + "topk_group", 4), "topk_group");
  FailureOf(With(kText + "num_nextn_predict_layers", 1), "num_nextn_predict_layers");
  FailureOf(With(kText + "num_key_value_heads", 8), "num_key_value_heads");
  FailureOf(With("/dtype", "int8"), "dtype");
  FailureOf(With("/text_config", 3), "text_config");
  FailureOf(With(kText + "linear_attn_config", Json::array()), "linear_attn_config");
}

TEST(ModelConfigTest, QuantizationIsChecked) {
  const std::string quant = kText + "quantization_config/";
  const std::string weights = quant + "config_groups/group_0/weights/";
  FailureOf(With(quant + "quant_method", "gptq"), "quant_method");
  FailureOf(With(quant + "format", "nvfp4-pack-quantized"), "format");
  FailureOf(With(weights + "num_bits", 8), "config_groups.group_0.weights.num_bits");
  FailureOf(With(weights + "type", "int"), "weights.type");
  FailureOf(With(weights + "group_size", 16), "weights.group_size");
  FailureOf(With(weights + "symmetric", false), "weights.symmetric");
  FailureOf(With(quant + "config_groups/group_0/weights", nullptr), "group_0.weights");
  EXPECT_TRUE(Parsed(Without(quant + "config_groups")).quantized_experts);
}

TEST(ModelConfigTest, LayerListsMustSplitTheLayers) {
  FailureOf(With(kLinear + "kda_layers", Json::array({1, 2})), "kda_layers");
  FailureOf(With(kLinear + "kda_layers/0", 4), "full_attn_layers");
  FailureOf(With(kLinear + "kda_layers/1", 1), "kda_layers");
  FailureOf(With(kLinear + "kda_layers/0", 0), "kda_layers");
  FailureOf(With(kLinear + "full_attn_layers/0", 94), "full_attn_layers");
  FailureOf(With(kLinear + "full_attn_layers/0", "4"), "full_attn_layers");
  FailureOf(Without(kLinear + "full_attn_layers"), "full_attn_layers");
}

TEST(ModelConfigTest, GateLowerBoundIsNegativeAndFinite) {
  const std::vector<Json> bad = {0, 5.0, "-5", -1e300, false};
  for (const Json& value : bad)
    FailureOf(With(kLinear + "gate_lower_bound", value), "gate_lower_bound");
}

TEST(ModelConfigTest, AModelWithoutExpertsMustBeDense) {
  FailureOf(With(kText + "num_experts", 0), "num_experts");
  FailureOf(Without(kText + "num_experts"), "num_experts");
  Json dense = With(kText + "first_k_dense_replace", 93);
  for (const char* name : {"num_experts", "num_experts_per_token", "moe_intermediate_size",
                           "routed_expert_hidden_size", "latent_moe_use_norm"}) {
    dense["text_config"].erase(name);
  }
  EXPECT_EQ(Parsed(dense).moe.experts, 0);
  dense["text_config"].erase("intermediate_size");
  FailureOf(dense, "intermediate_size");
  // Every second layer dense.
  EXPECT_TRUE(Parsed(With(kText + "moe_layer_freq", 2)).IsDense(3));
}

TEST(ModelConfigTest, TokenIdsMustBeInTheVocabulary) {
  FailureOf(With("/eos_token_id", 163840), "eos_token_id");
  FailureOf(With("/eos_token_id", Json::array({1, -1})), "eos_token_id");
  FailureOf(With("/eos_token_id", Json::array({"a"})), "eos_token_id");
  FailureOf(With("/bos_token_id", 1 << 30), "bos_token_id");
  FailureOf(With("/pad_token_id", 1.5), "pad_token_id");
}

TEST(ModelConfigTest, AbsurdTotalsAreRefused) {
  Json config = ReleasedConfig();
  config["text_config"]["num_experts"] = 65536;
  config["text_config"]["moe_intermediate_size"] = 500000;
  config["text_config"]["routed_expert_hidden_size"] = 1 << 20;
  const auto result = ParseModelConfig(config.dump(), "config.json");
  EXPECT_NE(result.status().message().find("parameters"), std::string::npos);
}

TEST(ModelConfigTest, BrokenFilesAreRefused) {
  for (const char* text : {"", "[]", "3", "{\"model_type\": \"kimi_k3\", \"model_type\": 1}",
                           "{\"a\": [[[[[", "{\"text_config\": NaN}"}) {
    EXPECT_EQ(ParseModelConfig(text, "config.json").status().code(), StatusCode::kInvalidArgument);
  }
  const std::string deep = "{\"text_config\":" + std::string(1'000'000, '[');
  EXPECT_FALSE(ParseModelConfig(deep, "config.json").ok());
  // Every prefix of a good file is a bad one.
  const std::string good = ReleasedConfig().dump();
  for (size_t length = 0; length < good.size(); length += 7) {
    EXPECT_FALSE(ParseModelConfig(good.substr(0, length), "config.json").ok());
  }
}

TEST(GenerationConfigTest, EveryFieldIsOptionalAndChecked) {
  const GenerationConfig empty = *ParseGenerationConfig("{}", "g.json");
  EXPECT_TRUE(empty.eos_token_ids.empty());
  EXPECT_FALSE(empty.temperature.has_value());
  const GenerationConfig full = *ParseGenerationConfig(
      R"({"eos_token_id": [3, 4], "temperature": 1.0, "top_p": 0.95, "top_k": 40,
          "max_length": 1048576, "do_sample": true, "transformers_version": "4.5"})",
      "g.json");
  EXPECT_EQ(full.eos_token_ids, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(full.temperature, 1.0f);
  EXPECT_EQ(full.top_p, 0.95f);
  EXPECT_EQ(full.top_k, 40);
  EXPECT_EQ(full.max_length, 1048576);
  for (const char* text : {"[]", R"({"temperature": -1})", R"({"top_p": 0})", R"({"top_p": 1.5})",
                           R"({"top_k": -1})", R"({"max_length": 0})", R"({"eos_token_id": -1})",
                           R"({"temperature": "hot"})", R"({"top_p": 1, "top_p": 1})"}) {
    EXPECT_FALSE(ParseGenerationConfig(text, "g.json").ok()) << text;
  }
}

}  // namespace
}  // namespace k3
