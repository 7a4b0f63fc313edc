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

namespace k3::model {
namespace {

ops::SituOptions Situ(const ModelConfig& config) {
  return {.beta = config.situ_beta, .linear_beta = config.situ_linear_beta.value_or(0.0f)};
}

/// Which experts each token goes to, and which tokens each expert gets.
struct Routing {
  int32_t* experts;  // [T, k] ascending
  float* weights;    // [T, k]
  int32_t* slot;     // [T, k] place of the pair in expert-major order
  int32_t* token;    // [T k] token of each place
  int32_t* first;    // [E + 1] an expert's first place
};

/// Routes by scores [T, E]: sigmoids, on input the logits.
Routing Route(const ops::ExecContext& exec, const MoeConfig& moe, const Vector& bias,
              int64_t tokens, float* scores) {
  const int64_t e = moe.experts, k = moe.experts_per_token;
  Arena& arena = *exec.arena;
  Routing r{arena.Allocate<int32_t>(tokens * k), arena.Allocate<float>(tokens * k),
            arena.Allocate<int32_t>(tokens * k), arena.Allocate<int32_t>(tokens * k),
            arena.Allocate<int32_t>(e + 1)};
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
  return r;
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

/// Runs the chosen experts on latent rows z; y [T k, latent] in expert-major order. The shared
/// MLP's second half rides along, so that the threads meet once less.
void RunExperts(const ops::ExecContext& exec, const ModelConfig& config, const MoeParameters& p,
                const Routing& routing, const ops::RowSet& z, const ops::LinearTask& shared_down,
                float* y) {
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

  float* gate = arena.Allocate<float>(pairs * f);
  float* up = arena.Allocate<float>(pairs * f);
  std::span<ops::LinearTask> tasks =
      arena.AllocateSpan<ops::LinearTask>(2 * static_cast<int64_t>(count) + 1);
  for (size_t g = 0; g < count; ++g) {
    const ExpertParameters& expert = p.experts[static_cast<size_t>(groups[g].expert)];
    tasks[2 * g] = {&sets[g], expert.gate, gate + groups[g].first * f, f};
    tasks[2 * g + 1] = {&sets[g], expert.up, up + groups[g].first * f, f};
  }
  ops::Linear(exec, tasks.first(2 * count));

  const ops::RowSet hidden = ops::SituRows(exec, gate, up, pairs, f, Situ(config));
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

void DenseMlp(const ops::ExecContext& exec, const ModelConfig& config,
              const MlpParameters& parameters, const ops::RowSet& x, float* out) {
  ArenaScope scope(*exec.arena);
  const int64_t f = parameters.gate.rows;
  float* gate = exec.arena->Allocate<float>(x.count * f);
  float* up = exec.arena->Allocate<float>(x.count * f);
  const std::array<ops::LinearTask, 2> in = {
      {{&x, parameters.gate, gate, f}, {&x, parameters.up, up, f}}};
  ops::Linear(exec, in);
  const ops::RowSet hidden = ops::SituRows(exec, gate, up, x.count, f, Situ(config));
  const ops::LinearTask down{&hidden, parameters.down, out, config.hidden_size};
  ops::Linear(exec, {&down, 1});
}

Status LatentMoe(const ForwardContext& ctx, const ModelConfig& config,
                 const MoeParameters& parameters, int64_t layer, const ops::RowSet& x, float* out) {
  const ops::ExecContext& exec = ctx.exec;
  ArenaScope scope(*exec.arena);
  const MoeConfig& moe = config.moe;
  const MoeParameters& p = parameters;
  Arena& arena = *exec.arena;
  const bool has_latent = moe.latent > 0, has_shared = moe.shared_experts > 0;
  const int64_t t = x.count, d = config.hidden_size, k = moe.experts_per_token;
  const int64_t width = has_latent ? moe.latent : d, f = moe.intermediate * moe.shared_experts;

  float* scores = arena.Allocate<float>(t * moe.experts);
  float* latent = arena.Allocate<float>(t * width);
  float* shared_gate = arena.Allocate<float>(t * f);
  float* shared_up = arena.Allocate<float>(t * f);
  std::array<ops::LinearTask, 4> in;
  size_t in_count = 0;
  in[in_count++] = {&x, p.router, scores, moe.experts};
  if (has_latent) in[in_count++] = {&x, p.latent_down, latent, width};
  if (has_shared) {
    in[in_count++] = {&x, p.shared.gate, shared_gate, f};
    in[in_count++] = {&x, p.shared.up, shared_up, f};
  }
  ops::Linear(exec, std::span(in).first(in_count));

  const Routing routing = Route(exec, moe, p.correction_bias, t, scores);
  if (ctx.observer != nullptr) {
    ctx.observer->OnRoute(layer, {routing.experts, static_cast<size_t>(t * k)});
  }
  K3_RETURN_IF_ERROR(PrepareExperts(ctx, layer, moe.experts, routing));
  const ops::RowSet z = has_latent ? ops::SplitRows(exec, latent, t, width, width) : x;
  ops::RowSet shared;
  ops::LinearTask shared_down;
  float* shared_out = arena.Allocate<float>(t * d);
  if (has_shared) {
    shared = ops::SituRows(exec, shared_gate, shared_up, t, f, Situ(config));
    shared_down = {&shared, p.shared.down, shared_out, d};
  }
  float* expert_out = arena.Allocate<float>(t * k * width);
  RunExperts(exec, config, p, routing, z, shared_down, expert_out);

  if (has_latent) {
    Combine(exec, routing, t, k, width, expert_out, latent);
    const ops::RowSet r = moe.latent_norm
                              ? ops::NormRows(exec, latent, t, p.latent_norm, config.rms_norm_eps)
                              : ops::SplitRows(exec, latent, t, width, width);
    const ops::LinearTask up{&r, p.latent_up, out, d};
    ops::Linear(exec, {&up, 1});
  } else {
    Combine(exec, routing, t, k, width, expert_out, out);
  }
  if (has_shared) ops::AddRows(exec, shared_out, t, d, out);
  return OkStatus();
}

}  // namespace k3::model
