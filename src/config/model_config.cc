#include "config/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/limits.h"
#include "config/field_reader.h"
#include "config/json.h"

// Fields of config.json. The text model's stand in "text_config", or at the top of a flat file.
//
//   used        vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
//               max_position_embeddings (or model_max_length) rms_norm_eps attn_res_block_size
//               activation_situ_beta activation_situ_linear_beta first_k_dense_replace
//               moe_layer_freq num_experts num_experts_per_token num_shared_experts
//               moe_intermediate_size routed_expert_hidden_size latent_moe_use_norm
//               moe_renormalize routed_scaling_factor q_lora_rank kv_lora_rank qk_nope_head_dim
//               qk_rope_head_dim v_head_dim mla_use_output_gate linear_attn_config.* and, from the
//               top or text_config, bos_token_id eos_token_id pad_token_id
//   one value   model_type architectures hidden_act mla_use_nope moe_router_activation_func
//               topk_method use_grouped_topk num_expert_group topk_group tie_word_embeddings
//               num_nextn_predict_layers num_key_value_heads dtype quantization_config
//   absent      attn_res_block_size -> plain residuals; gate_lower_bound -> the unbounded gate;
//   or null     q_lora_rank -> one q_proj; routed_expert_hidden_size -> experts on the full width;
//               situ beta -> 1; situ linear beta -> the up branch unchanged; use_full_rank_gate and
//               mla_use_output_gate -> false; moe_renormalize -> true; scaling factor -> 1
//   ignored     what other programs read: rope_*, head_dim (a library default, meaningless here),
//               use_cache, auto_map, initializer_range, the vision tower's own fields, ...

namespace k3 {
namespace {

constexpr IntegerRange kWidthRange{1, limits::kHiddenSizeMax};
constexpr IntegerRange kHeadsRange{1, limits::kHeadsCountMax};
constexpr IntegerRange kHeadDimRange{1, limits::kHeadDimMax};
constexpr int64_t kConvKernelMax = 16;
constexpr int64_t kStopTokensMax = 64;
constexpr double kFloatMax = std::numeric_limits<float>::max();
// Beyond any machine, and low enough that no sum of sizes in bytes leaves int64.
constexpr double kParametersMax = 1e16;

void IgnoreLibraryFields(FieldReader& reader) {
  reader.Ignore({"auto_map", "transformers_version", "initializer_range", "use_cache", "head_dim",
                 "rope_theta", "rope_scaling", "rope_parameters", "ignore_index",
                 "image_placeholder", "media_placeholder_token_id", "attention_dropout",
                 "output_attentions", "output_hidden_states", "return_dict", "_name_or_path",
                 "pretraining_tp", "_attn_implementation"});
}

/// Fields that may stand at the top and in text_config alike, with one allowed meaning.
void CheckIdentity(FieldReader& reader, bool model_type_optional) {
  reader.ExpectString("model_type", {"kimi_k3", "kimi_linear"}, model_type_optional);
  for (const char* name : {"dtype", "torch_dtype"}) {
    reader.ExpectString(name, {"bfloat16", "float16", "float32"}, true);
  }
  if (reader.BoolOr("tie_word_embeddings", false)) {
    reader.Fail("tie_word_embeddings", "false: the head has its own matrix", "true");
  }
  const JsonValue* architectures = reader.Get("architectures");
  if (architectures == nullptr) return;
  bool named = false;
  if (architectures->items() != nullptr) {
    for (const JsonValue& item : *architectures->items()) {
      named = named ||
              (item.string() != nullptr && (*item.string() == "KimiK3ForConditionalGeneration" ||
                                            *item.string() == "KimiLinearForCausalLM"));
    }
  }
  if (!named) {
    reader.Fail("architectures",
                "an array with \"KimiK3ForConditionalGeneration\" or \"KimiLinearForCausalLM\"",
                architectures->Describe());
  }
}

/// The only stored quantisation: MXFP4 as compressed-tensors packs it. False when there is none.
bool CheckQuantization(FieldReader& parent, std::string_view where, Status* failure) {
  const JsonValue* object = parent.Object("quantization_config");
  if (object == nullptr) return false;
  const std::string path = parent.path() + "quantization_config.";
  FieldReader reader(*object, where, path, failure);
  reader.ExpectString("quant_method", {"compressed-tensors"}, false);
  reader.ExpectString("format", {"mxfp4-pack-quantized"}, false);
  const JsonValue* groups = reader.Object("config_groups");
  if (groups == nullptr) return true;
  for (const auto& [group_name, group] : *groups->members()) {
    FieldReader group_reader(group, where, fmt::format("{}config_groups.{}.", path, group_name),
                             failure);
    const JsonValue* weights = group_reader.Object("weights");
    if (weights == nullptr) {
      group_reader.Fail("weights", "an object", "nothing");
      continue;
    }
    FieldReader weights_reader(*weights, where, group_reader.path() + "weights.", failure);
    weights_reader.Integer("num_bits", {4, 4});
    weights_reader.ExpectString("type", {"float"}, false);
    weights_reader.Integer("group_size", {32, 32});
    if (!weights_reader.Bool("symmetric")) weights_reader.Fail("symmetric", "true", "false");
  }
  return true;
}

/// Which layers are MLA, from the two lists of 1-based layer numbers.
void ReadLayerKinds(FieldReader& reader, ModelConfig* config) {
  const IntegerRange range{1, config->layers};
  std::vector<int> named(static_cast<size_t>(config->layers), 0);
  config->is_mla.assign(named.size(), false);
  for (const bool mla : {false, true}) {
    const char* field = mla ? "full_attn_layers" : "kda_layers";
    if (reader.Get(field) == nullptr) reader.Fail(field, "an array of layer numbers", "nothing");
    for (const int64_t layer : reader.IntegerList(field, range, config->layers)) {
      const size_t index = static_cast<size_t>(layer - 1);
      if (named[index]++ != 0) {
        reader.Fail(field, "every layer once in kda_layers and full_attn_layers together",
                    fmt::format("layer {} again", layer));
      }
      config->is_mla[index] = mla;
    }
  }
  const auto missing = std::find(named.begin(), named.end(), 0);
  if (missing != named.end()) {
    reader.Fail("kda_layers", "every layer in kda_layers or full_attn_layers",
                fmt::format("layer {} in neither", missing - named.begin() + 1));
  }
}

void ReadKda(FieldReader& text, std::string_view where, Status* failure, ModelConfig* config) {
  const JsonValue* object = text.Object("linear_attn_config");
  if (object == nullptr) {
    text.Fail("linear_attn_config", "an object", "nothing");
    return;
  }
  FieldReader reader(*object, where, text.path() + "linear_attn_config.", failure);
  ReadLayerKinds(reader, config);
  KdaConfig& kda = config->kda;
  kda.heads = reader.Integer("num_heads", kHeadsRange);
  kda.head_dim = reader.Integer("head_dim", kHeadDimRange);
  kda.conv_kernel = reader.Integer("short_conv_kernel_size", {1, kConvKernelMax});
  kda.full_rank_gate = reader.BoolOr("use_full_rank_gate", false);
  if (const JsonValue* bound = reader.Get("gate_lower_bound")) {
    const std::optional<double> number = bound->number();
    const float rounded = static_cast<float>(number.value_or(0));
    if (!std::isfinite(rounded) || !(rounded < 0)) {
      reader.Fail("gate_lower_bound", "a finite number below 0, or null", bound->Describe());
    }
    kda.gate_lower_bound = rounded;
  }
  const std::vector<std::string> unknown = reader.UnknownFields();
  config->unknown_fields.insert(config->unknown_fields.end(), unknown.begin(), unknown.end());
}

void ReadMla(FieldReader& text, ModelConfig* config) {
  MlaConfig& mla = config->mla;
  mla.heads = text.Integer("num_attention_heads", kHeadsRange);
  text.IntegerOr("num_key_value_heads", mla.heads, {mla.heads, mla.heads});
  mla.q_lora_rank = text.IntegerOr("q_lora_rank", 0, kWidthRange);
  mla.kv_lora_rank = text.Integer("kv_lora_rank", kWidthRange);
  mla.qk_nope_dim = text.Integer("qk_nope_head_dim", kHeadDimRange);
  mla.qk_rope_dim = text.Integer("qk_rope_head_dim", kHeadDimRange);
  mla.v_dim = text.Integer("v_head_dim", kHeadDimRange);
  mla.output_gate = text.BoolOr("mla_use_output_gate", false);
  if (!text.Bool("mla_use_nope")) {
    text.Fail("mla_use_nope", "true: rotary positions are not supported", "false");
  }
}

void ReadMoe(FieldReader& text, ModelConfig* config) {
  MoeConfig& moe = config->moe;
  config->dense_layers = text.IntegerOr("first_k_dense_replace", 0, {0, config->layers});
  config->moe_layer_freq = text.IntegerOr("moe_layer_freq", 1, {1, limits::kLayersCountMax});
  moe.experts = text.IntegerOr("num_experts", 0, {0, limits::kExpertsCountMax});
  moe.shared_experts = text.IntegerOr("num_shared_experts", 0, {0, limits::kExpertsCountMax});
  moe.latent = text.IntegerOr("routed_expert_hidden_size", 0, kWidthRange);
  moe.renormalize = text.BoolOr("moe_renormalize", true);
  moe.routed_scaling_factor =
      text.OptionalFloat("routed_scaling_factor", {0, kFloatMax}).value_or(1.0f);
  text.ExpectString("moe_router_activation_func", {"sigmoid"}, true);
  text.ExpectString("topk_method", {"noaux_tc"}, true);
  text.BoolOr("use_grouped_topk", false);
  text.IntegerOr("num_expert_group", 1, {1, 1});
  text.IntegerOr("topk_group", 1, {1, 1});

  int64_t dense_count = 0;
  for (int64_t layer = 0; layer < config->layers; ++layer) dense_count += config->IsDense(layer);
  config->dense_intermediate = dense_count > 0
                                   ? text.Integer("intermediate_size", kWidthRange)
                                   : text.IntegerOr("intermediate_size", 0, kWidthRange);
  const bool has_moe = dense_count < config->layers;
  if (has_moe && moe.experts == 0) {
    text.Fail("num_experts",
              fmt::format("at least 1, because {} of {} layers are mixtures of experts",
                          config->layers - dense_count, config->layers),
              "none");
  }
  const IntegerRange chosen{1, std::max<int64_t>(moe.experts, 1)};
  moe.experts_per_token =
      has_moe ? text.Integer("num_experts_per_token", chosen)
              : text.IntegerOr("num_experts_per_token", 0, {0, limits::kExpertsCountMax});
  moe.intermediate = has_moe ? text.Integer("moe_intermediate_size", kWidthRange)
                             : text.IntegerOr("moe_intermediate_size", 0, kWidthRange);
  // Without a latent there is nothing to normalise, whatever the field says.
  moe.latent_norm = has_moe && moe.latent > 0 ? text.Bool("latent_moe_use_norm")
                                              : text.BoolOr("latent_moe_use_norm", false);
  moe.latent_norm = moe.latent_norm && moe.latent > 0;
  if (moe.shared_experts * moe.intermediate > limits::kHiddenSizeMax) {
    text.Fail("num_shared_experts",
              fmt::format("at most {} channels in all shared experts", limits::kHiddenSizeMax),
              fmt::format("{} x {}", moe.shared_experts, moe.intermediate));
  }
}

void ReadTextModel(FieldReader& text, std::string_view where, Status* failure,
                   ModelConfig* config) {
  config->vocab_size = text.Integer("vocab_size", {1, limits::kVocabularyMax});
  config->hidden_size = text.Integer("hidden_size", kWidthRange);
  config->layers = text.Integer("num_hidden_layers", {1, limits::kLayersCountMax});
  config->residual_block = text.IntegerOr("attn_res_block_size", 0, {1, limits::kLayersCountMax});
  const IntegerRange context_range{1, limits::kContextTokensMax};
  const std::optional<int64_t> library_context =
      text.OptionalInteger("model_max_length", context_range);
  config->context_max =
      library_context.has_value()
          ? text.IntegerOr("max_position_embeddings", *library_context, context_range)
          : text.Integer("max_position_embeddings", context_range);
  config->rms_norm_eps = text.Float("rms_norm_eps", {0, 1});
  text.ExpectString("hidden_act", {"situ"}, false);
  const FloatRange beta_range{0, kFloatMax, true};
  const float beta = text.OptionalFloat("activation_situ_beta", beta_range).value_or(0);
  config->situ_beta = beta == 0 ? 1.0f : beta;
  config->situ_linear_beta = text.OptionalFloat("activation_situ_linear_beta", beta_range);
  if (config->situ_linear_beta == 0.0f) config->situ_linear_beta.reset();
  text.IntegerOr("num_nextn_predict_layers", 0, {0, 0});
  ReadMla(text, config);
  ReadKda(text, where, failure, config);
  ReadMoe(text, config);
}

/// Token ids: the top of the file wins over text_config.
void ReadTokenIds(FieldReader& reader, ModelConfig* config) {
  const IntegerRange range{0, config->vocab_size - 1};
  const std::optional<int64_t> bos = reader.OptionalInteger("bos_token_id", range);
  const std::optional<int64_t> pad = reader.OptionalInteger("pad_token_id", range);
  const std::vector<int64_t> eos = reader.IntegerList("eos_token_id", range, kStopTokensMax);
  if (!config->bos_token_id.has_value()) config->bos_token_id = bos;
  if (!config->pad_token_id.has_value()) config->pad_token_id = pad;
  if (config->eos_token_ids.empty()) config->eos_token_ids = eos;
}

/// Parameters of the whole text model, roughly, in double so that nothing overflows.
double EstimateParameters(const ModelConfig& config) {
  const double width = static_cast<double>(config.hidden_size);
  const MoeConfig& moe = config.moe;
  const MlaConfig& mla = config.mla;
  const double expert = 3.0 * static_cast<double>(moe.intermediate) *
                        static_cast<double>(moe.latent > 0 ? moe.latent : config.hidden_size);
  const double kda = 6.0 * width * static_cast<double>(config.kda.heads * config.kda.head_dim);
  const double mla_rows = static_cast<double>(mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim) +
                                              mla.heads * (mla.qk_nope_dim + mla.v_dim));
  const double mla_width =
      static_cast<double>(std::max({config.hidden_size, mla.q_lora_rank, mla.kv_lora_rank}));
  const double layer = kda + 3.0 * mla_rows * mla_width +
                       3.0 * width * static_cast<double>(config.dense_intermediate) +
                       static_cast<double>(moe.experts) * (expert + width) +
                       3.0 * width * static_cast<double>(moe.shared_experts * moe.intermediate);
  return 2.0 * width * static_cast<double>(config.vocab_size) +
         static_cast<double>(config.layers) * layer;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view where) {
  K3_TRY(const JsonValue root, ParseJson(json, where));
  Status failure;
  FieldReader top(root, where, "", &failure);
  if (root.members() == nullptr) {
    return InvalidArgument(fmt::format("{}: expected an object, found {}", where, root.Describe()));
  }
  ModelConfig config;
  CheckIdentity(top, false);
  IgnoreLibraryFields(top);
  config.has_vision = top.Object("vision_config") != nullptr;
  const bool quantized_at_top = CheckQuantization(top, where, &failure);

  const JsonValue* nested = top.Object("text_config");
  FieldReader inner(nested == nullptr ? root : *nested, where, "text_config.", &failure);
  FieldReader& text = nested == nullptr ? top : inner;
  if (nested != nullptr) {
    CheckIdentity(text, true);
    IgnoreLibraryFields(text);
  }
  config.quantized_experts =
      (nested != nullptr && CheckQuantization(text, where, &failure)) || quantized_at_top;
  ReadTextModel(text, where, &failure, &config);
  ReadTokenIds(top, &config);
  if (nested != nullptr) ReadTokenIds(text, &config);
  K3_RETURN_IF_ERROR(failure);

  if (EstimateParameters(config) > kParametersMax) {
    return InvalidArgument(fmt::format("{}: expected at most {:.0e} parameters, found about {:.1e}",
                                       where, kParametersMax, EstimateParameters(config)));
  }
  std::vector<std::string> unknown = top.UnknownFields();
  if (nested != nullptr) {
    const std::vector<std::string> more = text.UnknownFields();
    unknown.insert(unknown.end(), more.begin(), more.end());
  }
  config.unknown_fields.insert(config.unknown_fields.begin(), unknown.begin(), unknown.end());
  return config;
}

}  // namespace k3
