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
template <typename Matrix>
struct KdaParametersOf {
  Matrix q, k, v;                 // [C, D]
  Matrix decay_a;                 // f_a [K, D]
  Matrix decay_b;                 // f_b [C, K]
  Matrix beta;                    // b [H, D]
  Matrix gate;                    // g [C, D], full rank
  Matrix gate_a;                  // or low rank: g_a [K, D]
  Matrix gate_b;                  // g_b [C, K]
  Matrix output;                  // o [D, C]
  Vector conv_q, conv_k, conv_v;  // transposed to [taps, C]
  Vector rate;                    // exp(A_log) [H]
  Vector dt_bias;                 // [C]
  Vector output_norm;             // [K]
};

/// Gated MLA without positions. H heads, L latent, N nope dims, R rope dims, V value dims.
template <typename Matrix>
struct MlaParametersOf {
  Matrix q;        // [H (N + R), D], when there is no low-rank query path
  Matrix q_a;      // [q_lora_rank, D]
  Matrix q_b;      // [H (N + R), q_lora_rank]
  Matrix kv_a;     // [L + R, D]
  Matrix kv_b;     // [H (N + V), L], per head N key rows, then V value rows
  Matrix gate;     // g [H V, D], empty without an output gate
  Matrix output;   // o [D, H V]
  Vector q_norm;   // [q_lora_rank]
  Vector kv_norm;  // [L]
};

template <typename Matrix>
struct MlpParametersOf {
  Matrix gate, up;  // [F, D]
  Matrix down;      // [D, F]
};

template <typename Matrix>
struct ExpertParametersOf {
  Matrix gate, up;  // w1, w3 [F, L]
  Matrix down;      // w2 [L, F]
};

template <typename Matrix>
struct MoeParametersOf {
  Matrix router;                   // [E, D]
  Vector correction_bias;          // [E], for choosing only
  Matrix latent_down;              // [L, D]; empty when experts work on the full width
  Matrix latent_up;                // [D, L]
  Vector latent_norm;              // [L]; empty without the norm
  MlpParametersOf<Matrix> shared;  // width F x shared experts; empty without shared experts
  std::vector<ExpertParametersOf<Matrix>> experts;
};

template <typename Matrix>
struct LayerParametersOf {
  Vector input_norm, post_attention_norm;  // [D]
  Vector attention_mix, mlp_mix;           // [D] norm weight x query; empty for plain residuals
  KdaParametersOf<Matrix> kda;             // one of the two attentions is bound
  MlaParametersOf<Matrix> mla;
  MlpParametersOf<Matrix> mlp;  // one of the two feed-forwards is bound
  MoeParametersOf<Matrix> moe;
};

template <typename Matrix>
struct ParametersOf {
  Matrix embedding;  // [V, D]
  std::vector<LayerParametersOf<Matrix>> layers;
  Vector output_mix;  // [D]; empty for plain residuals
  Vector final_norm;  // [D]
  Matrix head;        // [V, D]
};

using KdaParameters = KdaParametersOf<WeightMatrix>;
using MlaParameters = MlaParametersOf<WeightMatrix>;
using MlpParameters = MlpParametersOf<WeightMatrix>;
using ExpertParameters = ExpertParametersOf<WeightMatrix>;
using MoeParameters = MoeParametersOf<WeightMatrix>;
using LayerParameters = LayerParametersOf<WeightMatrix>;
using Parameters = ParametersOf<WeightMatrix>;

// Gradients have the form of the parameters, element for element: that of `rate` is by exp(A_log),
// that of a mix by its product vector, that of a convolution is transposed. Backward passes add to
// them; whoever owns them zeroes them.
using KdaGradients = KdaParametersOf<GradientMatrix>;
using MlaGradients = MlaParametersOf<GradientMatrix>;
using MlpGradients = MlpParametersOf<GradientMatrix>;
using ExpertGradients = ExpertParametersOf<GradientMatrix>;
using MoeGradients = MoeParametersOf<GradientMatrix>;
using LayerGradients = LayerParametersOf<GradientMatrix>;
using Gradients = ParametersOf<GradientMatrix>;

/// Binds every weight that `weights.config()` asks for. A missing, misshapen or damaged tensor is a
/// failure that names it.
Result<Parameters> BindParameters(const WeightStore& weights);

}  // namespace k3::model
