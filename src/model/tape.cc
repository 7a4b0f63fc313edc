#include "model/tape.h"

namespace k3::model {

void Tape::Start(const ModelConfig& config, int64_t tokens) {
  arena_.Reset();
  tokens_ = tokens;
  bank.clear();
  last_prefix = nullptr;
  layers.assign(static_cast<size_t>(config.layers), {});
  const int64_t floats = tokens * config.hidden_size;
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerTape& layer = layers[static_cast<size_t>(i)];
    if (policy_.normed == Keep::kKeep) {
      layer.attention_input = arena_.Allocate<float>(floats);
      layer.mlp_input = arena_.Allocate<float>(floats);
    }
    const bool is_mla = config.is_mla[static_cast<size_t>(i)];
    if (is_mla && policy_.mla == Keep::kKeep) {
      layer.mla = MlaTape::Allocate(arena_, config.mla, tokens);
    } else if (is_mla) {
      layer.mla.score_max = arena_.Allocate<float>(tokens * config.mla.heads);
    }
    if (!is_mla && policy_.kda == Keep::kKeep) {
      layer.kda = KdaTape::Allocate(arena_, config.kda, tokens);
    }
    const bool keep_mlp = policy_.mlp == Keep::kKeep;
    if (!config.IsDense(i)) {
      layer.moe =
          MoeTape::Allocate(arena_, config, tokens, policy_.experts == Keep::kKeep, keep_mlp);
    } else if (keep_mlp) {
      layer.mlp.gate = arena_.Allocate<float>(tokens * config.dense_intermediate);
      layer.mlp.up = arena_.Allocate<float>(tokens * config.dense_intermediate);
    }
  }
}

}  // namespace k3::model
