#pragma once
// Parameters: the network's weights as one struct of typed views, bound by name and checked against
// the configuration once. Matrices are views of the mapped checkpoint, which must outlive them;
// vectors are float32 copies. Read-only after binding, so any number of threads may share it.
// Names and shapes: spec of the released checkpoint, docs/formats.md.

#include <vector>

#include "base/status.h"
#include "config/model_config.h"
#include "tensor/weight_matrix.h"
#include "weights/weights.h"

namespace k3::model {

using Vector = std::vector<float>;

/// Kimi Delta Attention. H heads, K = head_dim, C = H K channels.
struct KdaParameters {
  WeightMatrix q, k, v;           // [C, D]
  WeightMatrix decay_a;           // f_a [K, D]
  WeightMatrix decay_b;           // f_b [C, K]
  WeightMatrix beta;              // b [H, D]
  WeightMatrix gate;              // g [C, D], full rank
  WeightMatrix gate_a;            // or low rank: g_a [K, D]
  WeightMatrix gate_b;            // g_b [C, K]
  WeightMatrix output;            // o [D, C]
  Vector conv_q, conv_k, conv_v;  // transposed to [taps, C]
  Vector rate;                    // exp(A_log) [H]
  Vector dt_bias;                 // [C]
  Vector output_norm;             // [K]
};

/// Gated MLA without positions. H heads, L latent, N nope dims, R rope dims, V value dims.
struct MlaParameters {
  WeightMatrix q;       // [H (N + R), D], when there is no low-rank query path
  WeightMatrix q_a;     // [q_lora_rank, D]
  WeightMatrix q_b;     // [H (N + R), q_lora_rank]
  WeightMatrix kv_a;    // [L + R, D]
  WeightMatrix kv_b;    // [H (N + V), L], per head N key rows, then V value rows
  WeightMatrix gate;    // g [H V, D], empty without an output gate
  WeightMatrix output;  // o [D, H V]
  Vector q_norm;        // [q_lora_rank]
  Vector kv_norm;       // [L]
};

struct MlpParameters {
  WeightMatrix gate, up;  // [F, D]
  WeightMatrix down;      // [D, F]
};

struct ExpertParameters {
  WeightMatrix gate, up;  // w1, w3 [F, L]
  WeightMatrix down;      // w2 [L, F]
};

struct MoeParameters {
  WeightMatrix router;       // [E, D]
  Vector correction_bias;    // [E], for choosing only
  WeightMatrix latent_down;  // [L, D]; empty when experts work on the full width
  WeightMatrix latent_up;    // [D, L]
  Vector latent_norm;        // [L]; empty without the norm
  MlpParameters shared;      // width F x shared experts; empty without shared experts
  std::vector<ExpertParameters> experts;
};

struct LayerParameters {
  Vector input_norm, post_attention_norm;  // [D]
  Vector attention_mix, mlp_mix;           // [D] norm weight x query; empty for plain residuals
  KdaParameters kda;                       // one of the two attentions is bound
  MlaParameters mla;
  MlpParameters mlp;  // one of the two feed-forwards is bound
  MoeParameters moe;
};

struct Parameters {
  WeightMatrix embedding;  // [V, D]
  std::vector<LayerParameters> layers;
  Vector output_mix;  // [D]; empty for plain residuals
  Vector final_norm;  // [D]
  WeightMatrix head;  // [V, D]
};

/// Binds every weight that `weights.config()` asks for. A missing, misshapen or damaged tensor is a
/// failure that names it.
Result<Parameters> BindParameters(const WeightStore& weights);

}  // namespace k3::model
