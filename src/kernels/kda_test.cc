// KDA's chunk kernel against the recurrence in float64, and its own promise: rows appended one by
// one, in pieces or as a whole chunk give the same bits, on every target.
#include <gtest/gtest.h>

#include <cmath>

#include "base/arithmetic.h"
#include "kernels/kernel_test_util.h"

namespace k3::kernels {
namespace {

struct Inputs {
  int64_t tokens, key_dim;
  std::vector<float> q, k, v, alpha, beta;
};

/// Unit keys, beta in (0, 1); decays from about e^-strength up to 1.
Inputs MakeInputs(int64_t tokens, int64_t dim, float strength) {
  Inputs in{tokens,
            dim,
            RandomFloats(tokens * dim, 1),
            RandomFloats(tokens * dim, 2),
            RandomFloats(tokens * dim, 3),
            RandomFloats(tokens * dim, 4),
            RandomFloats(tokens, 5)};
  const ElementwiseKernels e = Kernels(SimdTarget::kScalar).elementwise;
  for (int64_t t = 0; t < tokens; ++t) {
    e.l2_norm(&in.q[t * dim], dim, 1e-6f, 0.3f, &in.q[t * dim]);
    e.l2_norm(&in.k[t * dim], dim, 1e-6f, 1.0f, &in.k[t * dim]);
  }
  const std::vector<float> zero(in.alpha.size());
  e.bounded_decay(in.alpha.data(), zero.data(), 3.0f, -strength, tokens * dim, in.alpha.data());
  e.sigmoid(in.beta.data(), tokens, in.beta.data());
  return in;
}

/// The recurrence of the technical report, token by token in double.
std::vector<double> Recurrence(const Inputs& in) {
  const int64_t n = in.key_dim;
  std::vector<double> state(static_cast<size_t>(n * n)), out;
  for (int64_t t = 0; t < in.tokens; ++t) {
    for (int64_t d = 0; d < n; ++d) {
      for (int64_t e = 0; e < n; ++e) state[d * n + e] *= in.alpha[t * n + d];
    }
    std::vector<double> u(static_cast<size_t>(n));
    for (int64_t e = 0; e < n; ++e) {
      double read = 0;
      for (int64_t d = 0; d < n; ++d) read += state[d * n + e] * in.k[t * n + d];
      u[e] = in.beta[t] * (in.v[t * n + e] - read);
    }
    for (int64_t d = 0; d < n; ++d) {
      for (int64_t e = 0; e < n; ++e) state[d * n + e] += in.k[t * n + d] * u[e];
    }
    for (int64_t e = 0; e < n; ++e) {
      double o = 0;
      for (int64_t d = 0; d < n; ++d) o += state[d * n + e] * in.q[t * n + d];
      out.push_back(o);
    }
  }
  return out;
}

/// Runs all tokens, cut into pieces of `piece` tokens.
std::vector<float> RunChunks(const Inputs& in, SimdTarget target, bool anchored, int64_t piece) {
  const KdaKernels kernel = Kernels(target).kda;
  const int64_t n = in.key_dim, stride = RoundUp(n, 16);
  std::vector<float> state(static_cast<size_t>(n * stride)), decay(static_cast<size_t>(16 * n)),
      keys(static_cast<size_t>(16 * n)), alpha(static_cast<size_t>(16 * n)),
      u(static_cast<size_t>(16 * stride)),
      scratch(static_cast<size_t>(KdaScratchFloats(n, stride))),
      out(static_cast<size_t>(in.tokens * n));
  const KdaHead head{n,
                     n,
                     stride,
                     state.data(),
                     decay.data(),
                     keys.data(),
                     anchored ? nullptr : alpha.data(),
                     u.data()};
  for (int64_t t = 0; t < in.tokens;) {
    const int64_t row = t % kKdaChunk;
    const int64_t count = std::min({kKdaChunk - row, piece, in.tokens - t});
    kernel.append(head,
                  {.first = row,
                   .count = count,
                   .q = &in.q[t * n],
                   .k = &in.k[t * n],
                   .alpha = &in.alpha[t * n],
                   .key_ld = n,
                   .alpha_ld = n,
                   .v = &in.v[t * n],
                   .v_ld = n,
                   .beta = &in.beta[t],
                   .beta_ld = 1,
                   .o = &out[t * n],
                   .o_ld = n},
                  scratch.data());
    if (row + count == kKdaChunk) kernel.fold(head, state.data(), scratch.data());
    t += count;
  }
  return out;
}

double RelativeError(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

TEST(KdaTest, EqualsTheRecurrence) {
  for (int64_t dim : {8, 24, 32, 128}) {
    // Strength 5 is K3's floor: 16 tokens of it span 80 nats. 1e-6 is float32's rounding over the
    // few hundred terms of an output.
    for (float strength : {0.01f, 1.0f, 5.0f}) {
      const Inputs in = MakeInputs(100, dim, strength);
      const std::vector<double> want = Recurrence(in);
      EXPECT_LE(RelativeError(RunChunks(in, SimdTarget::kScalar, true, 16), want), 1e-6)
          << "anchored, dim " << dim << ", strength " << strength;
      EXPECT_LE(RelativeError(RunChunks(in, SimdTarget::kScalar, false, 16), want), 1e-6)
          << "unbounded, dim " << dim << ", strength " << strength;
    }
  }
}

TEST(KdaTest, UnboundedDecaysNeverOverflow) {
  Inputs in = MakeInputs(64, 32, 1.0f);
  for (size_t i = 0; i < in.alpha.size(); i += 3) in.alpha[i] = 1e-30f;
  for (size_t i = 1; i < in.alpha.size(); i += 7) in.alpha[i] = 0.0f;
  EXPECT_LE(RelativeError(RunChunks(in, SimdTarget::kScalar, false, 16), Recurrence(in)), 1e-6);
}

TEST(KdaTest, PiecesAndTargetsGiveTheSameBits) {
  for (int64_t dim : {24, 64}) {
    for (bool anchored : {true, false}) {
      const Inputs in = MakeInputs(75, dim, 5.0f);
      const std::vector<float> want = RunChunks(in, SimdTarget::kScalar, anchored, 16);
      for (SimdTarget target : SupportedTargets()) {
        for (int64_t piece : {1, 2, 3, 5, 7, 16}) {
          EXPECT_TRUE(SameBits(want, RunChunks(in, target, anchored, piece)))
              << SimdTargetName(target) << ", pieces of " << piece << ", dim " << dim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::kernels
