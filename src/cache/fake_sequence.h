#pragma once
// FakeSequence: a sequence whose latents and KDA states are functions of the tokens in front of
// them, for tests: what a cache gives back is checked without keeping what was put in.
//
// Owns its state; one thread.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/sequence_state.h"

namespace k3::cache {

/// Smallest shapes: `mla_layers` MLA layers among `kda_layers` KDA layers.
inline ModelConfig FakeConfig(int mla_layers = 1, int kda_layers = 2) {
  ModelConfig config;
  config.hidden_size = 32;
  config.dense_intermediate = 32;
  config.dense_layers = mla_layers + kda_layers;
  config.kda = {.heads = 1, .head_dim = 16, .conv_kernel = 4, .gate_lower_bound = -5.0f};
  config.mla = {.heads = 2, .kv_lora_rank = 8, .qk_rope_dim = 8};
  config.is_mla.assign(static_cast<size_t>(kda_layers), false);
  config.is_mla.insert(config.is_mla.end(), static_cast<size_t>(mla_layers), true);
  return config;
}

class FakeSequence {
 public:
  explicit FakeSequence(const ModelConfig& config) : config_(config), state_(config) {}

  SequenceState& state() { return state_; }
  int64_t length() const { return state_.length(); }

  /// As a prefill of tokens [length(), tokens.size()) would: `tokens` start with those so far.
  void Run(std::span<const int32_t> tokens) {
    const int64_t begin = state_.length(), end = std::ssize(tokens);
    for (MlaLatents* latents : state_.MlaLayers()) latents->Reserve(end);
    uint64_t name = NameOf(tokens.first(static_cast<size_t>(begin)));
    for (int64_t t = begin; t < end; ++t) {
      name = Extend(name, tokens[static_cast<size_t>(t)]);
      uint64_t layer = 0;
      for (MlaLatents* latents : state_.MlaLayers()) {
        Fill(name, ++layer, latents->row_width(), latents->Row(t));
      }
    }
    state_.Advance(end - begin);
    if (begin == end) return;
    ForKda([&](float* array, uint64_t which, int64_t count) { Fill(name, which, count, array); });
  }

  /// Whether every latent and every KDA array that counts is what Run would have made.
  bool Holds(std::span<const int32_t> tokens) {
    if (state_.length() != std::ssize(tokens)) return false;
    bool equal = true;
    uint64_t name = kSeed;
    for (int64_t t = 0; t < std::ssize(tokens); ++t) {
      name = Extend(name, tokens[static_cast<size_t>(t)]);
      uint64_t layer = 0;
      for (MlaLatents* latents : state_.MlaLayers()) {
        equal = equal && Check(name, ++layer, latents->row_width(), latents->Row(t));
      }
    }
    if (tokens.empty()) return equal;
    ForKda([&](const float* array, uint64_t which, int64_t count) {
      equal = equal && Check(name, which, count, array);
    });
    return equal;
  }

 private:
  static constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

  static uint64_t Extend(uint64_t name, int32_t token) {
    name = (name ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccd;
    return name ^ (name >> 29);
  }
  static uint64_t NameOf(std::span<const int32_t> tokens) {
    uint64_t name = kSeed;
    for (int32_t token : tokens) name = Extend(name, token);
    return name;
  }
  static float Value(uint64_t name, uint64_t which, int64_t i) {
    const uint64_t bits = (name + which * 77 + static_cast<uint64_t>(i)) * 0xc4ceb9fe1a85ec53;
    return static_cast<float>(bits >> 40);
  }
  static void Fill(uint64_t name, uint64_t which, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = Value(name, which, i);
  }
  static bool Check(uint64_t name, uint64_t which, int64_t count, const float* values) {
    for (int64_t i = 0; i < count; ++i) {
      if (values[i] != Value(name, which, i)) return false;
    }
    return true;
  }
  template <typename Visit>
  void ForKda(const Visit& visit) {
    for (size_t layer = 0; layer < config_.is_mla.size(); ++layer) {
      if (config_.is_mla[layer]) continue;
      KdaState& kda = state_.kda(static_cast<int64_t>(layer));
      visit(kda.state.data(), 1000 + 2 * layer, kda.state.count());
      visit(kda.conv.data(), 1001 + 2 * layer, kda.conv.count());
    }
  }

  ModelConfig config_;
  SequenceState state_;
};

}  // namespace k3::cache
