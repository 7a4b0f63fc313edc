#include "train/exported_config.h"

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"

namespace k3::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kQuantization = "quantization_config";
constexpr const char* kText = "text_config";

/// The text as a tree, after the checks that a configuration has to pass.
Result<Json> Parse(std::string_view config_json) {
  const Result<ModelConfig> config = ParseModelConfig(config_json, kConfigFileName);
  K3_RETURN_IF_ERROR(config.status());
  return Json::parse(config_json);
}

std::string Dump(const Json& json) { return json.dump(2) + "\n"; }

/// Whether an id or a list of ids holds `id`.
bool Holds(const Json& value, int32_t id) {
  if (!value.is_array()) return value == id;
  for (const Json& one : value) {
    if (one == id) return true;
  }
  return false;
}

}  // namespace

Result<std::string> WithQuantization(std::string_view config_json, bool quantised) {
  K3_TRY(Json json, Parse(config_json));
  const bool at_top = json.contains(kQuantization) && !json[kQuantization].is_null();
  const bool in_text = json.contains(kText) && json[kText].contains(kQuantization) &&
                       !json[kText][kQuantization].is_null();
  if (quantised == (at_top || in_text)) return std::string(config_json);
  if (!quantised) {
    json.erase(kQuantization);
    if (in_text) json[kText].erase(kQuantization);
    return Dump(json);
  }
  json[kQuantization] = Json::parse(R"({
    "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null,
      "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                  "symmetric": true, "dynamic": false, "scale_dtype": "torch.uint8"}}}
  })");
  return Dump(json);
}

Result<std::string> WithTokenizerIds(std::string_view config_json, const Tokenizer& tokenizer) {
  K3_TRY(Json json, Parse(config_json));
  bool changed = false;
  for (const auto& [field, token] :
       {std::pair("bos_token_id", "[BOS]"), std::pair("eos_token_id", "<|end_of_msg|>"),
        std::pair("pad_token_id", "[PAD]")}) {
    const Result<int32_t> id = tokenizer.SpecialId(token);
    if (!id.ok()) continue;
    for (Json* object : {&json, json.contains(kText) ? &json[kText] : nullptr}) {
      if (object == nullptr || !object->contains(field) || Holds((*object)[field], *id)) continue;
      (*object)[field] = *id;
      changed = true;
    }
  }
  return changed ? Dump(json) : std::string(config_json);
}

}  // namespace k3::train
