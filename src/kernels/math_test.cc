// Accuracy of exp, sigmoid, tanh and softplus against the exact functions, and their edges.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernel_test_util.h"

namespace k3::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Distance in units of the last place of the exact value.
double Ulps(float got, double exact) {
  const float nearest = static_cast<float>(exact);
  if (got == nearest) return 0;
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(got - exact) / ulp;
}

/// Every 997th float between the two, both signs: about four million values.
template <typename F>
void ForFloats(float largest, const F& f) {
  const uint32_t end = std::bit_cast<uint32_t>(largest);
  std::vector<float> x;
  for (uint32_t bits = 0; bits < end; bits += 997) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-x.back());
  }
  f(x);
}

class MathTest : public ::testing::TestWithParam<SimdTarget> {
 protected:
  double WorstUlps(void (*kernel)(const float*, int64_t, float*), double (*exact)(double),
                   float largest) {
    double worst = 0;
    ForFloats(largest, [&](const std::vector<float>& x) {
      std::vector<float> y(x.size());
      kernel(x.data(), static_cast<int64_t>(x.size()), y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(x[i]);
        // Below the smallest normal number one rounding step is all that can be asked for.
        worst = std::max(worst, Ulps(y[i], want));
      }
    });
    return worst;
  }
  const KernelTable k_ = Kernels(GetParam());
};

TEST_P(MathTest, ExpIsWithinTwoUlps) {
  EXPECT_LE(WorstUlps(k_.elementwise.exp, [](double x) { return std::exp(x); }, 88.7f), 2.0);
}

TEST_P(MathTest, SigmoidIsWithinThreeUlps) {
  EXPECT_LE(WorstUlps(
                k_.elementwise.sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 87.0f),
            3.0);
}

TEST_P(MathTest, TanhIsWithinTwoUlps) {
  EXPECT_LE(WorstUlps(k_.elementwise.tanh, [](double x) { return std::tanh(x); }, 1e30f), 2.0);
}

TEST_P(MathTest, SoftplusIsWithinThreeUlps) {
  EXPECT_LE(
      WorstUlps(
          k_.elementwise.softplus,
          [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, 87.0f),
      3.0);
}

TEST_P(MathTest, Edges) {
  const auto value = [&](auto kernel, float x) {
    float y = 0;
    kernel(&x, 1, &y);
    return y;
  };
  const ElementwiseKernels& e = k_.elementwise;
  EXPECT_EQ(value(e.exp, 0.0f), 1.0f);
  EXPECT_EQ(value(e.exp, -kInfinity), 0.0f);
  EXPECT_EQ(value(e.exp, kInfinity), kInfinity);
  EXPECT_EQ(value(e.exp, -200.0f), 0.0f);
  EXPECT_GT(value(e.exp, -100.0f), 0.0f);  // a denormal
  EXPECT_TRUE(std::isnan(value(e.exp, NAN)));
  EXPECT_EQ(value(e.sigmoid, kInfinity), 1.0f);
  EXPECT_EQ(value(e.sigmoid, -kInfinity), 0.0f);
  EXPECT_EQ(value(e.sigmoid, 0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(value(e.sigmoid, NAN)));
  EXPECT_EQ(value(e.tanh, kInfinity), 1.0f);
  EXPECT_EQ(value(e.tanh, -kInfinity), -1.0f);
  EXPECT_EQ(value(e.tanh, 1e-30f), 1e-30f);
  EXPECT_TRUE(std::isnan(value(e.tanh, NAN)));
  EXPECT_EQ(value(e.softplus, -kInfinity), 0.0f);
  EXPECT_EQ(value(e.softplus, kInfinity), kInfinity);
}

INSTANTIATE_TEST_SUITE_P(Targets, MathTest, ::testing::ValuesIn(SupportedTargets()),
                         [](const auto& param) {
                           return std::string(SimdTargetName(param.param));
                         });

}  // namespace
}  // namespace k3::kernels
