// The promise of every row kernel: the same bits on every target, at every length and offset. The
// scalar target is compared with plain formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/kernel_test_util.h"
#include "tensor/number_formats.h"

namespace k3::kernels {
namespace {

constexpr int64_t kLengthMax = 130;
constexpr int64_t kOffsets = 17;

/// A kernel on up to three inputs of n floats with n outputs.
struct Case {
  std::string name;
  std::function<void(const ElementwiseKernels&, const float* a, const float* b, const float* c,
                     int64_t n, float* y)>
      run;
  // Whether element i depends on the inputs' element i alone.
  bool is_map = true;
};

std::vector<Case> Cases() {
  using E = ElementwiseKernels;
  using P = const float*;
  return {
      {"exp", [](const E& e, P a, P, P, int64_t n, float* y) { e.exp(a, n, y); }},
      {"sigmoid", [](const E& e, P a, P, P, int64_t n, float* y) { e.sigmoid(a, n, y); }},
      {"tanh", [](const E& e, P a, P, P, int64_t n, float* y) { e.tanh(a, n, y); }},
      {"softplus", [](const E& e, P a, P, P, int64_t n, float* y) { e.softplus(a, n, y); }},
      {"situ", [](const E& e, P a, P b, P, int64_t n, float* y) { e.situ(a, b, n, 4, 25, y); }},
      {"situ_linear",
       [](const E& e, P a, P b, P, int64_t n, float* y) { e.situ(a, b, n, 4, 0, y); }},
      {"sigmoid_gate",
       [](const E& e, P a, P b, P, int64_t n, float* y) { e.sigmoid_gate(a, b, n, y); }},
      {"scale", [](const E& e, P a, P, P, int64_t n, float* y) { e.scale(0.3f, a, n, y); }},
      {"bounded_decay",
       [](const E& e, P a, P b, P, int64_t n, float* y) { e.bounded_decay(a, b, 1.3f, -5, n, y); }},
      {"unbounded_decay",
       [](const E& e, P a, P b, P, int64_t n, float* y) { e.unbounded_decay(a, b, 1.3f, n, y); }},
      {"conv_silu",
       [](const E& e, P a, P b, P c, int64_t n, float* y) {
         const float* rows[3] = {a, b, c};
         std::vector<float> w(static_cast<size_t>(3 * n));
         for (int64_t j = 0; j < 3; ++j) {
           for (int64_t i = 0; i < n; ++i) w[static_cast<size_t>(j * n + i)] = 0.1f * (j + 1);
         }
         e.conv_silu(rows, w.data(), n, 3, n, y);
       }},
      {"weighted_sum",
       [](const E& e, P a, P b, P c, int64_t n, float* y) {
         const float* rows[3] = {a, b, c};
         const float p[3] = {0.2f, 0.5f, 0.3f};
         e.weighted_sum(rows, p, 3, n, y);
       }},
      {"rms_norm",
       [](const E& e, P a, P b, P, int64_t n, float* y) { e.rms_norm(a, b, n, 1e-5f, y); }, false},
      {"gated_rms_norm",
       [](const E& e, P a, P b, P c, int64_t n, float* y) {
         e.gated_rms_norm(a, b, c, n, 1e-5f, y);
       },
       false},
      {"l2_norm",
       [](const E& e, P a, P, P, int64_t n, float* y) { e.l2_norm(a, n, 1e-6f, 0.5f, y); }, false},
      {"exp_block",
       [](const E& e, P a, P, P, int64_t n, float* y) {
         std::copy(a, a + n, y);
         float max = 0, sum = 0;
         e.exp_block(y, n, 0.7f, &max, &sum);
         y[0] += max + sum;
       },
       false},
      {"dot",
       [](const E& e, P a, P b, P, int64_t n, float* y) { std::fill(y, y + n, e.dot(a, b, n)); },
       false},
      {"mix_score",
       [](const E& e, P a, P b, P, int64_t n, float* y) {
         std::fill(y, y + n, e.mix_score(a, b, n, 1e-5f));
       },
       false},
  };
}

TEST(ElementwiseTest, EveryLengthOffsetAndTargetGivesTheSameBits) {
  const std::vector<float> a = RandomFloats(200, 1, 3), b = RandomFloats(200, 2, 3),
                           c = RandomFloats(200, 3, 3);
  const KernelTable scalar = Kernels(SimdTarget::kScalar);
  for (const Case& test : Cases()) {
    for (SimdTarget target : SupportedTargets()) {
      const KernelTable k = Kernels(target);
      for (int64_t n = 1; n <= kLengthMax; ++n) {
        std::vector<float> want(static_cast<size_t>(n));
        test.run(scalar.elementwise, a.data(), b.data(), c.data(), n, want.data());
        for (int64_t offset = 0; offset < kOffsets; ++offset) {
          // The same values at another address; a guard behind shows writes beyond the end.
          std::vector<float> a2(a), b2(b), c2(c), got(static_cast<size_t>(n + offset + 1), -7.0f);
          const auto shifted = [&](std::vector<float>& v, const std::vector<float>& from) {
            std::copy(from.begin(), from.begin() + n, v.begin() + offset);
            return v.data() + offset;
          };
          test.run(k.elementwise, shifted(a2, a), shifted(b2, b), shifted(c2, c), n,
                   got.data() + offset);
          ASSERT_TRUE(SameBits(want.data(), got.data() + offset, n))
              << test.name << " on " << SimdTargetName(target) << ", n " << n << ", offset "
              << offset;
          ASSERT_EQ(got.back(), -7.0f) << test.name << " wrote beyond its end";
        }
      }
    }
  }
}

TEST(ElementwiseTest, MapsDoNotLookAtNeighbours) {
  const std::vector<float> a = RandomFloats(130, 1, 3), b = RandomFloats(130, 2, 3),
                           c = RandomFloats(130, 3, 3);
  for (const Case& test : Cases()) {
    if (!test.is_map) continue;
    for (SimdTarget target : SupportedTargets()) {
      const KernelTable k = Kernels(target);
      std::vector<float> whole(130);
      test.run(k.elementwise, a.data(), b.data(), c.data(), 130, whole.data());
      for (int64_t i = 0; i < 130; ++i) {
        float one = 0;
        test.run(k.elementwise, &a[i], &b[i], &c[i], 1, &one);
        ASSERT_TRUE(SameBits(&one, &whole[i], 1)) << test.name << " element " << i;
      }
    }
  }
}

TEST(ElementwiseTest, AgreesWithPlainFormulas) {
  const KernelTable k = Kernels(SimdTarget::kScalar);
  const std::vector<float> a = RandomFloats(77, 4, 2), b = RandomFloats(77, 5, 2),
                           c = RandomFloats(77, 6, 2);
  std::vector<float> y(77);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  // 1e-6 is some ten roundings of float32.
  const auto expect = [&](auto formula) {
    for (size_t i = 0; i < y.size(); ++i) {
      const double want = formula(i);
      EXPECT_NEAR(y[i], want, 1e-6 * (1 + std::fabs(want))) << i;
    }
  };
  double squares = 0;
  for (float x : a) squares += double{x} * x;
  const double rms = std::sqrt(squares / 77 + 1e-5);
  k.elementwise.rms_norm(a.data(), b.data(), 77, 1e-5f, y.data());
  expect([&](size_t i) { return a[i] / rms * b[i]; });
  k.elementwise.gated_rms_norm(a.data(), b.data(), c.data(), 77, 1e-5f, y.data());
  expect([&](size_t i) { return a[i] / rms * b[i] * sigmoid(c[i]); });
  k.elementwise.l2_norm(a.data(), 77, 1e-6f, 0.25f, y.data());
  expect([&](size_t i) { return 0.25 * a[i] / std::sqrt(squares + 1e-6); });
  k.elementwise.situ(a.data(), b.data(), 77, 4, 25, y.data());
  expect([&](size_t i) {
    return 4 * std::tanh(a[i] / 4.0) * sigmoid(a[i]) * 25 * std::tanh(b[i] / 25.0);
  });
  k.elementwise.bounded_decay(a.data(), b.data(), 0.8f, -5, 77, y.data());
  expect([&](size_t i) { return std::exp(-5 * sigmoid(0.8f * (double{a[i]} + b[i]))); });
  k.elementwise.unbounded_decay(a.data(), b.data(), 0.8f, 77, y.data());
  expect([&](size_t i) { return std::exp(-0.8f * std::log1p(std::exp(double{a[i]} + b[i]))); });
}

TEST(ElementwiseTest, ExpBlockOfNothingVisible) {
  for (SimdTarget target : SupportedTargets()) {
    std::vector<float> x(20, -INFINITY);
    float max = 0, sum = 1;
    Kernels(target).elementwise.exp_block(x.data(), 20, 1.0f, &max, &sum);
    EXPECT_EQ(sum, 0.0f);
    for (float value : x) EXPECT_EQ(value, 0.0f);
  }
}

TEST(ElementwiseTest, WidensEveryBf16AndHalfAtAnyAlignment) {
  std::vector<uint8_t> bytes(2 * 65536 + 1);
  for (uint32_t i = 0; i < 65536; ++i) {
    bytes[1 + 2 * i] = static_cast<uint8_t>(i);
    bytes[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
  }
  for (SimdTarget target : SupportedTargets()) {
    const KernelTable k = Kernels(target);
    std::vector<float> y(65536);
    k.elementwise.widen({bytes.data() + 1, nullptr, 1, 65536, WeightFormat::kBf16}, 0, y.data());
    for (uint32_t i = 0; i < 65536; ++i) {
      const float want = Bf16ToFloat(static_cast<uint16_t>(i));
      ASSERT_TRUE(SameBits(&want, &y[i], 1)) << i;
    }
    k.elementwise.widen({bytes.data() + 1, nullptr, 1, 65536, WeightFormat::kF16}, 0, y.data());
    for (uint32_t i = 0; i < 65536; ++i) {
      const float want = HalfToFloat(static_cast<uint16_t>(i));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_TRUE(SameBits(&want, &y[i], 1)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace k3::kernels
