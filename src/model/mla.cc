// Gated MLA (technical report, gated MLA):
//   q = W_qb RMS(W_qa x)                     [H, N + R]
//   c, ke = W_kva x;  lat = RMS(c)           cached: lat [L], ke [R] shared by all heads
//   k_h, v_h = W_kvb,h lat
//   a_h = softmax(q_h . [k_h, ke] (N + R)^-1/2) v_h        causal
//   y = W_o (a sigmoid(W_g x))
#include "model/mla.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/arithmetic.h"
#include "model/mla_forms.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

/// q_low, q, kv and gate of the tape.
void Project(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
             const ops::RowSet& x, const MlaTape& out) {
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t kv = mla.kv_lora_rank + mla.qk_rope_dim, value = mla.heads * mla.v_dim;
  std::array<ops::LinearTask, 3> tasks = {{{&x, p.kv_a, out.kv, kv}}};
  size_t count = 1;
  if (mla.q_lora_rank > 0) {
    tasks[count++] = {&x, p.q_a, out.q_low, mla.q_lora_rank};
  } else {
    tasks[count++] = {&x, p.q, out.q, query};
  }
  if (mla.output_gate) tasks[count++] = {&x, p.gate, out.gate, value};
  ops::Linear(exec, std::span(tasks).first(count));
  if (mla.q_lora_rank > 0) {
    const ops::RowSet normed = ops::NormRows(exec, out.q_low, x.count, p.q_norm, kLowRankNormEps);
    const ops::LinearTask task{&normed, p.q_b, out.q, query};
    ops::Linear(exec, {&task, 1});
  }
}

/// The rows that a segment's latents go to, with room for its new tokens.
LatentRows MakeRoom(const ops::ExecContext& exec, const MlaConfig& mla, const Segment& segment,
                    int64_t layer) {
  const int64_t count = std::ssize(segment.tokens);
  if (segment.state != nullptr) {
    cache::MlaLatents& latents = segment.state->mla(layer);
    latents.Reserve(segment.state->length() + count);
    return {.cached = &latents,
            .latent_width = latents.latent_width(),
            .row_width = latents.row_width()};
  }
  const int64_t latent = RoundUp(mla.kv_lora_rank, kernels::kSplitBlock);
  const int64_t width = latent + mla.qk_rope_dim;
  return {.rows = exec.arena->Allocate<float>(count * width),
          .latent_width = latent,
          .row_width = width};
}

/// Normalises the new latents and writes them to their rows, split, with the shared dims behind.
void AppendLatents(const ops::ExecContext& exec, const MlaConfig& mla, const Vector& norm,
                   const float* kv, int64_t count, int64_t start, const LatentRows& latents) {
  const int64_t width = mla.kv_lora_rank + mla.qk_rope_dim;
  ArenaScope scope(*exec.arena);
  float* normed = exec.arena->Allocate<float>(count * mla.kv_lora_rank);
  exec.pool->ParallelFor(count, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = latents.Row(start + t);
      float* latent = normed + t * mla.kv_lora_rank;
      exec.kernels->elementwise.rms_norm(kv + t * width, norm.data(), mla.kv_lora_rank,
                                         kLowRankNormEps, latent);
      exec.kernels->linear.split_row(latent, mla.kv_lora_rank, row);
      std::copy_n(kv + t * width + mla.kv_lora_rank, mla.qk_rope_dim, row + latents.latent_width);
    }
  });
}

}  // namespace

void MergePartial(const kernels::KernelTable& kernel, const Partial& block,
                  const float* block_value, int64_t n, Partial& total, float* value) {
  if (total.sum == 0.0f) {
    total = block;
    std::memcpy(value, block_value, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const float max = block.max > total.max ? block.max : total.max;
  float factors[2] = {total.max - max, block.max - max};
  kernel.elementwise.exp(factors, 2, factors);
  total = {max, factors[0] * total.sum + factors[1] * block.sum};
  // exp(0) is 1: mostly the largest score so far stays.
  if (factors[0] != 1.0f) kernel.elementwise.scale(factors[0], value, n, value);
  kernel.elementwise.scaled_add(factors[1], block_value, n, value);
}

MlaTape MlaTape::Allocate(Arena& arena, const MlaConfig& mla, int64_t tokens) {
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t kv = mla.kv_lora_rank + mla.qk_rope_dim, value = mla.heads * mla.v_dim;
  return {.q_low = mla.q_lora_rank > 0 ? arena.Allocate<float>(tokens * mla.q_lora_rank) : nullptr,
          .q = arena.Allocate<float>(tokens * query),
          .kv = arena.Allocate<float>(tokens * kv),
          .gate = mla.output_gate ? arena.Allocate<float>(tokens * value) : nullptr,
          .attended = arena.Allocate<float>(tokens * value),
          .log_sum = arena.Allocate<float>(tokens * mla.heads),
          .score_max = arena.Allocate<float>(tokens * mla.heads)};
}

void MlaAttend(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
               int64_t layer, const Batch& batch, const ops::RowSet& x, const MlaTape& tape) {
  ArenaScope scope(*exec.arena);
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t kv = mla.kv_lora_rank + mla.qk_rope_dim, value = mla.heads * mla.v_dim;
  Project(exec, mla, p, x, tape);
  std::vector<MlaPrefillTask> prefill;
  std::vector<MlaAbsorbedTask> absorbed;
  int64_t begin = 0;
  for (const Segment& segment : batch.segments) {
    const int64_t count = std::ssize(segment.tokens);
    const int64_t start = segment.state != nullptr ? segment.state->length() : 0;
    const LatentRows latents = MakeRoom(exec, mla, segment, layer);
    AppendLatents(exec, mla, p.kv_norm, tape.kv + begin * kv, count, start, latents);
    MlaQueries queries{.q = tape.q + begin * query,
                       .count = count,
                       .start = start,
                       .out = tape.attended + begin * value};
    if (segment.state != nullptr && segment.form == AttentionForm::kDecode) {
      absorbed.push_back({latents.cached, queries});
    } else {
      if (tape.log_sum != nullptr) {
        queries.log_sum = tape.log_sum + begin * mla.heads;
        queries.score_max = tape.score_max + begin * mla.heads;
      }
      prefill.push_back({latents, queries});
    }
    begin += count;
  }
  MlaAbsorbed(exec, mla, p, absorbed);
  MlaPrefill(exec, mla, p, prefill);
}

void Mla(const ops::ExecContext& exec, const ModelConfig& config, const MlaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out, MlaTape* tape) {
  ArenaScope scope(*exec.arena);
  const MlaConfig& mla = config.mla;
  const int64_t value = mla.heads * mla.v_dim;
  MlaTape kept;
  if (tape != nullptr) {
    kept = *tape;
  } else {
    kept = MlaTape::Allocate(*exec.arena, mla, x.count);
    kept.log_sum = nullptr;
  }
  MlaAttend(exec, mla, parameters, layer, batch, x, kept);

  float* gated = kept.attended;
  if (mla.output_gate) {
    // A tape keeps what stands before the gate.
    if (tape != nullptr) gated = exec.arena->Allocate<float>(x.count * value);
    exec.pool->ParallelFor(x.count, 4, [&](int64_t first, int64_t end, int) {
      exec.kernels->elementwise.sigmoid_gate(kept.attended + first * value,
                                             kept.gate + first * value, (end - first) * value,
                                             gated + first * value);
    });
  }
  const ops::RowSet y = ops::SplitRows(exec, gated, x.count, value, value);
  const ops::LinearTask task{&y, parameters.output, out, config.hidden_size};
  ops::Linear(exec, {&task, 1});
}

}  // namespace k3::model
