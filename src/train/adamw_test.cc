#include "train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace k3::train {
namespace {

std::vector<float> Normals(int64_t n, uint64_t stream) {
  Random random(7, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = random.NextNormal();
  return values;
}

TEST(AdamWTest, FollowsTheFormulaInDouble) {
  ThreadPool pool(1);
  const AdamWOptions options{.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  constexpr int64_t kCount = 300;
  std::vector<float> weights = Normals(kCount, 0);
  std::vector<double> w(weights.begin(), weights.end());
  std::vector<double> m(w.size());
  std::vector<double> v(w.size());
  AdamWState state(kCount);
  for (int t = 1; t <= 20; ++t) {
    const std::vector<float> gradient = Normals(kCount, static_cast<uint64_t>(t));
    AdamWStep(&pool, options, 0.01f, gradient, weights, &state);
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * gradient[i];
      v[i] = 0.95 * v[i] + 0.05 * gradient[i] * gradient[i];
      const double step =
          m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
      w[i] -= 0.01 * (step + 0.1 * w[i]);
    }
  }
  EXPECT_EQ(state.steps, 20);
  // Twenty steps of 0.01, each right to a few parts in ten million.
  for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(weights[i], w[i], 1e-6) << i;
}

TEST(AdamWTest, TheFirstStepIsTheSignOfTheGradient) {
  ThreadPool pool(1);
  std::vector<float> weights = {1.0f, 1.0f, 1.0f};
  AdamWState state(3);
  const std::vector<float> gradient = {1e-3f, -50.0f, 0.0f};
  AdamWStep(&pool, {.weight_decay = 0.0f}, 0.125f, gradient, weights, &state);
  EXPECT_NEAR(weights[0], 0.875f, 1e-5);  // Epsilon is a hundred thousandth of this gradient.
  EXPECT_NEAR(weights[1], 1.125f, 1e-6);
  EXPECT_EQ(weights[2], 1.0f);
}

TEST(AdamWTest, DecayAloneShrinksTheWeights) {
  ThreadPool pool(1);
  std::vector<float> weights = {2.0f, -4.0f};
  AdamWState state(2);
  AdamWStep(&pool, {.weight_decay = 0.5f}, 0.25f, std::vector<float>(2), weights, &state);
  EXPECT_EQ(weights, (std::vector<float>{1.75f, -3.5f}));
}

TEST(AdamWTest, ThreadsDoNotChangeTheBits) {
  constexpr int64_t kCount = 100003;
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<float> weights = Normals(kCount, 0);
    AdamWState state(kCount);
    for (uint64_t t = 1; t <= 3; ++t) {
      AdamWStep(&pool, {}, 0.01f, Normals(kCount, t), weights, &state);
    }
    if (threads == 1) first = weights;
    EXPECT_EQ(weights, first) << threads;
  }
}

}  // namespace
}  // namespace k3::train
