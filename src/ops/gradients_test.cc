// Gradients of linear layers and of normed mixes: bit for bit against plain loops that spell out
// the promised order of the sums, for any number of threads, and against float64.
#include "ops/gradients.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>

#include "base/random.h"
#include "ops/rows.h"
#include "tensor/number_formats.h"

namespace k3::ops {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Context {
  explicit Context(int threads) : pool(threads) {
    // Scratch that holds NaN: whatever is read before it is written shows.
    constexpr int64_t kPoisonFloats = 1 << 20;
    std::fill_n(arena.Allocate<float>(kPoisonFloats), kPoisonFloats, NAN);
    arena.Reset();
  }
  ThreadPool pool;
  Arena arena;
  kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  ExecContext exec{&pool, &arena, &kernels};
};

Floats RandomFloats(int64_t count, uint64_t stream) {
  Random random(29, stream);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = random.NextNormal();
  return values;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Rows of a batch, outputs and inputs of a layer.
struct Sizes {
  int64_t count, n, k;
};
// On both sides of a piece's columns (64) and rows (384) and of a strip's depth (256).
const std::vector<Sizes> kSizes = {{1, 1, 1},    {3, 65, 63},    {63, 700, 65}, {385, 63, 3},
                                   {700, 3, 65}, {65, 385, 700}, {1, 700, 385}, {385, 257, 1}};

/// One chain for each element: y[i][j] goes on with the terms a(i, p) b(p, j), p ascending, and
/// their sum in float64 beside it.
struct Chain {
  Floats values;
  Doubles exact;
  Doubles magnitude;  // sum of the terms' absolute values
  Chain(const Floats& start) : values(start), exact(start.begin(), start.end()) {
    for (float value : start) magnitude.push_back(std::fabs(value));
  }
  void Add(size_t at, float a, float b) {
    values[at] = std::fma(a, b, values[at]);
    exact[at] += double{a} * b;
    magnitude[at] += std::fabs(double{a} * b);
  }
};

/// Largest error in units of the sum of a chain's absolute terms.
double LargestError(const Floats& found, const Chain& chain) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::fabs(found[i] - chain.exact[i]);
    largest = std::max(largest, error / std::max(chain.magnitude[i], 1e-30));
  }
  return largest;
}

/// Where one task's gradient lies: rows of `ld` floats of which `width` are written.
struct Padded {
  Padded(int64_t rows, int64_t width, uint64_t stream)
      : ld(width + 5), values(RandomFloats(rows * (width + 5), stream)) {}
  int64_t ld;
  Floats values;
};

TEST(LinearInputGradientTest, EqualsTheChainForAnyThreads) {
  for (bool accumulate : {false, true}) {
    // All sizes in one call, with one, two and three terms by turns.
    std::vector<Padded> dy, dx;
    std::vector<Floats> weights;
    std::vector<Chain> want;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const Sizes& size = kSizes[i];
      dx.emplace_back(size.count, size.k, 10 + i);
      want.emplace_back(dx.back().values);
      if (!accumulate) {
        for (int64_t t = 0; t < size.count; ++t) {
          const int64_t at = t * dx[i].ld;
          std::fill_n(want[i].values.begin() + at, size.k, 0.0f);
          std::fill_n(want[i].exact.begin() + at, size.k, 0.0);
          std::fill_n(want[i].magnitude.begin() + at, size.k, 0.0);
        }
      }
      for (size_t term = 0; term <= i % 3; ++term) {
        const int64_t n = size.n + 60 * static_cast<int64_t>(term);
        dy.emplace_back(size.count, n, 100 + 10 * i + term);
        weights.push_back(RandomFloats(n * size.k, 200 + 10 * i + term));
        for (int64_t t = 0; t < size.count; ++t) {
          for (int64_t r = 0; r < n; ++r) {
            for (int64_t c = 0; c < size.k; ++c) {
              want[i].Add(static_cast<size_t>(t * dx[i].ld + c),
                          dy.back().values[t * dy.back().ld + r], weights.back()[r * size.k + c]);
            }
          }
        }
      }
    }
    for (int threads : {1, 2, 3}) {
      Context ctx(threads);
      std::vector<Padded> got = dx;
      std::vector<InputGradientTask> tasks;
      std::list<std::vector<InputGradientTerm>> terms;
      size_t used = 0;
      for (size_t i = 0; i < kSizes.size(); ++i) {
        terms.emplace_back();
        for (size_t term = 0; term <= i % 3; ++term, ++used) {
          const int64_t k = kSizes[i].k, n = std::ssize(weights[used]) / k;
          terms.back().push_back({dy[used].values.data(),
                                  dy[used].ld,
                                  {weights[used].data(), nullptr, n, k, WeightFormat::kF32}});
        }
        tasks.push_back(
            {terms.back(), kSizes[i].count, got[i].values.data(), got[i].ld, accumulate});
      }
      LinearInputGradient(ctx.exec, tasks);
      EXPECT_EQ(ctx.arena.used_bytes(), 0);
      for (size_t i = 0; i < kSizes.size(); ++i) {
        EXPECT_TRUE(SameBits(got[i].values, want[i].values)) << "task " << i << ", " << threads;
        // n roundings of half a unit each, a random walk: far below n 2^-24 of the terms' sum.
        EXPECT_LE(LargestError(got[i].values, want[i]), 1e-6) << "task " << i;
      }
    }
  }
}

TEST(LinearWeightGradientTest, EqualsTheChainForAnyThreads) {
  std::vector<Padded> dy, x;
  std::vector<Floats> dw;
  std::vector<Chain> want;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    const Sizes& size = kSizes[i];
    dy.emplace_back(size.count, size.n, 300 + i);
    x.emplace_back(size.count, size.k, 400 + i);
    dw.push_back(RandomFloats(size.n * size.k, 500 + i));
    want.emplace_back(dw.back());
    for (int64_t t = 0; t < size.count; ++t) {
      for (int64_t r = 0; r < size.n; ++r) {
        for (int64_t c = 0; c < size.k; ++c) {
          want[i].Add(static_cast<size_t>(r * size.k + c), dy[i].values[t * dy[i].ld + r],
                      x[i].values[t * x[i].ld + c]);
        }
      }
    }
  }
  for (int threads : {1, 2, 3}) {
    Context ctx(threads);
    std::vector<Floats> got = dw;
    std::vector<WeightGradientTask> tasks;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      tasks.push_back({dy[i].values.data(),
                       dy[i].ld,
                       x[i].values.data(),
                       x[i].ld,
                       kSizes[i].count,
                       {got[i].data(), kSizes[i].n, kSizes[i].k}});
    }
    LinearWeightGradient(ctx.exec, tasks);
    EXPECT_EQ(ctx.arena.used_bytes(), 0);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      EXPECT_TRUE(SameBits(got[i], want[i].values)) << "task " << i << ", " << threads;
      // As above.
      EXPECT_LE(LargestError(got[i], want[i]), 1e-6) << "task " << i;
    }
  }
}

TEST(LinearGradientTest, NoRowsChangeNothing) {
  Context ctx(2);
  const Floats some = RandomFloats(12, 1);
  Floats out = some;
  const InputGradientTerm term{some.data(), 3, {some.data(), nullptr, 3, 4, WeightFormat::kF32}};
  const InputGradientTask input{{&term, 1}, 0, out.data(), 4};
  LinearInputGradient(ctx.exec, {&input, 1});
  const WeightGradientTask weight{some.data(), 3, some.data(), 4, 0, {out.data(), 3, 4}};
  LinearWeightGradient(ctx.exec, {&weight, 1});
  LinearInputGradient(ctx.exec, {});
  LinearWeightGradient(ctx.exec, {});
  EXPECT_TRUE(SameBits(out, some));
}

TEST(SumOverRowsTest, AddsRunsInOrder) {
  constexpr int64_t kWidth = 37;
  for (int64_t count : {0, 1, 3, 63, 64, 65, 385, 700}) {
    const Floats rows = RandomFloats(count * kWidth, 7), start = RandomFloats(kWidth, 8);
    Floats want = start;
    for (int64_t begin = 0; begin < count; begin += kPartialRows) {
      Floats partial(kWidth);
      for (int64_t t = begin; t < std::min(begin + kPartialRows, count); ++t) {
        for (int64_t i = 0; i < kWidth; ++i) partial[i] += rows[t * kWidth + i];
      }
      for (int64_t i = 0; i < kWidth; ++i) want[i] += partial[i];
    }
    for (int threads : {1, 2, 3}) {
      Context ctx(threads);
      Floats got = start;
      SumOverRows(
          ctx.exec, count, kWidth,
          [&](int64_t begin, int64_t end, float* partial, int worker) {
            EXPECT_LT(worker, threads);
            for (int64_t t = begin; t < end; ++t) {
              for (int64_t i = 0; i < kWidth; ++i) partial[i] += rows[t * kWidth + i];
            }
          },
          got.data());
      EXPECT_TRUE(SameBits(got, want)) << count << " rows, " << threads << " threads";
    }
  }
}

/// MixNormBackward's problem: inputs are the sources, then the mix (if any), then the norm.
struct MixProblem {
  MixProblem(int64_t sources, bool mixed, int64_t count, int64_t n)
      : sources_count(sources), has_mix(mixed), rows(count), width(n) {
    for (int64_t s = 0; s < sources; ++s) inputs.push_back(RandomFloats(count * n, 20 + s));
    if (mixed) inputs.push_back(RandomFloats(n, 40));
    inputs.push_back(RandomFloats(n, 41));
    dx = RandomFloats(count * n, 42);
    // The scores of sources are some units apart, whatever the width.
    if (mixed) {
      for (float& w : inputs[static_cast<size_t>(sources)]) w /= std::sqrt(float(n)) / 2;
    }
  }

  /// sum(dx * RMSNorm(MIX(sources))) in float64.
  double Loss(const std::vector<Doubles>& in) const {
    const Doubles& norm = in.back();
    double loss = 0;
    for (int64_t t = 0; t < rows; ++t) {
      Doubles h(static_cast<size_t>(width)), p;
      double sum = 0;
      for (int64_t s = 0; s < sources_count; ++s) {
        double score = 0;
        const double* x = in[s].data() + t * width;
        if (has_mix) {
          for (int64_t i = 0; i < width; ++i) score += x[i] * in[sources_count][i];
          score *= Inverse(x);
        }
        p.push_back(std::exp(score));
        sum += p.back();
      }
      for (int64_t s = 0; s < sources_count; ++s) {
        for (int64_t i = 0; i < width; ++i) h[i] += p[s] / sum * in[s][t * width + i];
      }
      const double r = Inverse(h.data());
      for (int64_t i = 0; i < width; ++i) loss += dx[t * width + i] * h[i] * r * norm[i];
    }
    return loss;
  }
  double Inverse(const double* x) const {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
    return 1 / std::sqrt(sum / static_cast<double>(width) + double{1e-5f});
  }

  /// Gradients by every input, added to `start`.
  std::vector<Floats> Backward(int threads, float start) const {
    Context ctx(threads);
    std::vector<Floats> gradients;
    for (const Floats& input : inputs) gradients.emplace_back(input.size(), start);
    std::vector<const float*> sources;
    std::vector<float*> dsources;
    for (int64_t s = 0; s < sources_count; ++s) {
      sources.push_back(inputs[static_cast<size_t>(s)].data());
      dsources.push_back(gradients[static_cast<size_t>(s)].data());
    }
    const size_t mix = static_cast<size_t>(sources_count);
    const MixNorm forward{
        .sources = sources,
        .mix = has_mix ? std::span<const float>(inputs[mix]) : std::span<const float>(),
        .norm = inputs.back(),
        .eps = 1e-5f};
    MixNormBackward(ctx.exec, forward, rows, dx.data(),
                    {.sources = dsources,
                     .mix = has_mix ? std::span<float>(gradients[mix]) : std::span<float>(),
                     .norm = gradients.back()});
    EXPECT_EQ(ctx.arena.used_bytes(), 0);
    return gradients;
  }

  int64_t sources_count;
  bool has_mix;
  int64_t rows, width;
  std::vector<Floats> inputs;
  Floats dx;
};

TEST(MixNormBackwardTest, EqualsCentralDifferences) {
  double worst = 0;
  for (int64_t sources : {1, 2, 4}) {
    for (bool mixed : {false, true}) {
      if (!mixed && sources > 1) continue;
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 1}, {5, 3}, {3, 33}}) {
        const MixProblem problem(sources, mixed, rows, width);
        const std::vector<Floats> gradients = problem.Backward(2, 0);
        std::vector<Doubles> in;
        for (const Floats& input : problem.inputs) in.emplace_back(input.begin(), input.end());
        for (size_t i = 0; i < in.size(); ++i) {
          double error = 0, largest = 1e-3;
          for (size_t at = 0; at < in[i].size(); ++at) {
            // In float64 this step's own error is below 1e-6 of the largest derivative.
            constexpr double kStep = 1e-5;
            const double saved = in[i][at];
            in[i][at] = saved + kStep;
            const double above = problem.Loss(in);
            in[i][at] = saved - kStep;
            const double want = (above - problem.Loss(in)) / (2 * kStep);
            in[i][at] = saved;
            error = std::max(error, std::fabs(gradients[i][at] - want));
            largest = std::max(largest, std::fabs(want));
          }
          // With one element the norm's gradient is what two terms leave that cancel up to the
          // epsilon (measured: 1.2e-4 of it).
          EXPECT_LE(error / largest, width == 1 ? 5e-4 : 2e-6) << "input " << i;
          if (width > 1) worst = std::max(worst, error / largest);
        }
      }
    }
  }
  RecordProperty("worst_error", fmt::format("{:.2e}", worst));
}

TEST(MixNormBackwardTest, SameBitsForAnyThreadsAndAddsToWhatStands) {
  for (bool mixed : {false, true}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 385}, {65, 63}, {385, 65}}) {
      const MixProblem problem(mixed ? 3 : 1, mixed, rows, width);
      const std::vector<Floats> want = problem.Backward(1, 0);
      for (int threads : {2, 3}) {
        const std::vector<Floats> got = problem.Backward(threads, 0);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(SameBits(got[i], want[i])) << i;
      }
      const std::vector<Floats> added = problem.Backward(2, 2.0f);
      for (size_t i = 0; i < want.size(); ++i) {
        for (size_t at = 0; at < want[i].size(); ++at) {
          // A few roundings of sums of this size; the start is in the way of the last bits.
          ASSERT_NEAR(added[i][at], want[i][at] + 2.0f, 1e-6 * (2 + std::fabs(want[i][at])));
        }
      }
    }
  }
}

TEST(NormRowsTest, TheNormedRowsAreTheKernels) {
  for (int64_t count : {1, 3, 65}) {
    for (int64_t n : {1, 63, 65}) {
      Context ctx(2);
      const Floats x = RandomFloats(count * n, 1), w = RandomFloats(n, 2);
      Floats normed(x.size(), NAN), want(x.size());
      const RowSet kept = NormRows(ctx.exec, x.data(), count, w, 1e-5f, normed.data());
      const RowSet unkept = NormRows(ctx.exec, x.data(), count, w, 1e-5f);
      for (int64_t t = 0; t < count; ++t) {
        ctx.kernels.elementwise.rms_norm(&x[t * n], w.data(), n, 1e-5f, &want[t * n]);
        const size_t bytes = static_cast<size_t>(kept.k_padded()) * sizeof(float);
        EXPECT_EQ(std::memcmp(kept.rows[t], unkept.rows[t], bytes), 0);
        Floats split(static_cast<size_t>(kept.k_padded()));
        ctx.kernels.linear.split_row(&want[t * n], n, split.data());
        EXPECT_EQ(std::memcmp(kept.rows[t], split.data(), bytes), 0);
      }
      EXPECT_TRUE(SameBits(normed, want));
    }
  }
}

TEST(SituRowsTest, ResultMayTakeTheGatesPlaceAndBeRounded) {
  for (int64_t count : {1, 3, 65}) {
    for (int64_t n : {1, 63, 65}) {
      for (bool mxfp8 : {false, true}) {
        for (float linear_beta : {0.0f, 25.0f}) {
          Context ctx(2);
          const Floats gate = RandomFloats(count * n, 1), up = RandomFloats(count * n, 2);
          const SituOptions options{.beta = 3.0f, .linear_beta = linear_beta, .mxfp8 = mxfp8};
          Floats y(gate.size(), NAN), in_place = gate, want(gate.size());
          const RowSet rows =
              SituRows(ctx.exec, gate.data(), up.data(), count, n, options, y.data());
          SituRows(ctx.exec, in_place.data(), up.data(), count, n, options, in_place.data());
          for (int64_t t = 0; t < count; ++t) {
            float* row = &want[t * n];
            ctx.kernels.elementwise.situ(&gate[t * n], &up[t * n], n, 3.0f, linear_beta, row);
            if (mxfp8) FakeQuantMxfp8Row({row, static_cast<size_t>(n)}, row);
            Floats split(static_cast<size_t>(rows.k_padded()));
            ctx.kernels.linear.split_row(row, n, split.data());
            EXPECT_EQ(std::memcmp(rows.rows[t], split.data(), split.size() * sizeof(float)), 0);
          }
          EXPECT_TRUE(SameBits(y, want));
          EXPECT_TRUE(SameBits(in_place, want));
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
