#include "ops/rows.h"

#include "ops/make_rows.h"

namespace k3::ops {

RowSet NormRows(const ExecContext& ctx, const float* x, int64_t count, std::span<const float> w,
                float eps) {
  const int64_t n = static_cast<int64_t>(w.size());
  float* normed = ctx.arena->Allocate<float>(count * n);
  return MakeRows(ctx, count, n, [&](int64_t t, float* split) {
    ctx.kernels->elementwise.rms_norm(x + t * n, w.data(), n, eps, normed + t * n);
    ctx.kernels->linear.split_row(normed + t * n, n, split);
  });
}

RowSet SituRows(const ExecContext& ctx, float* gate, const float* up, int64_t count, int64_t n,
                SituOptions options) {
  return MakeRows(ctx, count, n, [&](int64_t t, float* split) {
    ctx.kernels->elementwise.situ(gate + t * n, up + t * n, n, options.beta, options.linear_beta,
                                  gate + t * n);
    ctx.kernels->linear.split_row(gate + t * n, n, split);
  });
}

void Embed(const ExecContext& ctx, const WeightMatrix& table, std::span<const int32_t> ids,
           float* y) {
  ctx.pool->ParallelFor(
      static_cast<int64_t>(ids.size()), kRowsGrain, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          ctx.kernels->elementwise.widen(table, ids[static_cast<size_t>(t)], y + t * table.cols);
        }
      });
}

void AddRows(const ExecContext& ctx, const float* x, int64_t count, int64_t n, float* y) {
  ctx.pool->ParallelFor(count, kRowsGrain, [&](int64_t begin, int64_t end, int) {
    ctx.kernels->elementwise.add(x + begin * n, (end - begin) * n, y + begin * n);
  });
}

void MixSources(const ExecContext& ctx, std::span<const float* const> sources,
                std::span<const float> w, float eps, int64_t count, float* y) {
  ArenaScope scope(*ctx.arena);
  const int64_t n = static_cast<int64_t>(w.size());
  const int64_t sources_count = static_cast<int64_t>(sources.size());
  const auto& kernel = ctx.kernels->elementwise;
  const float** all_rows =
      ctx.arena->Allocate<const float*>(sources_count * ctx.pool->threads_count());
  float* all_p = ctx.arena->Allocate<float>(sources_count * ctx.pool->threads_count());
  ctx.pool->ParallelFor(count, kRowsGrain, [&](int64_t begin, int64_t end, int worker) {
    const float** rows = all_rows + worker * sources_count;
    float* p = all_p + worker * sources_count;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t s = 0; s < sources_count; ++s) {
        rows[s] = sources[static_cast<size_t>(s)] + t * n;
        p[s] = kernel.mix_score(rows[s], w.data(), n, eps);
      }
      float max = 0, sum = 0;
      kernel.exp_block(p, sources_count, 1.0f, &max, &sum);
      for (int64_t s = 0; s < sources_count; ++s) p[s] /= sum;
      kernel.weighted_sum(rows, p, sources_count, n, y + t * n);
    }
  });
}

}  // namespace k3::ops
