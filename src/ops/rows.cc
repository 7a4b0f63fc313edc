#include "ops/rows.h"

#include <algorithm>

#include "ops/gradients.h"
#include "ops/make_rows.h"
#include "tensor/number_formats.h"

namespace k3::ops {

RowSet NormRows(const ExecContext& ctx, const float* x, int64_t count, std::span<const float> w,
                float eps, float* normed) {
  const int64_t n = static_cast<int64_t>(w.size());
  if (normed == nullptr) normed = ctx.arena->Allocate<float>(count * n);
  return MakeRows(ctx, count, n, [&](int64_t t, float* split) {
    ctx.kernels->elementwise.rms_norm(x + t * n, w.data(), n, eps, normed + t * n);
    ctx.kernels->linear.split_row(normed + t * n, n, split);
  });
}

RowSet SituRows(const ExecContext& ctx, const float* gate, const float* up, int64_t count,
                int64_t n, SituOptions options, float* y) {
  return MakeRows(ctx, count, n, [&](int64_t t, float* split) {
    float* row = y + t * n;
    ctx.kernels->elementwise.situ(gate + t * n, up + t * n, n, options.beta, options.linear_beta,
                                  row);
    if (options.mxfp8) FakeQuantMxfp8Row({row, static_cast<size_t>(n)}, row);
    ctx.kernels->linear.split_row(row, n, split);
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

namespace {

/// One row of MixNormBackward. `rows` and `drows` [count] point at the row in every source; `h` and
/// `dh` [n] and `p`, `score_gradient` [count] are scratch.
struct MixNormRow {
  const float** rows;
  float** drows;
  int64_t count;
  float *h, *dh, *p, *score_gradient;
};

void BackwardRow(const kernels::KernelTable& kernel, const MixNorm& f, const MixNormRow& row,
                 const float* dx, float* dnorm, float* dmix) {
  const auto& e = kernel.elementwise;
  const int64_t n = static_cast<int64_t>(f.norm.size());
  if (f.mix.empty()) {
    kernel.backward.rms_norm(row.rows[0], f.norm.data(), dx, n, f.eps, row.dh, dnorm);
    e.add(row.dh, n, row.drows[0]);
    return;
  }
  for (int64_t s = 0; s < row.count; ++s) {
    row.p[s] = e.mix_score(row.rows[s], f.mix.data(), n, f.eps);
  }
  float max = 0, sum = 0, mean = 0;
  e.exp_block(row.p, row.count, 1.0f, &max, &sum);
  for (int64_t s = 0; s < row.count; ++s) row.p[s] /= sum;
  e.weighted_sum(row.rows, row.p, row.count, n, row.h);
  kernel.backward.rms_norm(row.h, f.norm.data(), dx, n, f.eps, row.dh, dnorm);
  for (int64_t s = 0; s < row.count; ++s) {
    row.score_gradient[s] = e.dot(row.dh, row.rows[s], n);
    mean += row.p[s] * row.score_gradient[s];
  }
  for (int64_t s = 0; s < row.count; ++s) {
    kernel.backward.mix_source(row.rows[s], f.mix.data(), row.dh, n, f.eps, row.p[s],
                               row.p[s] * (row.score_gradient[s] - mean), row.drows[s], dmix);
  }
}

}  // namespace

void MixNormBackward(const ExecContext& ctx, const MixNorm& forward, int64_t count, const float* dx,
                     const MixNormGradients& gradients) {
  ArenaScope scope(*ctx.arena);
  const int64_t n = static_cast<int64_t>(forward.norm.size()),
                width = forward.mix.empty() ? n : 2 * n;
  const int64_t sources = std::ssize(forward.sources), threads = ctx.pool->threads_count();
  const float** rows = ctx.arena->Allocate<const float*>(sources * threads);
  float** drows = ctx.arena->Allocate<float*>(sources * threads);
  float* scratch = ctx.arena->Allocate<float>(2 * (n + sources) * threads);
  float* sums = ctx.arena->Allocate<float>(width);  // of the norm, then of the mix
  std::fill_n(sums, width, 0.0f);
  SumOverRows(
      ctx, count, width,
      [&](int64_t begin, int64_t end, float* partial, int worker) {
        float* own = scratch + worker * 2 * (n + sources);
        const MixNormRow row{
            rows + worker * sources, drows + worker * sources, sources, own, own + n, own + 2 * n,
            own + 2 * n + sources};
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t s = 0; s < sources; ++s) {
            row.rows[s] = forward.sources[static_cast<size_t>(s)] + t * n;
            row.drows[s] = gradients.sources[static_cast<size_t>(s)] + t * n;
          }
          BackwardRow(*ctx.kernels, forward, row, dx + t * n, partial, partial + n);
        }
      },
      sums);
  ctx.kernels->elementwise.add(sums, n, gradients.norm.data());
  if (!forward.mix.empty()) ctx.kernels->elementwise.add(sums + n, n, gradients.mix.data());
}

}  // namespace k3::ops
