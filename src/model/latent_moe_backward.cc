// Backward of the feed-forward blocks (latent_moe.cc has the forward's formulas). With dr the
// gradient by a token's routed sum, p_e its experts' weights and h_e = SiTU(w1_e z, w3_e z):
//   dp_e = h_e . (w2_e^T dr)      so that no expert's output has to be kept
//   dh_e = p_e w2_e^T dr,  dW2_e += p_e dr h_e^T,  dz += w1_e^T dg_e + w3_e^T du_e
//   ds_e = (dp_e - sum_j p_j dp_j) / sum of the chosen s        (renormalised weights)
#include <algorithm>
#include <array>
#include <cstring>

#include "model/latent_moe.h"
#include "ops/gradients.h"
#include "ops/rows.h"
#include "tensor/number_formats.h"

namespace k3::model {
namespace {

using ops::InputGradientTask;
using ops::InputGradientTerm;
using ops::WeightGradientTask;

/// What SiTU's backward leaves: gradients over gate and up, and the hidden rows once more.
struct SituGradient {
  float* dgate;
  float* dup;
  float* hidden;  // holds the gradient by hidden rows on input
};

void SituBackwardRows(const ops::ExecContext& exec, const ModelConfig& config, const float* gate,
                      const float* up, int64_t count, int64_t n, const SituGradient& g) {
  exec.pool->ParallelFor(count, 4, [&](int64_t begin, int64_t end, int) {
    const int64_t at = begin * n;
    exec.kernels->backward.situ(gate + at, up + at, g.hidden + at, (end - begin) * n,
                                config.situ_beta, config.situ_linear_beta.value_or(0.0f),
                                g.hidden + at, g.dgate + at, g.dup + at);
  });
}

/// An MLP's gradients up to its first matrices; their terms of dx are left to the caller.
struct MlpBackward {
  MlpTape d;  // gradients by gate and up [T, F]

  MlpBackward(const ops::ExecContext& exec, const ModelConfig& config, const MlpParameters& p,
              int64_t tokens, const float* x, const MlpTape& tape, const float* dout,
              MlpGradients& gradients) {
    Arena& arena = *exec.arena;
    const int64_t f = p.gate.rows, d_model = config.hidden_size;
    d = tape;
    if (d.gate == nullptr) {
      d = {arena.Allocate<float>(tokens * f), arena.Allocate<float>(tokens * f)};
      const ops::RowSet rows = ops::SplitRows(exec, x, tokens, d_model, d_model);
      const std::array<ops::LinearTask, 2> tasks = {
          {{&rows, p.gate, d.gate, f}, {&rows, p.up, d.up, f}}};
      ops::Linear(exec, tasks);
    }
    float* hidden = arena.Allocate<float>(tokens * f);
    const InputGradientTerm down{dout, d_model, p.down};
    const InputGradientTask task{{&down, 1}, tokens, hidden, f};
    ops::LinearInputGradient(exec, {&task, 1});
    SituBackwardRows(exec, config, d.gate, d.up, tokens, f, {d.gate, d.up, hidden});
    const std::array<WeightGradientTask, 3> weights = {
        {{dout, d_model, hidden, f, tokens, gradients.down},
         {d.gate, f, x, d_model, tokens, gradients.gate},
         {d.up, f, x, d_model, tokens, gradients.up}}};
    ops::LinearWeightGradient(exec, weights);
  }
};

/// One LatentMoE's routed part on its way back.
class RoutedBackward {
 public:
  RoutedBackward(const ForwardContext& ctx, const ModelConfig& config, const MoeParameters& p,
                 int64_t tokens, const MoeTape& tape)
      : ctx_(ctx),
        exec_(ctx.exec),
        config_(config),
        moe_(config.moe),
        p_(p),
        tokens_(tokens),
        pairs_(tokens * config.moe.experts_per_token),
        width_(moe_.latent > 0 ? moe_.latent : config.hidden_size),
        tape_(tape) {}

  /// From dr [T, L] by the routed sums and z [T, L], the experts' inputs: dz [T, L], dlogits [T,
  /// E].
  void Run(const float* dr, const float* z, float* dz, float* dlogits, MoeGradients& gradients) {
    Arena& arena = *exec_.arena;
    const int64_t f = moe_.intermediate;
    float* z_pairs = arena.Allocate<float>(pairs_ * width_);
    float* dr_pairs = arena.Allocate<float>(pairs_ * width_);
    Gather(z, z_pairs);
    Gather(dr, dr_pairs);
    float *gate = tape_.gate, *up = tape_.up;
    if (gate == nullptr) {
      gate = arena.Allocate<float>(pairs_ * f);
      up = arena.Allocate<float>(pairs_ * f);
      FirstHalfAgain(z_pairs, gate, up);
    }
    float* hidden = arena.Allocate<float>(pairs_ * f);
    float* dweights = arena.Allocate<float>(pairs_);  // by place
    EachExpert([&](const ExpertParameters& expert, int64_t) { return Terms{expert.down, {}}; },
               dr_pairs, nullptr, width_, hidden, f);
    HiddenBackward(gate, up, hidden, dweights);
    WeightGradients(dr_pairs, z_pairs, gate, up, hidden, gradients);
    // dr is used up, so its rows take the experts' gradients.
    EachExpert(
        [&](const ExpertParameters& expert, int64_t) { return Terms{expert.gate, expert.up}; },
        gate, up, f, dr_pairs, width_);
    SumPairs(dr_pairs, dz);
    RouterBackward(dweights, dlogits);
  }

 private:
  struct Terms {
    WeightMatrix first, second;
  };

  int64_t First(int64_t e) const { return tape_.routing.first[e]; }
  int64_t Rows(int64_t e) const { return First(e + 1) - First(e); }

  void Gather(const float* rows, float* by_place) {
    exec_.pool->ParallelFor(pairs_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(rows + tape_.routing.token[i] * width_, width_, by_place + i * width_);
      }
    });
  }

  void FirstHalfAgain(const float* z_pairs, float* gate, float* up) {
    ArenaScope scope(*exec_.arena);
    const int64_t f = moe_.intermediate;
    std::span<ops::RowSet> sets = exec_.arena->AllocateSpan<ops::RowSet>(moe_.experts);
    std::span<ops::LinearTask> tasks = exec_.arena->AllocateSpan<ops::LinearTask>(2 * moe_.experts);
    size_t count = 0;
    for (int64_t e = 0; e < moe_.experts; ++e) {
      if (Rows(e) == 0) continue;
      const ExpertParameters& expert = p_.experts[static_cast<size_t>(e)];
      sets[count] = ops::SplitRows(exec_, z_pairs + First(e) * width_, Rows(e), width_, width_);
      tasks[2 * count] = {&sets[count], expert.gate, gate + First(e) * f, f};
      tasks[2 * count + 1] = {&sets[count], expert.up, up + First(e) * f, f};
      ++count;
    }
    ops::Linear(exec_, tasks.first(2 * count));
  }

  /// dx = dy1 W1 (+ dy2 W2) with every expert's own matrices; dy [pairs, n], dx [pairs, k].
  template <typename TermsOf>
  void EachExpert(const TermsOf& terms_of, const float* dy1, const float* dy2, int64_t n, float* dx,
                  int64_t k) {
    ArenaScope scope(*exec_.arena);
    std::span<InputGradientTerm> terms =
        exec_.arena->AllocateSpan<InputGradientTerm>(2 * moe_.experts);
    std::span<InputGradientTask> tasks = exec_.arena->AllocateSpan<InputGradientTask>(moe_.experts);
    size_t count = 0, used = 0;
    for (int64_t e = 0; e < moe_.experts; ++e) {
      if (Rows(e) == 0) continue;
      const Terms matrices = terms_of(p_.experts[static_cast<size_t>(e)], e);
      const size_t begin = used;
      terms[used++] = {dy1 + First(e) * n, n, matrices.first};
      if (dy2 != nullptr) terms[used++] = {dy2 + First(e) * n, n, matrices.second};
      tasks[count++] = {terms.subspan(begin, used - begin), Rows(e), dx + First(e) * k, k, false};
    }
    ops::LinearInputGradient(exec_, tasks.first(count));
  }

  /// From w2^T dr in `hidden`: gradients over gate and up, by the routing weights, and in `hidden`
  /// the hidden rows times their weights.
  void HiddenBackward(float* gate, float* up, float* hidden, float* dweights) {
    const int64_t f = moe_.intermediate, k = moe_.experts_per_token;
    float* again = exec_.arena->Allocate<float>(pairs_ * f);
    exec_.pool->ParallelFor(tokens_ * k, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        // In token-major order, where the weights are.
        const int64_t place = tape_.routing.slot[i];
        const float weight = tape_.routing.weights[i];
        float *g = gate + place * f, *u = up + place * f, *y = again + place * f;
        float* dy = hidden + place * f;
        const auto& e = exec_.kernels->elementwise;
        exec_.kernels->backward.situ(g, u, dy, f, config_.situ_beta,
                                     config_.situ_linear_beta.value_or(0.0f), y, g, u);
        if (ctx_.mxfp8_expert_inputs) FakeQuantMxfp8Row({y, static_cast<size_t>(f)}, y);
        dweights[place] = e.dot(dy, y, f);
        e.scale(weight, g, f, g);
        e.scale(weight, u, f, u);
        e.scale(weight, y, f, dy);
      }
    });
  }

  void WeightGradients(const float* dr_pairs, const float* z_pairs, const float* dgate,
                       const float* dup, const float* hidden, MoeGradients& gradients) {
    ArenaScope scope(*exec_.arena);
    const int64_t f = moe_.intermediate;
    std::span<WeightGradientTask> tasks =
        exec_.arena->AllocateSpan<WeightGradientTask>(3 * moe_.experts);
    size_t count = 0;
    for (int64_t e = 0; e < moe_.experts; ++e) {
      const int64_t rows = Rows(e), first = First(e);
      if (rows == 0) continue;
      ExpertGradients& g = gradients.experts[static_cast<size_t>(e)];
      const float* z = z_pairs + first * width_;
      tasks[count++] = {dr_pairs + first * width_, width_, hidden + first * f, f, rows, g.down};
      tasks[count++] = {dgate + first * f, f, z, width_, rows, g.gate};
      tasks[count++] = {dup + first * f, f, z, width_, rows, g.up};
    }
    ops::LinearWeightGradient(exec_, tasks.first(count));
  }

  /// A token's gradient is the sum over its experts in ascending order.
  void SumPairs(const float* by_place, float* dz) {
    const int64_t k = moe_.experts_per_token;
    exec_.pool->ParallelFor(tokens_, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        float* sum = dz + t * width_;
        std::copy_n(by_place + tape_.routing.slot[t * k] * width_, width_, sum);
        for (int64_t i = t * k + 1; i < (t + 1) * k; ++i) {
          exec_.kernels->elementwise.add(by_place + tape_.routing.slot[i] * width_, width_, sum);
        }
      }
    });
  }

  void RouterBackward(const float* dweights, float* dlogits) {
    const Routing& r = tape_.routing;
    const int64_t k = moe_.experts_per_token, experts = moe_.experts;
    exec_.pool->ParallelFor(tokens_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const float* s = tape_.scores + t * experts;
        float* d = dlogits + t * experts;
        std::fill_n(d, experts, 0.0f);
        float sum = 0, mean = 0;
        for (int64_t i = t * k; i < (t + 1) * k; ++i) sum += s[r.experts[i]];
        sum += 1e-20f;
        for (int64_t i = t * k; i < (t + 1) * k; ++i) {
          mean += dweights[r.slot[i]] * (s[r.experts[i]] / sum);
        }
        for (int64_t i = t * k; i < (t + 1) * k; ++i) {
          const float score = s[r.experts[i]];
          const float ds =
              moe_.renormalize ? (dweights[r.slot[i]] - mean) / sum : dweights[r.slot[i]];
          d[r.experts[i]] = moe_.routed_scaling_factor * ds * score * (1.0f - score);
        }
      }
    });
  }

  const ForwardContext& ctx_;
  const ops::ExecContext& exec_;
  const ModelConfig& config_;
  const MoeConfig& moe_;
  const MoeParameters& p_;
  const int64_t tokens_;
  const int64_t pairs_;
  const int64_t width_;
  const MoeTape& tape_;
};

/// From dout [T, D] to dr [T, L], through W_up and the latent norm.
const float* LatentUpBackward(const ops::ExecContext& exec, const ModelConfig& config,
                              const MoeParameters& p, int64_t tokens, const MoeTape& tape,
                              const float* dout, MoeGradients& gradients) {
  const int64_t width = config.moe.latent, d = config.hidden_size;
  if (width == 0) return dout;
  Arena& arena = *exec.arena;
  float* dr = arena.Allocate<float>(tokens * width);
  const InputGradientTerm term{dout, d, p.latent_up};
  const InputGradientTask task{{&term, 1}, tokens, dr, width};
  ops::LinearInputGradient(exec, {&task, 1});
  const float* normed = tape.routed;
  if (config.moe.latent_norm) {
    float* again = arena.Allocate<float>(tokens * width);
    ops::SumOverRows(
        exec, tokens, width,
        [&](int64_t begin, int64_t end, float* partial, int) {
          for (int64_t t = begin; t < end; ++t) {
            const float* row = tape.routed + t * width;
            exec.kernels->elementwise.rms_norm(row, p.latent_norm.data(), width,
                                               config.rms_norm_eps, again + t * width);
            exec.kernels->backward.rms_norm(row, p.latent_norm.data(), dr + t * width, width,
                                            config.rms_norm_eps, dr + t * width, partial);
          }
        },
        gradients.latent_norm.data());
    normed = again;
  }
  const WeightGradientTask weight{dout, d, normed, width, tokens, gradients.latent_up};
  ops::LinearWeightGradient(exec, {&weight, 1});
  return dr;
}

}  // namespace

void DenseMlpBackward(const ops::ExecContext& exec, const ModelConfig& config,
                      const MlpParameters& parameters, int64_t tokens, const float* x,
                      const MlpTape& tape, const float* dout, float* dx, MlpGradients& gradients) {
  ArenaScope scope(*exec.arena);
  const int64_t f = parameters.gate.rows;
  const MlpBackward mlp(exec, config, parameters, tokens, x, tape, dout, gradients);
  const std::array<InputGradientTerm, 2> terms = {
      {{mlp.d.gate, f, parameters.gate}, {mlp.d.up, f, parameters.up}}};
  const InputGradientTask task{terms, tokens, dx, config.hidden_size};
  ops::LinearInputGradient(exec, {&task, 1});
}

void LatentMoeBackward(const ForwardContext& ctx, const ModelConfig& config,
                       const MoeParameters& parameters, int64_t tokens, const float* x,
                       const MoeTape& tape, const float* dout, float* dx, MoeGradients& gradients) {
  const ops::ExecContext& exec = ctx.exec;
  ArenaScope scope(*exec.arena);
  Arena& arena = *exec.arena;
  const MoeConfig& moe = config.moe;
  const MoeParameters& p = parameters;
  const int64_t d = config.hidden_size, width = moe.latent > 0 ? moe.latent : d;
  std::array<InputGradientTerm, 4> terms;
  std::array<WeightGradientTask, 2> weights;
  size_t terms_count = 0, weights_count = 0;

  MlpTape shared;
  if (moe.shared_experts > 0) {
    shared = MlpBackward(exec, config, p.shared, tokens, x, tape.shared, dout, gradients.shared).d;
    const int64_t f = p.shared.gate.rows;
    terms[terms_count++] = {shared.gate, f, p.shared.gate};
    terms[terms_count++] = {shared.up, f, p.shared.up};
  }
  const float* dr = LatentUpBackward(exec, config, p, tokens, tape, dout, gradients);
  float* dlogits = arena.Allocate<float>(tokens * moe.experts);
  // Without a latent the experts read x itself, and their gradient is a part of dx already.
  float* dz = moe.latent > 0 ? arena.Allocate<float>(tokens * width) : dx;
  {
    ArenaScope routed_scope(arena);
    RoutedBackward(ctx, config, p, tokens, tape)
        .Run(dr, moe.latent > 0 ? tape.latent : x, dz, dlogits, gradients);
  }
  terms[terms_count++] = {dlogits, moe.experts, p.router};
  weights[weights_count++] = {dlogits, moe.experts, x, d, tokens, gradients.router};
  if (moe.latent > 0) {
    terms[terms_count++] = {dz, width, p.latent_down};
    weights[weights_count++] = {dz, width, x, d, tokens, gradients.latent_down};
  }
  const InputGradientTask task{std::span(terms).first(terms_count), tokens, dx, d, moe.latent == 0};
  ops::LinearInputGradient(exec, {&task, 1});
  ops::LinearWeightGradient(exec, std::span(weights).first(weights_count));
}

}  // namespace k3::model
