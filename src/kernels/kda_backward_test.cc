// KDA's backward kernels: a chunk against the adjoint of the recurrence in float64, the convolution
// against plain loops, and the same bits on every target. The row kernels' values are tested with
// the whole block (model/kda_backward_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/arithmetic.h"
#include "kernels/kernel_test_util.h"

namespace k3::kernels {
namespace {

/// One chunk of `rows` tokens; arrays padded as the kernel wants them.
struct ChunkCase {
  int64_t rows, dim, padded;
  std::vector<float> q, k, v, alpha, beta, state, dstate, dout;
};

std::vector<float> Padded(const std::vector<float>& x, int64_t rows, int64_t rows_padded,
                          int64_t cols, int64_t cols_padded, float fill = 0.0f) {
  std::vector<float> y(static_cast<size_t>(rows_padded * cols_padded), fill);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(&x[r * cols], cols, &y[r * cols_padded]);
  }
  return y;
}

ChunkCase MakeChunk(int64_t rows, int64_t dim, float strength) {
  const int64_t padded = RoundUp(dim, 16);
  std::vector<float> q = RandomFloats(rows * dim, 1), k = RandomFloats(rows * dim, 2);
  std::vector<float> alpha = RandomFloats(rows * dim, 4), beta = RandomFloats(rows, 5);
  const ElementwiseKernels e = Kernels(SimdTarget::kScalar).elementwise;
  for (int64_t t = 0; t < rows; ++t) {
    e.l2_norm(&q[t * dim], dim, 1e-6f, 0.3f, &q[t * dim]);
    e.l2_norm(&k[t * dim], dim, 1e-6f, 1.0f, &k[t * dim]);
  }
  const std::vector<float> zero(alpha.size());
  e.bounded_decay(alpha.data(), zero.data(), 3.0f, -strength, rows * dim, alpha.data());
  e.sigmoid(beta.data(), rows, beta.data());
  beta.resize(16);
  return {rows,
          dim,
          padded,
          Padded(q, rows, 16, dim, padded),
          Padded(k, rows, 16, dim, padded),
          Padded(RandomFloats(rows * dim, 3), rows, 16, dim, padded),
          Padded(alpha, rows, 16, dim, padded, 1.0f),
          beta,
          Padded(RandomFloats(dim * dim, 6), dim, padded, dim, padded),
          Padded(RandomFloats(dim * dim, 7), dim, padded, dim, padded),
          Padded(RandomFloats(rows * dim, 8), rows, 16, dim, padded)};
}

template <typename T>
struct ChunkGradients {
  std::vector<T> dq, dk, dg, dv, dbeta, dstate;

  /// Without the padding's rows, whose decays have a gradient that nobody asks for.
  ChunkGradients Rows(const ChunkCase& in) && {
    for (std::vector<T>* rows : {&dq, &dk, &dg, &dv}) {
      rows->resize(static_cast<size_t>(in.rows * in.padded));
    }
    dbeta.resize(static_cast<size_t>(in.rows));
    return std::move(*this);
  }
};

ChunkGradients<float> RunKernel(const ChunkCase& in, SimdTarget target, bool bounded) {
  const KernelTable kernels = Kernels(target);
  const int64_t n = in.padded;
  const auto floats = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
  std::vector<float> decay = floats(16 * n), keys = floats(16 * n), alpha = floats(16 * n),
                     u = floats(16 * n), out = floats(16 * n), dy = floats(32 * n),
                     appended = floats(KdaScratchFloats(n, n)),
                     scratch = floats(KdaBackwardScratchFloats(n, n));
  ChunkGradients<float> g{floats(16 * n), floats(16 * n), floats(16 * n),
                          floats(16 * n), floats(16),     in.dstate};
  kernels.kda.append({n, n, n, in.state.data(), decay.data(), keys.data(),
                      bounded ? nullptr : alpha.data(), u.data()},
                     {.first = 0,
                      .count = 16,
                      .q = in.q.data(),
                      .k = in.k.data(),
                      .alpha = in.alpha.data(),
                      .key_ld = n,
                      .alpha_ld = n,
                      .v = in.v.data(),
                      .v_ld = n,
                      .beta = in.beta.data(),
                      .beta_ld = 1,
                      .o = out.data(),
                      .o_ld = n},
                     appended.data());
  std::copy(in.dout.begin(), in.dout.end(), dy.begin() + 16 * n);
  kernels.kda_backward.chunk({.key_dim = n,
                              .value_dim = n,
                              .state = in.state.data(),
                              .decay = decay.data(),
                              .keys = keys.data(),
                              .alpha = bounded ? nullptr : alpha.data(),
                              .q = in.q.data(),
                              .u = u.data(),
                              .beta = in.beta.data(),
                              .appended = appended.data(),
                              .dstate = g.dstate.data(),
                              .dy = dy.data(),
                              .dq = g.dq.data(),
                              .dk = g.dk.data(),
                              .dg = g.dg.data(),
                              .dv = g.dv.data(),
                              .dbeta = g.dbeta.data()},
                             scratch.data());
  return std::move(g).Rows(in);
}

/// The recurrence and its adjoint, token by token, in double.
ChunkGradients<double> Adjoint(const ChunkCase& in) {
  const int64_t n = in.padded;
  const auto doubles = [](int64_t count) {
    return std::vector<double>(static_cast<size_t>(count));
  };
  std::vector<std::vector<double>> before, decayed, after, residual;
  std::vector<double> state(in.state.begin(), in.state.end());
  for (int64_t t = 0; t < in.rows; ++t) {
    before.push_back(state);
    for (int64_t i = 0; i < n * n; ++i) state[i] *= in.alpha[t * n + i / n];
    decayed.push_back(state);
    std::vector<double> r(in.v.begin() + t * n, in.v.begin() + (t + 1) * n);
    for (int64_t i = 0; i < n * n; ++i) r[i % n] -= decayed[t][i] * in.k[t * n + i / n];
    for (int64_t i = 0; i < n * n; ++i) state[i] += in.k[t * n + i / n] * in.beta[t] * r[i % n];
    after.push_back(state);
    residual.push_back(r);
  }
  ChunkGradients<double> g{doubles(16 * n), doubles(16 * n), doubles(16 * n),
                           doubles(16 * n), doubles(16),     {in.dstate.begin(), in.dstate.end()}};
  for (int64_t t = in.rows - 1; t >= 0; --t) {
    std::vector<double> du = doubles(n);
    for (int64_t i = 0; i < n * n; ++i) {
      const int64_t row = t * n + i / n, col = t * n + i % n;
      g.dq[row] += after[t][i] * in.dout[col];
      g.dstate[i] += double{in.q[row]} * in.dout[col];
      g.dk[row] += g.dstate[i] * in.beta[t] * residual[t][i % n];
      du[i % n] += g.dstate[i] * in.k[row];
    }
    for (int64_t e = 0; e < n; ++e) {
      g.dbeta[t] += du[e] * residual[t][e];
      g.dv[t * n + e] = in.beta[t] * du[e];
    }
    for (int64_t i = 0; i < n * n; ++i) {
      const int64_t row = t * n + i / n, col = t * n + i % n;
      g.dstate[i] -= in.k[row] * g.dv[col];
      g.dk[row] -= decayed[t][i] * g.dv[col];
      g.dg[row] += g.dstate[i] * decayed[t][i];
      g.dstate[i] *= in.alpha[row];
    }
  }
  return std::move(g).Rows(in);
}

double RelativeError(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

double LargestError(const ChunkGradients<float>& got, const ChunkGradients<double>& want) {
  return std::max({RelativeError(got.dq, want.dq), RelativeError(got.dk, want.dk),
                   RelativeError(got.dg, want.dg), RelativeError(got.dv, want.dv),
                   RelativeError(got.dbeta, want.dbeta), RelativeError(got.dstate, want.dstate)});
}

TEST(KdaBackwardTest, ChunkEqualsTheAdjointOfTheRecurrence) {
  double largest = 0;
  for (int64_t dim : {24, 40, 64}) {
    for (int64_t rows : {1, 2, 7, 15, 16}) {
      for (float strength : {0.01f, 1.0f, 5.0f}) {
        const ChunkCase in = MakeChunk(rows, dim, strength);
        const ChunkGradients<double> want = Adjoint(in);
        for (bool bounded : {true, false}) {
          const double error = LargestError(RunKernel(in, SimdTarget::kScalar, bounded), want);
          largest = std::max(largest, error);
          // Float32's rounding over sums of a hundred terms; dg cancels some of its terms.
          EXPECT_LE(error, 2e-6) << "dim " << dim << ", rows " << rows << ", strength " << strength
                                 << (bounded ? ", bounded" : ", unbounded");
        }
      }
    }
  }
  RecordProperty("largest_error", std::to_string(largest));
}

TEST(KdaBackwardTest, DecaysAtTheBoundKeepTheirGradients) {
  // Sixteen tokens of e^-4.99 in a third of the channels, and gradients as small as those of a
  // mean over many tokens: factors of e^-80 times 1e-6 would be denormals.
  ChunkCase in = MakeChunk(16, 32, 5.0f);
  for (size_t i = 0; i < in.alpha.size(); ++i) {
    if (i % 32 % 3 == 0) in.alpha[i] = std::exp(-4.99f);
  }
  for (float& x : in.dstate) x *= 1e-6f;
  for (float& x : in.dout) x *= 1e-6f;
  const ChunkGradients<double> want = Adjoint(in);
  const ChunkGradients<float> got = RunKernel(in, SimdTarget::kScalar, true);
  EXPECT_LE(LargestError(got, want), 2e-6);
  for (size_t i = 0; i < got.dk.size(); ++i) {
    if (i % 32 % 3 != 0) continue;
    EXPECT_NEAR(got.dk[i], want.dk[i], 1e-5 * 1e-6) << i;
  }
}

TEST(KdaBackwardTest, UnboundedDecaysNeverOverflow) {
  ChunkCase in = MakeChunk(16, 32, 1.0f);
  for (size_t i = 0; i < in.alpha.size(); i += 3) in.alpha[i] = 1e-30f;
  for (size_t i = 1; i < in.alpha.size(); i += 7) in.alpha[i] = 0.0f;
  EXPECT_LE(LargestError(RunKernel(in, SimdTarget::kScalar, false), Adjoint(in)), 2e-6);
}

TEST(KdaBackwardTest, TargetsGiveTheSameBits) {
  for (int64_t dim : {24, 40, 64}) {
    for (bool bounded : {true, false}) {
      const ChunkCase in = MakeChunk(13, dim, 3.0f);
      const ChunkGradients<float> want = RunKernel(in, SimdTarget::kScalar, bounded);
      for (SimdTarget target : SupportedTargets()) {
        const ChunkGradients<float> got = RunKernel(in, target, bounded);
        EXPECT_TRUE(SameBits(want.dq, got.dq) && SameBits(want.dk, got.dk) &&
                    SameBits(want.dg, got.dg) && SameBits(want.dv, got.dv) &&
                    SameBits(want.dbeta, got.dbeta) && SameBits(want.dstate, got.dstate))
            << SimdTargetName(target) << ", dim " << dim << ", bounded " << bounded;
      }
    }
  }
}

/// Everything that the row kernels write, one after the other.
std::vector<float> RunRowKernels(SimdTarget target, int64_t n, int64_t taps) {
  const KdaBackwardKernels kernel = Kernels(target).kda_backward;
  constexpr int64_t kRows = 5;
  const std::vector<float> x = RandomFloats(n, 1), w = RandomFloats(n, 2),
                           gate = RandomFloats(n, 3);
  const std::vector<float> dy = RandomFloats(n, 4), weights = RandomFloats(taps * n, 5);
  const std::vector<float> u = RandomFloats((taps - 1 + kRows) * n, 6);
  const std::vector<float> dsum = RandomFloats((kRows + taps - 1) * n, 7);
  std::vector<const float*> rows;
  for (int64_t i = 0; i < taps - 1 + kRows; ++i) rows.push_back(&u[static_cast<size_t>(i * n)]);
  std::vector<float> out(static_cast<size_t>((11 + kRows + taps) * n + 32)), scratch(x.size());
  float* at = out.data();
  kernel.gated_rms_norm(x.data(), w.data(), gate.data(), dy.data(), n, 1e-5f, at, at + n,
                        at + 2 * n, at + 3 * n);
  kernel.silu_norm(rows.data(), weights.data(), n, taps, n, 1e-6f, 0.3f, dy.data(), at + 4 * n,
                   scratch.data());
  kernel.silu_norm(rows.data(), weights.data(), n, taps, n, 1e-6f, 0.0f, dy.data(), at + 5 * n,
                   scratch.data());
  at += 6 * n;
  kernel.bounded_decay(x.data(), w.data(), 1.3f, -5.0f, dy.data(), n, at, at + n, at + 2 * n);
  at += 2 * n + 16;
  kernel.unbounded_decay(x.data(), w.data(), 1.3f, dy.data(), n, at, at + n, at + 2 * n);
  at += 2 * n + 16;
  kernel.convolution(dsum.data(), n, rows.data(), kRows, weights.data(), n, taps, n, at, n,
                     at + kRows * n, n);
  for (int64_t d = 0; d < n; ++d) {
    for (int64_t t = 0; t < kRows; ++t) {
      double want = 0;
      for (int64_t j = 0; j < taps; ++j) {
        want += double{weights[(taps - 1 - j) * n + d]} * dsum[(t + j) * n + d];
      }
      EXPECT_NEAR(at[t * n + d], want, 1e-5);  // a few roundings of terms of about ten
    }
    for (int64_t j = 0; j < taps; ++j) {
      double want = 0;
      for (int64_t t = 0; t < kRows; ++t) want += double{dsum[t * n + d]} * u[(t + j) * n + d];
      EXPECT_NEAR(at[(kRows + j) * n + d], want, 1e-5);
    }
  }
  return out;
}

TEST(KdaBackwardTest, RowKernelsGiveTheSameBitsOnEveryTarget) {
  for (int64_t n : {1, 15, 16, 24, 64, 129}) {
    for (int64_t taps : {1, 2, 4, 7}) {
      const std::vector<float> want = RunRowKernels(SimdTarget::kScalar, n, taps);
      for (SimdTarget target : SupportedTargets()) {
        EXPECT_TRUE(SameBits(want, RunRowKernels(target, n, taps)))
            << SimdTargetName(target) << ", " << n << " channels, " << taps << " taps";
      }
    }
  }
}

}  // namespace
}  // namespace k3::kernels
