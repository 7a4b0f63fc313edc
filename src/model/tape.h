#pragma once
// Tape: what one training forward keeps for its backward pass, and how much of that is computed
// again instead.
//
// The sums of the residual stream, the routing, what enters the latent norm and MLA's largest
// scores are always kept; the rest by policy: keeping costs memory, computing again costs up to one
// more forward of the block. Whatever the policy, the gradients have the same bits.
//
// Owns its arrays, in an arena that the next training forward reuses. One thread. Sizes in floats a
// token: sums 2 D a layer; normed inputs 2 D; KDA 5 H K + ...; MLA about H (N + R + 2 V) + L + R;
// an MLP 2 F; the experts 2 k F.

#include <cstdint>
#include <vector>

#include "model/kda.h"
#include "model/latent_moe.h"
#include "model/mla.h"
#include "sys/arena.h"

namespace k3::model {

enum class Keep : uint8_t { kKeep, kRecompute };

struct TapePolicy {
  Keep normed = Keep::kKeep;   // the normed inputs of the sublayers
  Keep kda = Keep::kKeep;      // the outputs of KDA's input projections
  Keep mla = Keep::kKeep;      // the outputs of MLA's input projections, and what it attended
  Keep mlp = Keep::kKeep;      // gate and up of dense and shared MLPs
  Keep experts = Keep::kKeep;  // gate and up of routed experts
};

struct LayerTape {
  const float* attention_prefix = nullptr;  // [T, D] running sum before the attention
  const float* mlp_prefix = nullptr;        // [T, D] and before the MLP
  float* attention_input = nullptr;         // [T, D] normed; null: computed again
  float* mlp_input = nullptr;               // [T, D]
  KdaTape kda{};
  MlaTape mla{};
  MlpTape mlp;
  MoeTape moe;
};

class Tape {
 public:
  explicit Tape(const TapePolicy& policy = {}) : policy_(policy) {}

  /// Forgets the last forward and makes room for `tokens` tokens. Called by the forward pass.
  void Start(const ModelConfig& config, int64_t tokens);

  const TapePolicy& policy() const { return policy_; }
  Arena& arena() { return arena_; }
  int64_t tokens() const { return tokens_; }

  std::vector<LayerTape> layers;
  std::vector<const float*> bank;      // [T, D] each, oldest first
  const float* last_prefix = nullptr;  // [T, D] running sum after the last layer

 private:
  TapePolicy policy_;
  Arena arena_;
  int64_t tokens_ = 0;
};

}  // namespace k3::model
