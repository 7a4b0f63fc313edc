// Google Benchmark of every kernel that decides how fast a phase runs, one thread, on each SIMD
// target of this processor: GB/s of what is streamed, GFLOP/s of what is computed.
//
//   cmake --preset release -DK3_BUILD_BENCH=ON && ninja -C build/release k3_kernel_bench
//   build/release/bench/k3_kernel_bench --benchmark_filter=linear
//
// Shapes are those of configs/bench-m.json. Matrices that decoding streams lie in a buffer that no
// cache holds and are taken in turn.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "tensor/number_formats.h"

namespace k3::kernels {
namespace {

constexpr int64_t kStreamedBytes = int64_t{512} << 20;

std::vector<float> RandomFloats(int64_t count, float gain = 1.0f) {
  Random random(1, static_cast<uint64_t>(count));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = (random.NextFloat() - 0.5f) * gain;
  return values;
}

/// Per second, so that Google Benchmark prints them with their prefix.
void SetRate(benchmark::State& state, const char* name, int64_t per_iteration) {
  state.counters[name] = benchmark::Counter(
      static_cast<double>(per_iteration) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

/// What is streamed, filled once for all benchmarks, each of which runs several times.
std::span<const uint8_t> Streamed() {
  // 0x3c in every byte: finite and normal in each format, a scale of 2^-67 for E8M0.
  static const std::vector<uint8_t> bytes(kStreamedBytes, 0x3c);
  return bytes;
}

/// Weight matrices of one shape, as many as fill the buffer.
class Weights {
 public:
  Weights(WeightFormat format, int64_t rows, int64_t cols)
      : shape_{nullptr, nullptr, rows, cols, format} {
    matrix_bytes_ = rows * shape_.ElementBytes(cols);
    scale_bytes_ = format == WeightFormat::kMxfp4 ? rows * cols / 32 : 0;
    count_ = kStreamedBytes / (matrix_bytes_ + scale_bytes_);
  }

  WeightMatrix Next() {
    const uint8_t* at = Streamed().data() + (next_++ % count_) * (matrix_bytes_ + scale_bytes_);
    WeightMatrix w = shape_;
    w.data = at;
    w.scales = scale_bytes_ > 0 ? at + matrix_bytes_ : nullptr;
    return w;
  }
  int64_t bytes() const { return matrix_bytes_ + scale_bytes_; }

 private:
  WeightMatrix shape_;
  int64_t matrix_bytes_ = 0, scale_bytes_ = 0, count_ = 0, next_ = 0;
};

/// y = x W^T straight from the stored rows: a generated token (1 row) and small groups.
void LinearDirect(benchmark::State& state, SimdTarget target, WeightFormat format, int64_t rows,
                  int64_t n, int64_t k) {
  const LinearKernels kernel = Kernels(target).linear;
  Weights weights(format, n, k);
  const std::vector<float> x = RandomFloats(rows * k);
  std::vector<const float*> at;
  at.reserve(static_cast<size_t>(rows));
  for (int64_t t = 0; t < rows; ++t) at.push_back(x.data() + t * k);
  std::vector<float> y(static_cast<size_t>(rows * n));
  for (auto _ : state) {
    kernel.direct(at.data(), rows, weights.Next(), y.data(), n);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  SetRate(state, "bytes", weights.bytes());
  SetRate(state, "flop", 2 * rows * n * k);
}

/// Widening four weight rows into a panel, as prefill does once a chunk.
void PackWeights(benchmark::State& state, SimdTarget target, WeightFormat format, int64_t k) {
  const LinearKernels kernel = Kernels(target).linear;
  Weights weights(format, 64, k);
  std::vector<float> panel(static_cast<size_t>(64 * k));
  for (auto _ : state) {
    const WeightMatrix w = weights.Next();
    for (int64_t r = 0; r < 64; r += kTileCols) {
      kernel.pack_weights(w, r, panel.data() + r * k);
    }
    benchmark::ClobberMemory();
  }
  SetRate(state, "bytes", weights.bytes());
}

/// The register tile of prefill, panels in the first- and second-level cache.
void LinearTile(benchmark::State& state, SimdTarget target, int64_t k) {
  const LinearKernels kernel = Kernels(target).linear;
  const std::vector<float> x = RandomFloats(kTileRows * k), w = RandomFloats(64 * k);
  std::vector<float> y(64 * kTileRows);
  for (auto _ : state) {
    for (int64_t r = 0; r < 64; r += kTileCols) {
      kernel.tile(x.data(), w.data() + r * k, k / 16, kTileRows, kTileCols, y.data() + r, 64, 1);
    }
    benchmark::ClobberMemory();
  }
  SetRate(state, "flop", 2 * kTileRows * 64 * k);
}

/// One block of MLA's absorbed form: scores of all heads, exponentials, sums of latents.
void MlaBlock(benchmark::State& state, SimdTarget target, int64_t heads, int64_t latent,
              int64_t shared) {
  const KernelTable kernel = Kernels(target);
  constexpr int64_t kTokens = 256;
  const int64_t width = latent + shared;
  const int64_t pages = kStreamedBytes / (kTokens * width * 4);
  const auto* cache = reinterpret_cast<const float*>(Streamed().data());
  const std::vector<float> q = RandomFloats(heads * width, 0.1f);
  std::vector<float> scores(static_cast<size_t>(heads * kTokens));
  std::vector<float> value(static_cast<size_t>(heads * latent));
  int64_t next = 0;
  for (auto _ : state) {
    const float* page = cache + (next++ % pages) * kTokens * width;
    kernel.linear.dot_rows(q.data(), width, heads, page, width, kTokens, width, scores.data(),
                           kTokens);
    for (int64_t h = 0; h < heads; ++h) {
      float max = 0, sum = 0;
      kernel.elementwise.exp_block(scores.data() + h * kTokens, kTokens, 0.1f, &max, &sum);
      benchmark::DoNotOptimize(sum);
    }
    kernel.matmul.f32(scores.data(), kTokens, page, width, heads, kTokens, latent, false,
                      value.data(), latent);
    benchmark::ClobberMemory();
  }
  SetRate(state, "bytes", kTokens * width * 4);
  SetRate(state, "flop", 2 * kTokens * heads * (width + latent));
}

void MatMul(benchmark::State& state, SimdTarget target, int64_t m, int64_t k, int64_t n) {
  const MatMulKernels kernel = Kernels(target).matmul;
  const std::vector<float> a = RandomFloats(m * k), b = RandomFloats(k * n);
  std::vector<float> c(static_cast<size_t>(m * n));
  for (auto _ : state) {
    kernel.f32(a.data(), k, b.data(), n, m, k, n, false, c.data(), n);
    benchmark::ClobberMemory();
  }
  SetRate(state, "flop", 2 * m * n * k);
}

/// One head: `rows` new tokens (16: prefill, with the fold; 1: decode).
void Kda(benchmark::State& state, SimdTarget target, int64_t dim, int64_t rows) {
  const KdaKernels kernel = Kernels(target).kda;
  const int64_t stride = RoundUp(dim, 16);
  const int64_t heads = std::max<int64_t>(kStreamedBytes / 4 / (dim * stride), 1);
  std::vector<float> states(static_cast<size_t>(heads * dim * stride), 0.01f);
  std::vector<float> decay(static_cast<size_t>(kKdaChunk * dim), 0.9f),
      keys = RandomFloats(16 * dim);
  std::vector<float> u = RandomFloats(kKdaChunk * stride, 0.01f), beta(16, 0.5f);
  const std::vector<float> q = RandomFloats(16 * dim, 0.1f), v = RandomFloats(16 * dim);
  const std::vector<float> alpha(static_cast<size_t>(16 * dim), 0.9f);
  std::vector<float> o(static_cast<size_t>(16 * dim));
  std::vector<float> scratch(static_cast<size_t>(KdaScratchFloats(dim, stride)));
  int64_t next = 0;
  for (auto _ : state) {
    float* at = states.data() + (next++ % heads) * dim * stride;
    const KdaHead head{.key_dim = dim,
                       .value_dim = dim,
                       .value_stride = stride,
                       .state = at,
                       .decay = decay.data(),
                       .keys = keys.data(),
                       .alpha = nullptr,
                       .u = u.data()};
    kernel.append(head,
                  {.first = kKdaChunk - rows,
                   .count = rows,
                   .q = q.data(),
                   .k = q.data(),
                   .alpha = alpha.data(),
                   .key_ld = dim,
                   .alpha_ld = dim,
                   .v = v.data(),
                   .v_ld = dim,
                   .beta = beta.data(),
                   .beta_ld = 1,
                   .o = o.data(),
                   .o_ld = dim},
                  scratch.data());
    if (rows == kKdaChunk) kernel.fold(head, at, scratch.data());
    benchmark::ClobberMemory();
  }
  SetRate(state, "bytes", dim * stride * 4);
  SetRate(state, "tokens", rows);
}

using RowFunction = void (*)(const KernelTable&, float* x, const float* y, int64_t n);

void Row(benchmark::State& state, SimdTarget target, RowFunction run, int64_t arrays) {
  constexpr int64_t kCount = 1024;
  const KernelTable kernel = Kernels(target);
  const std::vector<float> y = RandomFloats(2 * kCount);
  std::vector<float> x = RandomFloats(kCount);
  for (auto _ : state) {
    run(kernel, x.data(), y.data(), kCount);
    benchmark::ClobberMemory();
  }
  SetRate(state, "bytes", arrays * kCount * 4);
}

struct NamedRow {
  const char* name;
  RowFunction run;
  int64_t arrays;  // read and written
};

/// In place where that cannot run away from finite numbers.
constexpr NamedRow kRows[] = {
    {"rms_norm",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.rms_norm(y, y + n, n, 1e-5f, x);
     },
     3},
    {"l2_norm",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.l2_norm(y, n, 1e-6f, 1.0f, x);
     },
     2},
    {"gated_rms_norm",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.gated_rms_norm(y, y + n, y, n, 1e-5f, x);
     },
     4},
    {"sigmoid",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.sigmoid(y, n, x);
     },
     2},
    {"exp",
     [](const KernelTable& k, float* x, const float* y, int64_t n) { k.elementwise.exp(y, n, x); },
     2},
    {"situ",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.situ(y, y + n, n, 4.0f, 25.0f, x);
     },
     3},
    {"sigmoid_gate",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.sigmoid_gate(y, y + n, n, x);
     },
     3},
    {"bounded_decay",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       k.elementwise.bounded_decay(y, y + n, 1.0f, -5.0f, n, x);
     },
     3},
    {"mix_score",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       x[0] = k.elementwise.mix_score(y, y + n, n, 1e-5f);
     },
     2},
    {"conv_silu",
     [](const KernelTable& k, float* x, const float* y, int64_t n) {
       const float* const rows[4] = {y, y + 1, y + 2, y + 3};
       k.elementwise.conv_silu(rows, y, n / 4, 4, n / 2, x);
     },
     3},
};

const char* FormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kMxfp4:
      return "mxfp4";
  }
  return "";
}

template <typename... Arguments, typename Function>
void Register(const std::string& name, SimdTarget target, Function function,
              Arguments... arguments) {
  const std::string full = name + "/" + std::string(SimdTargetName(target));
  benchmark::RegisterBenchmark(
      full.c_str(), [=](benchmark::State& state) { function(state, target, arguments...); });
}

void RegisterLinear(SimdTarget target) {
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kF32}) {
    const std::string name = FormatName(format);
    for (const int64_t rows : {1, 2, 6}) {
      Register("linear/direct/" + name + "/rows:" + std::to_string(rows), target, LinearDirect,
               format, rows, int64_t{512}, int64_t{1024});
    }
    Register("linear/pack_weights/" + name, target, PackWeights, format, int64_t{1024});
  }
  Register("linear/tile/k:1024", target, LinearTile, int64_t{1024});
}

void RegisterAll() {
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    if (!IsSupported(target)) continue;
    RegisterLinear(target);
    Register("mla/block/heads:12/latent:512", target, MlaBlock, int64_t{12}, int64_t{512},
             int64_t{64});
    Register("mla/block/heads:4/latent:64", target, MlaBlock, int64_t{4}, int64_t{64}, int64_t{16});
    Register("matmul/16x128x128", target, MatMul, int64_t{16}, int64_t{128}, int64_t{128});
    Register("matmul/64x256x128", target, MatMul, int64_t{64}, int64_t{256}, int64_t{128});
    Register("kda/decode/dim:128", target, Kda, int64_t{128}, int64_t{1});
    Register("kda/chunk/dim:128", target, Kda, int64_t{128}, kKdaChunk);
    for (const NamedRow& row : kRows) {
      Register("row/" + std::string(row.name), target, Row, row.run, row.arrays);
    }
  }
}

}  // namespace
}  // namespace k3::kernels

int main(int argc, char** argv) {
  k3::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
