// Stable LatentMoE (technical report 2.3):
//   s = sigmoid(W_router x);  chosen = top-k of s + bias;  p = s / sum of the chosen s, scaled
//   z = W_down x                                   the latent, half as wide
//   r = sum_e p_e w2_e SiTU(w1_e z, w3_e z)        in ascending expert order
//   y = W_up RMS(r) + shared(x)                    the norm stands before the way back
#include "model/latent_moe.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/rows.h"
#include "ops/top_k.h"
#include "tensor/number_formats.h"

namespace k3::model {
namespace {

ops::SituOptions Situ(const ModelConfig& config, bool mxfp8 = false) {
  return {.beta = config.situ_beta,
          .linear_beta = config.situ_linear_beta.value_or(0.0f),
          .mxfp8 = mxfp8};
}

/// Routes by scores [T, E]: sigmoids, on input the logits.
void Route(const ops::ExecContext& exec, const MoeConfig& moe, const Vector& bias, int64_t tokens,
           float* scores, const Routing& r) {
  const int64_t e = moe.experts, k = moe.experts_per_token;
  Arena& arena = *exec.arena;
  float* biased = arena.Allocate<float>(tokens * e);
  exec.pool->ParallelFor(tokens, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* s = scores + t * e;
      float* b = biased + t * e;
      exec.kernels->elementwise.sigmoid(s, e, s);
      std::copy(bias.begin(), bias.end(), b);
      exec.kernels->elementwise.add(s, e, b);
      int32_t* chosen = r.experts + t * k;
      ops::TopK({b, static_cast<size_t>(e)}, {chosen, static_cast<size_t>(k)});
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += s[chosen[i]];
      const float scale = moe.routed_scaling_factor / (moe.renormalize ? sum + 1e-20f : 1.0f);
      for (int64_t i = 0; i < k; ++i) r.weights[t * k + i] = s[chosen[i]] * scale;
    }
  });
  std::fill_n(r.first, e + 1, 0);
  for (int64_t i = 0; i < tokens * k; ++i) ++r.first[r.experts[i] + 1];
  for (int64_t i = 0; i < e; ++i) r.first[i + 1] += r.first[i];
  int32_t* next = arena.Allocate<int32_t>(e);
  std::copy(r.first, r.first + e, next);
  for (int64_t i = 0; i < tokens * k; ++i) {
    r.slot[i] = next[r.experts[i]]++;
    r.token[r.slot[i]] = static_cast<int32_t>(i / k);
  }
}

Status PrepareExperts(const ForwardContext& ctx, int64_t layer, int64_t experts,
                      const Routing& routing) {
  if (ctx.experts == nullptr) return OkStatus();
  int32_t* chosen = ctx.exec.arena->Allocate<int32_t>(experts);
  size_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (routing.first[e + 1] > routing.first[e]) chosen[count++] = static_cast<int32_t>(e);
  }
  return ctx.experts->Prepare(layer, {chosen, count});
}

/// The experts that have tokens, with their rows of a set.
struct Group {
  int64_t expert;
  int64_t first;  // place in expert-major order
  ops::RowSet rows;
};

/// Where the experts' first half goes, by place.
struct ExpertArrays {
  float* gate;    // [T k, F]
  float* up;      // [T k, F]
  float* hidden;  // [T k, F] after SiTU; may be gate
};

/// Runs the chosen experts on latent rows z; y [T k, latent] by place. The shared MLP's second half
/// rides along, so that the threads meet once less.
void RunExperts(const ops::ExecContext& exec, const ModelConfig& config, const MoeParameters& p,
                const Routing& routing, const ops::RowSet& z, const ops::SituOptions& situ,
                const ops::LinearTask& shared_down, const ExpertArrays& arrays, float* y) {
  const MoeConfig& moe = config.moe;
  const int64_t f = moe.intermediate, pairs = z.count * moe.experts_per_token;
  Arena& arena = *exec.arena;
  std::span<Group> groups = arena.AllocateSpan<Group>(moe.experts);
  std::span<ops::RowSet> sets = arena.AllocateSpan<ops::RowSet>(moe.experts);
  size_t count = 0;
  for (int64_t e = 0; e < moe.experts; ++e) {
    const int64_t first = routing.first[e], rows = routing.first[e + 1] - first;
    if (rows == 0) continue;
    sets[count] = ops::GatherRows(exec, z, {routing.token + first, static_cast<size_t>(rows)});
    groups[count++] = {e, first, {}};
  }
  sets = sets.first(count);
  groups = groups.first(count);
  ops::PackPanels(exec, sets);

  std::span<ops::LinearTask> tasks =
      arena.AllocateSpan<ops::LinearTask>(2 * static_cast<int64_t>(count) + 1);
  for (size_t g = 0; g < count; ++g) {
    const ExpertParameters& expert = p.experts[static_cast<size_t>(groups[g].expert)];
    tasks[2 * g] = {&sets[g], expert.gate, arrays.gate + groups[g].first * f, f};
    tasks[2 * g + 1] = {&sets[g], expert.up, arrays.up + groups[g].first * f, f};
  }
  ops::Linear(exec, tasks.first(2 * count));

  const ops::RowSet hidden =
      ops::SituRows(exec, arrays.gate, arrays.up, pairs, f, situ, arrays.hidden);
  const int64_t width = z.k;
  for (size_t g = 0; g < count; ++g) {
    const int64_t rows = sets[g].count;
    groups[g].rows = {hidden.rows + groups[g].first, rows, f, nullptr};
    sets[g] = groups[g].rows;
  }
  ops::PackPanels(exec, sets);
  for (size_t g = 0; g < count; ++g) {
    const ExpertParameters& expert = p.experts[static_cast<size_t>(groups[g].expert)];
    tasks[g] = {&sets[g], expert.down, y + groups[g].first * width, width};
  }
  tasks[count] = shared_down;
  ops::Linear(exec, tasks.first(count + (shared_down.x != nullptr ? 1 : 0)));
}

void QuantiseRows(const ops::ExecContext& exec, float* rows, int64_t count, int64_t n) {
  exec.pool->ParallelFor(count, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      FakeQuantMxfp8Row({rows + t * n, static_cast<size_t>(n)}, rows + t * n);
    }
  });
}

/// out [T, width]: each token's experts, weighted and summed in ascending expert order.
void Combine(const ops::ExecContext& exec, const Routing& routing, int64_t tokens, int64_t k,
             int64_t width, const float* y, float* out) {
  exec.pool->ParallelFor(tokens, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = out + t * width;
      std::memset(sum, 0, static_cast<size_t>(width) * sizeof(float));
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        exec.kernels->elementwise.scaled_add(routing.weights[i], y + routing.slot[i] * width, width,
                                             sum);
      }
    }
  });
}

}  // namespace

Routing Routing::Allocate(Arena& arena, const MoeConfig& moe, int64_t tokens) {
  const int64_t pairs = tokens * moe.experts_per_token;
  return {arena.Allocate<int32_t>(pairs), arena.Allocate<float>(pairs),
          arena.Allocate<int32_t>(pairs), arena.Allocate<int32_t>(pairs),
          arena.Allocate<int32_t>(moe.experts + 1)};
}

MoeTape MoeTape::Allocate(Arena& arena, const ModelConfig& config, int64_t tokens,
                          bool keep_experts, bool keep_shared) {
  const MoeConfig& moe = config.moe;
  const int64_t width = moe.latent > 0 ? moe.latent : config.hidden_size;
  const int64_t pairs = tokens * moe.experts_per_token, f = moe.intermediate;
  MoeTape tape;
  tape.routing = Routing::Allocate(arena, moe, tokens);
  tape.scores = arena.Allocate<float>(tokens * moe.experts);
  if (moe.latent > 0) tape.latent = arena.Allocate<float>(tokens * width);
  tape.routed = arena.Allocate<float>(tokens * width);
  if (keep_experts) {
    tape.gate = arena.Allocate<float>(pairs * f);
    tape.up = arena.Allocate<float>(pairs * f);
  }
  if (keep_shared && moe.shared_experts > 0) {
    tape.shared.gate = arena.Allocate<float>(tokens * f * moe.shared_experts);
    tape.shared.up = arena.Allocate<float>(tokens * f * moe.shared_experts);
  }
  return tape;
}

void DenseMlp(const ops::ExecContext& exec, const ModelConfig& config,
              const MlpParameters& parameters, const ops::RowSet& x, float* out, MlpTape* tape) {
  ArenaScope scope(*exec.arena);
  const int64_t f = parameters.gate.rows;
  const bool keep = tape != nullptr && tape->gate != nullptr;
  float* gate = keep ? tape->gate : exec.arena->Allocate<float>(x.count * f);
  float* up = keep ? tape->up : exec.arena->Allocate<float>(x.count * f);
  const std::array<ops::LinearTask, 2> in = {
      {{&x, parameters.gate, gate, f}, {&x, parameters.up, up, f}}};
  ops::Linear(exec, in);
  float* y = keep ? exec.arena->Allocate<float>(x.count * f) : gate;
  const ops::RowSet hidden = ops::SituRows(exec, gate, up, x.count, f, Situ(config), y);
  const ops::LinearTask down{&hidden, parameters.down, out, config.hidden_size};
  ops::Linear(exec, {&down, 1});
}

Status LatentMoe(const ForwardContext& ctx, const ModelConfig& config,
                 const MoeParameters& parameters, int64_t layer, const ops::RowSet& x, float* out,
                 MoeTape* tape) {
  const ops::ExecContext& exec = ctx.exec;
  ArenaScope scope(*exec.arena);
  const MoeConfig& moe = config.moe;
  const MoeParameters& p = parameters;
  Arena& arena = *exec.arena;
  const bool has_latent = moe.latent > 0, has_shared = moe.shared_experts > 0;
  const int64_t t = x.count, d = config.hidden_size, k = moe.experts_per_token;
  const int64_t width = has_latent ? moe.latent : d, f = moe.intermediate * moe.shared_experts;

  // Without a tape everything is scratch; what a tape does not keep is, too.
  MoeTape kept = tape != nullptr ? *tape : MoeTape::Allocate(arena, config, t, true, true);
  if (kept.gate == nullptr) {
    kept.gate = arena.Allocate<float>(t * k * moe.intermediate);
    kept.up = arena.Allocate<float>(t * k * moe.intermediate);
  }
  if (kept.shared.gate == nullptr) {
    kept.shared = {arena.Allocate<float>(t * f), arena.Allocate<float>(t * f)};
  }
  std::array<ops::LinearTask, 4> in;
  size_t in_count = 0;
  in[in_count++] = {&x, p.router, kept.scores, moe.experts};
  if (has_latent) in[in_count++] = {&x, p.latent_down, kept.latent, width};
  if (has_shared) {
    in[in_count++] = {&x, p.shared.gate, kept.shared.gate, f};
    in[in_count++] = {&x, p.shared.up, kept.shared.up, f};
  }
  ops::Linear(exec, std::span(in).first(in_count));

  const Routing& routing = kept.routing;
  Route(exec, moe, p.correction_bias, t, kept.scores, routing);
  if (ctx.observer != nullptr) {
    ctx.observer->OnRoute(layer, {routing.experts, static_cast<size_t>(t * k)});
  }
  K3_RETURN_IF_ERROR(PrepareExperts(ctx, layer, moe.experts, routing));
  if (has_latent && ctx.mxfp8_expert_inputs) QuantiseRows(exec, kept.latent, t, width);
  const ops::RowSet z = has_latent ? ops::SplitRows(exec, kept.latent, t, width, width) : x;
  ops::RowSet shared;
  ops::LinearTask shared_down;
  float* shared_out = arena.Allocate<float>(t * d);
  if (has_shared) {
    float* y = tape != nullptr ? arena.Allocate<float>(t * f) : kept.shared.gate;
    shared = ops::SituRows(exec, kept.shared.gate, kept.shared.up, t, f, Situ(config), y);
    shared_down = {&shared, p.shared.down, shared_out, d};
  }
  float* expert_out = arena.Allocate<float>(t * k * width);
  float* hidden = tape != nullptr ? arena.Allocate<float>(t * k * moe.intermediate) : kept.gate;
  RunExperts(exec, config, p, routing, z, Situ(config, ctx.mxfp8_expert_inputs), shared_down,
             {kept.gate, kept.up, hidden}, expert_out);

  if (has_latent) {
    Combine(exec, routing, t, k, width, expert_out, kept.routed);
    const ops::RowSet r =
        moe.latent_norm ? ops::NormRows(exec, kept.routed, t, p.latent_norm, config.rms_norm_eps)
                        : ops::SplitRows(exec, kept.routed, t, width, width);
    const ops::LinearTask up{&r, p.latent_up, out, d};
    ops::Linear(exec, {&up, 1});
  } else {
    Combine(exec, routing, t, k, width, expert_out, out);
  }
  if (has_shared) ops::AddRows(exec, shared_out, t, d, out);
  return OkStatus();
}

}  // namespace k3::model
