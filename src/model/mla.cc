// Gated MLA (technical report, gated MLA):
//   q = W_qb RMS(W_qa x)                     [H, N + R]
//   c, ke = W_kva x;  lat = RMS(c)           cached: lat [L], ke [R] shared by all heads
//   k_h, v_h = W_kvb,h lat
//   a_h = softmax(q_h . [k_h, ke] (N + R)^-1/2) v_h        causal
//   y = W_o (a sigmoid(W_g x))
#include "model/mla.h"

#include <array>
#include <cstring>

#include "model/mla_forms.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

struct Projected {
  float* q;     // [T, H (N + R)]
  float* kv;    // [T, L + R]
  float* gate;  // [T, H V]
};

Projected Project(const ops::ExecContext& exec, const MlaConfig& mla, const MlaParameters& p,
                  const ops::RowSet& x) {
  Arena& arena = *exec.arena;
  const int64_t t = x.count, query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t kv = mla.kv_lora_rank + mla.qk_rope_dim, value = mla.heads * mla.v_dim;
  Projected out{arena.Allocate<float>(t * query), arena.Allocate<float>(t * kv),
                arena.Allocate<float>(t * value)};
  std::array<ops::LinearTask, 3> tasks = {{{&x, p.kv_a, out.kv, kv}}};
  size_t count = 1;
  float* low = nullptr;
  if (mla.q_lora_rank > 0) {
    low = arena.Allocate<float>(t * mla.q_lora_rank);
    tasks[count++] = {&x, p.q_a, low, mla.q_lora_rank};
  } else {
    tasks[count++] = {&x, p.q, out.q, query};
  }
  if (mla.output_gate) tasks[count++] = {&x, p.gate, out.gate, value};
  ops::Linear(exec, std::span(tasks).first(count));
  if (low != nullptr) {
    const ops::RowSet normed = ops::NormRows(exec, low, t, p.q_norm, kLowRankNormEps);
    const ops::LinearTask task{&normed, p.q_b, out.q, query};
    ops::Linear(exec, {&task, 1});
  }
  return out;
}

/// Normalises the new latents and writes them into the cache, split, with the shared dims behind.
void AppendLatents(const ops::ExecContext& exec, const MlaConfig& mla, const Vector& norm,
                   const float* kv, int64_t count, int64_t start, cache::MlaLatents& latents) {
  const int64_t width = mla.kv_lora_rank + mla.qk_rope_dim;
  latents.Reserve(start + count);
  float* normed = exec.arena->Allocate<float>(count * mla.kv_lora_rank);
  exec.pool->ParallelFor(count, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = latents.Row(start + t);
      float* latent = normed + t * mla.kv_lora_rank;
      exec.kernels->elementwise.rms_norm(kv + t * width, norm.data(), mla.kv_lora_rank,
                                         kLowRankNormEps, latent);
      exec.kernels->linear.split_row(latent, mla.kv_lora_rank, row);
      std::memcpy(row + latents.latent_width(), kv + t * width + mla.kv_lora_rank,
                  static_cast<size_t>(mla.qk_rope_dim) * sizeof(float));
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
  kernel.elementwise.scale(factors[0], value, n, value);
  kernel.elementwise.scaled_add(factors[1], block_value, n, value);
}

void Mla(const ops::ExecContext& exec, const ModelConfig& config, const MlaParameters& parameters,
         int64_t layer, const Batch& batch, const ops::RowSet& x, float* out) {
  ArenaScope scope(*exec.arena);
  const MlaConfig& mla = config.mla;
  const int64_t query = mla.heads * (mla.qk_nope_dim + mla.qk_rope_dim);
  const int64_t kv = mla.kv_lora_rank + mla.qk_rope_dim, value = mla.heads * mla.v_dim;
  const Projected in = Project(exec, mla, parameters, x);
  float* heads_out = exec.arena->Allocate<float>(x.count * value);

  int64_t begin = 0;
  for (const Segment& segment : batch.segments) {
    const int64_t count = static_cast<int64_t>(segment.tokens.size());
    const int64_t start = segment.state->length();
    cache::MlaLatents& latents = segment.state->mla(layer);
    AppendLatents(exec, mla, parameters.kv_norm, in.kv + begin * kv, count, start, latents);
    const MlaQueries queries{in.q + begin * query, count, start, heads_out + begin * value};
    if (segment.form == AttentionForm::kDecode) {
      MlaAbsorbed(exec, mla, parameters, latents, queries);
    } else {
      MlaPrefill(exec, mla, parameters, latents, queries);
    }
    begin += count;
  }

  if (mla.output_gate) {
    exec.pool->ParallelFor(x.count, 4, [&](int64_t first, int64_t end, int) {
      exec.kernels->elementwise.sigmoid_gate(heads_out + first * value, in.gate + first * value,
                                             (end - first) * value, heads_out + first * value);
    });
  }
  const ops::RowSet y = ops::SplitRows(exec, heads_out, x.count, value, value);
  const ops::LinearTask task{&y, parameters.output, out, config.hidden_size};
  ops::Linear(exec, {&task, 1});
}

}  // namespace k3::model
