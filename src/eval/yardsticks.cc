#include "eval/yardsticks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "kernels/gemm/onednn_gemm.h"
#include "ops/linear.h"

namespace k3::eval {
namespace {

constexpr int64_t kBufferBytes = int64_t{2} << 30;
constexpr int kReads = 5;
constexpr int64_t kGemmSize = 2048;
constexpr int kGemmRuns = 3;

/// The sum of all words: eight chains, so that the loads and not the additions are the limit.
uint64_t SumWords(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

template <typename Run>
double BestSeconds(int runs, const Run& run) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const int64_t start = MonotonicNanoseconds();
    run();
    best = std::min(best, SecondsBetween(start, MonotonicNanoseconds()));
  }
  return best;
}

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool) {
  const AlignedBytes buffer = AllocateAligned(kBufferBytes);
  constexpr int64_t kPiece = 4 << 20;
  pool.ParallelFor(kBufferBytes / kPiece, 1, [&](int64_t begin, int64_t end, int) {
    std::memset(buffer.get() + begin * kPiece, 1, static_cast<size_t>((end - begin) * kPiece));
  });
  std::atomic<uint64_t> sum{0};
  const double seconds = BestSeconds(kReads, [&] {
    pool.ParallelFor(kBufferBytes / kPiece, 1, [&](int64_t begin, int64_t end, int) {
      sum += SumWords(reinterpret_cast<const uint64_t*>(buffer.get() + begin * kPiece),
                      (end - begin) * kPiece / 8);
    });
  });
  K3_CHECK(sum != 0, "the read was not done");
  return kBufferBytes / seconds;
}

GemmPeak MeasureGemmPeak(ThreadPool& pool, const kernels::KernelTable& kernels) {
  constexpr int64_t n = kGemmSize;
  Tensor a(DType::kF32, {n, n}), b(DType::kF32, {n, n}), c(DType::kF32, {n, n});
  for (int64_t i = 0; i < n * n; ++i) {
    a.f32()[static_cast<size_t>(i)] = static_cast<float>(i % 13) * 0.1f;
    b.f32()[static_cast<size_t>(i)] = static_cast<float>(i % 7) * 0.2f;
  }
  constexpr double kFlops = 2.0 * n * n * n;
  GemmPeak peak;
  Arena arena;
  const ops::ExecContext exec{.pool = &pool, .arena = &arena, .kernels = &kernels};
  peak.own_flops = kFlops / BestSeconds(kGemmRuns, [&] {
                     arena.Reset();
                     const ops::RowSet rows = ops::SplitRows(exec, a.f32().data(), n, n, n);
                     const ops::LinearTask task{
                         &rows, {b.data(), nullptr, n, n, WeightFormat::kF32}, c.f32().data(), n};
                     ops::Linear(exec, {&task, 1});
                   });
  std::atomic<bool> available{true};
  const double seconds = BestSeconds(kGemmRuns, [&] {
    const int64_t slice = n / pool.threads_count();
    pool.ParallelFor(n, slice, [&](int64_t begin, int64_t end, int) {
      const Status status = kernels::OnednnSgemm(end - begin, n, n, a.f32().data() + begin * n,
                                                 b.f32().data(), c.f32().data() + begin * n);
      if (!status.ok()) available = false;
    });
  });
  if (available) peak.onednn_flops = kFlops / seconds;
  return peak;
}

}  // namespace k3::eval
