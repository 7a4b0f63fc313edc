#include "model/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tensor/number_formats.h"

namespace k3::model {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double Element(const WeightMatrix& w, int64_t r, int64_t c) {
  const int64_t at = r * w.cols + c;
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data);
  if (w.format == WeightFormat::kMxfp4) {
    const uint8_t code = at % 2 == 0 ? bytes[at / 2] & 15 : bytes[at / 2] >> 4;
    return double{kE2m1Values[code]} * std::ldexp(1.0, w.scales[at / 32] - 127);
  }
  if (w.format == WeightFormat::kF32) {
    float value = 0;
    std::memcpy(&value, bytes + 4 * at, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes + 2 * at, 2);
  return w.format == WeightFormat::kBf16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

Row Linear(const WeightMatrix& w, const Row& x) {
  Row y(static_cast<size_t>(w.rows));
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) y[r] += Element(w, r, c) * x[c];
  }
  return y;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Row Rms(const Row& x, const Vector& w, double eps) {
  const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

void AddTo(Row& y, const Row& x, double factor = 1) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += factor * x[i];
}

class Reference {
 public:
  Reference(const ModelConfig& config, const Parameters& p) : c_(config), p_(p) {}

  ReferenceResult Run(const std::vector<int32_t>& tokens) {
    result_.route_margin.assign(tokens.size(), 1e9);
    Rows prefix;
    for (int32_t token : tokens) {
      Row row(static_cast<size_t>(c_.hidden_size));
      for (int64_t i = 0; i < c_.hidden_size; ++i) row[i] = Element(p_.embedding, token, i);
      prefix.push_back(row);
    }
    std::vector<Rows> bank;
    for (int64_t l = 0; l < c_.layers; ++l) Layer(l, bank, prefix);
    const Rows out = Mix(bank, prefix, p_.output_mix);
    for (const Row& row : out) {
      const Row logits = Linear(p_.head, Rms(row, p_.final_norm, c_.rms_norm_eps));
      result_.logits.insert(result_.logits.end(), logits.begin(), logits.end());
    }
    return result_;
  }

 private:
  void Layer(int64_t l, std::vector<Rows>& bank, Rows& prefix) {
    const LayerParameters& p = p_.layers[static_cast<size_t>(l)];
    const bool opens = c_.residual_block > 0 && l % c_.residual_block == 0;
    Rows h = Mix(bank, prefix, p.attention_mix);
    if (opens) bank.push_back(prefix);
    for (Row& row : h) row = Rms(row, p.input_norm, c_.rms_norm_eps);
    const Rows a = c_.is_mla[static_cast<size_t>(l)] ? Mla(p.mla, h) : Kda(p.kda, h);
    for (size_t t = 0; t < h.size(); ++t) {
      if (opens) prefix[t].assign(prefix[t].size(), 0.0);
      AddTo(prefix[t], a[t]);
    }
    h = Mix(bank, prefix, p.mlp_mix);
    Row flat;
    for (size_t t = 0; t < h.size(); ++t) {
      const Row x = Rms(h[t], p.post_attention_norm, c_.rms_norm_eps);
      AddTo(prefix[t], c_.IsDense(l) ? Mlp(p.mlp, x) : Moe(p.moe, x, t));
      flat.insert(flat.end(), prefix[t].begin(), prefix[t].end());
    }
    result_.hidden.push_back(flat);
  }

  Rows Mix(const std::vector<Rows>& bank, const Rows& prefix, const Vector& w) {
    if (bank.empty()) return prefix;
    const Vector ones(static_cast<size_t>(c_.hidden_size), 1.0f);
    Rows out;
    for (size_t t = 0; t < prefix.size(); ++t) {
      std::vector<const Row*> sources;
      for (const Rows& rows : bank) sources.push_back(&rows[t]);
      sources.push_back(&prefix[t]);
      Row p;
      for (const Row* source : sources) {
        const Row normed = Rms(*source, ones, c_.rms_norm_eps);
        p.push_back(std::exp(std::inner_product(normed.begin(), normed.end(), w.begin(), 0.0)));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      Row mixed(prefix[t].size());
      for (size_t s = 0; s < sources.size(); ++s) AddTo(mixed, *sources[s], p[s] / sum);
      out.push_back(mixed);
    }
    return out;
  }

  Rows Convolved(const WeightMatrix& w, const Vector& taps, const Rows& x) {
    Rows u, y;
    for (const Row& row : x) u.push_back(Linear(w, row));
    const int64_t channels = w.rows, count = c_.kda.conv_kernel;
    for (int64_t t = 0; t < static_cast<int64_t>(x.size()); ++t) {
      Row row(static_cast<size_t>(channels));
      for (int64_t j = 0; j < count; ++j) {
        const int64_t from = t - (count - 1) + j;
        if (from < 0) continue;
        for (int64_t c = 0; c < channels; ++c)
          row[c] += double{taps[j * channels + c]} * u[from][c];
      }
      for (double& value : row) value *= Sigmoid(value);
      y.push_back(row);
    }
    return y;
  }

  Rows Kda(const KdaParameters& p, const Rows& x) {
    const int64_t heads = c_.kda.heads, n = c_.kda.head_dim;
    const Rows q = Convolved(p.q, p.conv_q, x), k = Convolved(p.k, p.conv_k, x),
               v = Convolved(p.v, p.conv_v, x);
    std::vector<Row> state(static_cast<size_t>(heads), Row(static_cast<size_t>(n * n)));
    Rows out;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row raw = Linear(p.decay_b, Linear(p.decay_a, x[t])), beta = Linear(p.beta, x[t]);
      const Row gate =
          c_.kda.full_rank_gate ? Linear(p.gate, x[t]) : Linear(p.gate_b, Linear(p.gate_a, x[t]));
      Row joined;
      for (int64_t h = 0; h < heads; ++h) {
        const Row o = KdaHead(p, h, state[h], &q[t][h * n], &k[t][h * n], &v[t][h * n], &raw[h * n],
                              Sigmoid(beta[h]));
        const Row normed = Rms(o, p.output_norm, c_.rms_norm_eps);
        for (int64_t i = 0; i < n; ++i) joined.push_back(normed[i] * Sigmoid(gate[h * n + i]));
      }
      out.push_back(Linear(p.output, joined));
    }
    return out;
  }

  Row KdaHead(const KdaParameters& p, int64_t h, Row& state, const double* q, const double* k,
              const double* v, const double* raw, double beta) {
    const int64_t n = c_.kda.head_dim;
    const double q_norm = std::sqrt(std::inner_product(q, q + n, q, 1e-6) * static_cast<double>(n));
    const double k_norm = std::sqrt(std::inner_product(k, k + n, k, 1e-6));
    Row o(static_cast<size_t>(n)), read(static_cast<size_t>(n));
    for (int64_t d = 0; d < n; ++d) {
      const double z = raw[d] + p.dt_bias[h * n + d], rate = p.rate[h];
      const double g = c_.kda.gate_lower_bound ? *c_.kda.gate_lower_bound * Sigmoid(rate * z)
                                               : -rate * std::log1p(std::exp(z));
      for (int64_t e = 0; e < n; ++e) {
        state[d * n + e] *= std::exp(g);
        read[e] += state[d * n + e] * k[d] / k_norm;
      }
    }
    for (int64_t d = 0; d < n; ++d) {
      for (int64_t e = 0; e < n; ++e) {
        state[d * n + e] += k[d] / k_norm * beta * (v[e] - read[e]);
        o[e] += state[d * n + e] * q[d] / q_norm;
      }
    }
    return o;
  }

  Rows Mla(const MlaParameters& p, const Rows& x) {
    const MlaConfig& m = c_.mla;
    const int64_t key = m.qk_nope_dim + m.qk_rope_dim, row = m.qk_nope_dim + m.v_dim;
    Rows kv, shared, out;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row c = Linear(p.kv_a, x[t]);
      kv.push_back(Linear(
          p.kv_b, Rms(Row(c.begin(), c.begin() + m.kv_lora_rank), p.kv_norm, kLowRankNormEps)));
      shared.push_back(Row(c.begin() + m.kv_lora_rank, c.end()));
      const Row q = m.q_lora_rank > 0
                        ? Linear(p.q_b, Rms(Linear(p.q_a, x[t]), p.q_norm, kLowRankNormEps))
                        : Linear(p.q, x[t]);
      Row joined(static_cast<size_t>(m.heads * m.v_dim));
      for (int64_t h = 0; h < m.heads; ++h) {
        Row weights;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int64_t i = 0; i < key; ++i) {
            const double k = i < m.qk_nope_dim ? kv[s][h * row + i] : shared[s][i - m.qk_nope_dim];
            score += q[h * key + i] * k;
          }
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(key))));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t s = 0; s <= t; ++s) {
          for (int64_t i = 0; i < m.v_dim; ++i) {
            joined[h * m.v_dim + i] += weights[s] / sum * kv[s][h * row + m.qk_nope_dim + i];
          }
        }
      }
      if (m.output_gate) {
        const Row gate = Linear(p.gate, x[t]);
        for (size_t i = 0; i < joined.size(); ++i) joined[i] *= Sigmoid(gate[i]);
      }
      out.push_back(Linear(p.output, joined));
    }
    return out;
  }

  Row Gated(const WeightMatrix& gate, const WeightMatrix& up, const WeightMatrix& down,
            const Row& x) {
    Row g = Linear(gate, x);
    const Row u = Linear(up, x);
    for (size_t i = 0; i < g.size(); ++i) {
      const double b1 = c_.situ_beta, b2 = c_.situ_linear_beta.value_or(0);
      const double linear = b2 != 0 ? b2 * std::tanh(u[i] / b2) : u[i];
      g[i] = b1 * std::tanh(g[i] / b1) * Sigmoid(g[i]) * linear;
    }
    return Linear(down, g);
  }
  Row Mlp(const MlpParameters& p, const Row& x) { return Gated(p.gate, p.up, p.down, x); }

  Row Moe(const MoeParameters& p, const Row& x, size_t token) {
    const MoeConfig& m = c_.moe;
    Row s = Linear(p.router, x);
    for (double& value : s) value = Sigmoid(value);
    std::vector<size_t> order(s.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return s[a] + p.correction_bias[a] > s[b] + p.correction_bias[b];
    });
    const size_t k = static_cast<size_t>(m.experts_per_token);
    if (k < s.size()) {
      const auto biased = [&](size_t i) { return s[order[i]] + p.correction_bias[order[i]]; };
      result_.route_margin[token] =
          std::min(result_.route_margin[token], biased(k - 1) - biased(k));
    }
    double sum = 1;
    if (m.renormalize) {
      sum = 1e-20;
      for (size_t i = 0; i < k; ++i) sum += s[order[i]];
    }
    const Row z = m.latent > 0 ? Linear(p.latent_down, x) : x;
    Row routed(z.size());
    for (size_t i = 0; i < k; ++i) {
      const ExpertParameters& e = p.experts[order[i]];
      AddTo(routed, Gated(e.gate, e.up, e.down, z), s[order[i]] / sum * m.routed_scaling_factor);
    }
    if (m.latent > 0) {
      if (m.latent_norm) routed = Rms(routed, p.latent_norm, c_.rms_norm_eps);
      routed = Linear(p.latent_up, routed);
    }
    if (m.shared_experts > 0) AddTo(routed, Mlp(p.shared, x));
    return routed;
  }

  const ModelConfig& c_;
  const Parameters& p_;
  ReferenceResult result_;
};

}  // namespace

ReferenceResult RunReference(const ModelConfig& config, const Parameters& parameters,
                             const std::vector<int32_t>& tokens) {
  return Reference(config, parameters).Run(tokens);
}

}  // namespace k3::model
