// The printed form of `k3 inspect` for programs.

#include <nlohmann/json.hpp>

#include "inspect_report.h"

namespace k3::cli {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json AttentionJson(const ModelConfig& config) {
  Json mla_layers = Json::array();
  for (size_t layer = 0; layer < config.is_mla.size(); ++layer) {
    if (config.is_mla[layer]) mla_layers.push_back(layer);
  }
  return {{"mla_layers", mla_layers},
          {"mla",
           {{"heads", config.mla.heads},
            {"q_lora_rank", config.mla.q_lora_rank},
            {"kv_lora_rank", config.mla.kv_lora_rank},
            {"qk_nope_dim", config.mla.qk_nope_dim},
            {"qk_rope_dim", config.mla.qk_rope_dim},
            {"v_dim", config.mla.v_dim},
            {"output_gate", config.mla.output_gate}}},
          {"kda",
           {{"heads", config.kda.heads},
            {"head_dim", config.kda.head_dim},
            {"conv_kernel", config.kda.conv_kernel},
            {"full_rank_gate", config.kda.full_rank_gate},
            {"gate_lower_bound", OrNull(config.kda.gate_lower_bound)}}}};
}

Json ConfigJson(const ModelConfig& config) {
  Json json = {{"layers", config.layers},
               {"dense_layers", config.dense_layers},
               {"hidden_size", config.hidden_size},
               {"vocab_size", config.vocab_size},
               {"context_max", config.context_max},
               {"residual_block", config.residual_block},
               {"dense_intermediate", config.dense_intermediate},
               {"experts",
                {{"count", config.moe.experts},
                 {"per_token", config.moe.experts_per_token},
                 {"shared", config.moe.shared_experts},
                 {"intermediate", config.moe.intermediate},
                 {"latent", config.moe.latent}}},
               {"eos_token_ids", config.eos_token_ids},
               {"has_vision", config.has_vision},
               {"unknown_fields", config.unknown_fields}};
  json.update(AttentionJson(config));
  return json;
}

Json RowJson(const ComponentRow& row) {
  return {{"tensors", row.tensors},
          {"parameters", row.parameters},
          {"active_parameters", row.active_parameters},
          {"bytes", row.bytes},
          {"active_bytes", row.active_bytes},
          {"types", row.types}};
}

Json FilesJson(const CheckpointFacts& facts) {
  Json shards = Json::array();
  for (const ShardInfo& shard : facts.shards) {
    shards.push_back(
        {{"file", shard.file_name}, {"bytes", shard.file_bytes}, {"tensors", shard.tensors_count}});
  }
  Json partial;
  if (facts.partial_layers.has_value()) {
    partial = {facts.partial_layers->first, facts.partial_layers->last};
  }
  return {{"shards", shards},
          {"partial_layers", partial},
          {"missing", facts.difference.missing},
          {"unexpected", facts.difference.unexpected},
          {"vision_tensors", facts.difference.vision_count}};
}

Json MemoryJson(const InspectReport& report) {
  Json states = Json::array();
  for (const auto& [tokens, bytes] : report.state_bytes) {
    states.push_back({{"tokens", tokens}, {"bytes", bytes}});
  }
  return {{"weight_bytes", report.text_bytes()},
          {"state_bytes", states},
          {"available_bytes", report.memory.available_bytes},
          {"total_bytes", report.memory.total_bytes},
          {"fits_in_memory", report.fits_in_memory()}};
}

}  // namespace

std::string FormatReportJson(const InspectReport& report) {
  Json components = Json::object();
  for (int i = 0; i < kComponentsCount; ++i) {
    const Component component = static_cast<Component>(i);
    const ComponentRow& row = report.parameters[component];
    if (row.tensors > 0) components[std::string(ComponentName(component))] = RowJson(row);
  }
  Json json = {{"path", report.path},
               {"config", ConfigJson(report.config)},
               {"components", components},
               {"total", RowJson(report.parameters.total)}};
  if (report.checkpoint.has_value()) json["files"] = FilesJson(*report.checkpoint);
  json["memory"] = MemoryJson(report);
  // A path is bytes, not always UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace k3::cli
