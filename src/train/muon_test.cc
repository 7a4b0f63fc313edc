#include "train/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace k3::train {
namespace {

using Doubles = std::vector<double>;

std::vector<float> Normals(int64_t n, uint64_t stream, float scale = 1) {
  Random random(5, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = scale * random.NextNormal();
  return values;
}

template <typename T>
std::vector<T> Transposed(const std::vector<T>& x, int64_t rows, int64_t cols) {
  std::vector<T> out(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      out[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * cols + j)];
    }
  }
  return out;
}

/// a [m, k] times b [k, n].
Doubles Multiply(const Doubles& a, const Doubles& b, int64_t m, int64_t k, int64_t n) {
  Doubles c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double factor = a[static_cast<size_t>(i * k + p)];
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += factor * b[p * n + j];
    }
  }
  return c;
}

/// The formulas of the header, straight and in float64.
Doubles Reference(const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  Doubles x(matrix.begin(), matrix.end());
  if (rows > cols)
    return Transposed(Reference(Transposed(matrix, rows, cols), cols, rows), cols, rows);
  double norm = 0;
  for (const double value : x) norm += value * value;
  for (double& value : x) value /= std::sqrt(norm) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    const Doubles a = Multiply(x, Transposed(x, rows, cols), rows, cols, rows);
    const Doubles aa = Multiply(a, a, rows, rows, rows);
    Doubles polynomial(a.size());
    for (size_t j = 0; j < a.size(); ++j) polynomial[j] = -4.7750 * a[j] + 2.0315 * aa[j];
    const Doubles change = Multiply(polynomial, x, rows, rows, cols);
    for (size_t j = 0; j < x.size(); ++j) x[j] = 3.4445 * x[j] + change[j];
  }
  return x;
}

/// Singular values of x [rows, cols], rows <= cols: one-sided Jacobi turns pairs of rows until all
/// are orthogonal.
Doubles SingularValues(const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  Doubles x(matrix.begin(), matrix.end());
  const auto dot = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < cols; ++k) sum += x[i * cols + k] * x[j * cols + k];
    return sum;
  };
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = i + 1; j < rows; ++j) {
        const double between = dot(i, j);
        if (std::abs(between) < 1e-14) continue;
        const double zeta = (dot(j, j) - dot(i, i)) / (2 * between);
        const double t = std::copysign(1 / (std::abs(zeta) + std::hypot(1, zeta)), zeta);
        const double c = 1 / std::hypot(1, t);
        for (int64_t k = 0; k < cols; ++k) {
          const double a = x[i * cols + k];
          const double b = x[j * cols + k];
          x[i * cols + k] = c * (a - t * b);
          x[j * cols + k] = c * (t * a + b);
        }
      }
    }
  }
  Doubles values;
  for (int64_t i = 0; i < rows; ++i) values.push_back(std::sqrt(dot(i, i)));
  return values;
}

class MuonTest : public testing::Test {
 protected:
  std::vector<float> Orthogonal(const MuonShape& shape, const std::vector<float>& matrix) {
    std::vector<float> out(matrix.size());
    muon_.Orthogonalise(shape, matrix, out);
    return out;
  }

  kernels::KernelTable kernels_ = kernels::Kernels(BestSimdTarget());
  ThreadPool pool_{2};
  Muon muon_{&pool_, &kernels_, {}};
};

TEST_F(MuonTest, AgreesWithTheReference) {
  for (const auto& [rows, cols] :
       {std::pair{1, 1}, std::pair{1, 40}, std::pair{40, 1}, std::pair{5, 7}, std::pair{64, 64},
        std::pair{65, 130}, std::pair{130, 65}, std::pair{33, 600}, std::pair{200, 90}}) {
    const std::vector<float> matrix = Normals(rows * cols, 1, 1e-3f);
    const std::vector<float> out = Orthogonal({.rows = rows, .cols = cols}, matrix);
    const Doubles expected = Reference(matrix, rows, cols);
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
    // Singular values near 0 grow by 3.4445^5 = 485, and so does float32's rounding of them.
    EXPECT_LT(worst, 1e-4) << rows << " x " << cols;
  }
}

TEST_F(MuonTest, SingularValuesComeNearOne) {
  for (const auto& [rows, cols] : {std::pair{16, 64}, std::pair{64, 16}, std::pair{48, 96}}) {
    const std::vector<float> matrix = Normals(rows * cols, 2);
    std::vector<float> out = Orthogonal({.rows = rows, .cols = cols}, matrix);
    if (rows > cols) out = Transposed(out, rows, cols);
    const Doubles values = SingularValues(out, std::min(rows, cols), std::max(rows, cols));
    EXPECT_GT(*std::ranges::min_element(values), 0.65);  // The polynomial's own band, 0.68 to 1.2.
    EXPECT_LT(*std::ranges::max_element(values), 1.25);
  }
}

TEST_F(MuonTest, UpdatesHaveOneSizeForEveryShape) {
  for (const auto& [rows, cols] : {std::pair{32, 128}, std::pair{128, 32}, std::pair{96, 64}}) {
    std::vector<float> weights(static_cast<size_t>(rows * cols));
    std::vector<float> momentum(weights.size());
    muon_.Step({.rows = rows, .cols = cols, .block_rows = {rows / 2}},
               Normals(rows * cols, 3, 40.0f), 1.0f, momentum, weights);
    double sum = 0;
    for (const float weight : weights) sum += static_cast<double>(weight) * weight;
    const double rms = std::sqrt(sum / static_cast<double>(weights.size()));
    // 0.2 times the root mean square of the singular values, about 0.9.
    EXPECT_NEAR(rms, 0.2 * 0.9, 0.2 * 0.15) << rows << " x " << cols;
  }
}

TEST_F(MuonTest, ABlockInAMatrixIsTheBlockAlone) {
  // Wide blocks, tall ones, and a pattern with both.
  for (const std::vector<int64_t>& pattern : {std::vector<int64_t>{24}, {72}, {16, 56}, {70, 2}}) {
    constexpr int64_t kRows = 144;
    constexpr int64_t kCols = 40;
    const std::vector<float> matrix = Normals(kRows * kCols, 4);
    const std::vector<float> out =
        Orthogonal({.rows = kRows, .cols = kCols, .block_rows = pattern}, matrix);
    int64_t row = 0;
    for (size_t i = 0; row < kRows; ++i) {
      const int64_t height = pattern[i % pattern.size()];
      const auto part = [&](const std::vector<float>& from) {
        const auto begin = from.begin() + row * kCols;
        return std::vector<float>(begin, begin + height * kCols);
      };
      EXPECT_EQ(part(out), Orthogonal({.rows = height, .cols = kCols}, part(matrix))) << row;
      row += height;
    }
  }
}

TEST_F(MuonTest, ATransposedMatrixGivesTheTransposedUpdate) {
  for (const auto& [rows, cols] : {std::pair{30, 100}, std::pair{50, 50}}) {
    const std::vector<float> matrix = Normals(rows * cols, 6);
    const std::vector<float> straight = Orthogonal({.rows = rows, .cols = cols}, matrix);
    const std::vector<float> turned = Transposed(
        Orthogonal({.rows = cols, .cols = rows}, Transposed(matrix, rows, cols)), cols, rows);
    // The norm is summed in another order, and of a square the other Gram matrix is taken.
    for (size_t i = 0; i < turned.size(); ++i) EXPECT_NEAR(turned[i], straight[i], 2e-5);
  }
}

TEST_F(MuonTest, ThreadsAndTargetsDoNotChangeTheBits) {
  std::vector<float> first;
  for (const SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    if (!IsSupported(target)) continue;
    const kernels::KernelTable kernels = kernels::Kernels(target);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Muon muon(&pool, &kernels, {});
      constexpr int64_t kSize = int64_t{210} * 70;
      std::vector<float> weights = Normals(kSize, 7);
      std::vector<float> momentum(weights.size());
      for (const int64_t block : {210, 35, 105}) {
        const MuonShape shape{.rows = 210, .cols = 70, .block_rows = {block}};
        muon.Step(shape, Normals(kSize, static_cast<uint64_t>(block)), 0.02f, momentum, weights);
      }
      if (first.empty()) first = weights;
      EXPECT_EQ(weights, first) << SimdTargetName(target) << ", " << threads << " threads";
    }
  }
}

TEST_F(MuonTest, MomentumFollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    Muon muon(&pool_, &kernels_,
              {.momentum = 0.5f, .nesterov = nesterov, .weight_decay = 0.0f, .update_rms = 0.25f});
    const MuonShape shape{.rows = 8, .cols = 16};
    std::vector<float> weights(128);
    std::vector<float> momentum(128);
    const std::vector<float> g1 = Normals(128, 8);
    const std::vector<float> g2 = Normals(128, 9);
    muon.Step(shape, g1, 0.5f, momentum, weights);
    std::ranges::fill(weights, 0.0f);
    muon.Step(shape, g2, 0.5f, momentum, weights);
    std::vector<float> update(128);
    for (size_t i = 0; i < update.size(); ++i) {
      const float m = 0.5f * g1[i] + g2[i];
      EXPECT_EQ(momentum[i], m);
      update[i] = nesterov ? g2[i] + 0.5f * m : m;
    }
    const std::vector<float> o = Orthogonal(shape, update);
    for (size_t i = 0; i < o.size(); ++i)
      EXPECT_EQ(weights[i], -0.5f * o[i]);  // 0.25 sqrt(16) = 1.
  }
}

TEST_F(MuonTest, WithoutAGradientOnlyTheDecayIsLeft) {
  Muon muon(&pool_, &kernels_, {.weight_decay = 0.5f});
  const std::vector<float> before = Normals(96, 10);
  std::vector<float> weights = before;
  std::vector<float> momentum(96);
  const MuonShape shape{.rows = 8, .cols = 12, .block_rows = {2}};
  muon.Step(shape, std::vector<float>(96), 0.25f, momentum, weights);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(weights[i], 0.875f * before[i]);
  // And one silent head beside others leaves them as they are.
  std::vector<float> gradient = Normals(96, 11);
  std::fill_n(gradient.begin(), 24, 0.0f);
  const std::vector<float> out = Orthogonal(shape, gradient);
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(std::isfinite(out[i]));
    EXPECT_EQ(out[i] == 0, i < 24);
  }
}

TEST(MuonDeathTest, APatternThatDoesNotEndWithTheMatrixIsRefused) {
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  ThreadPool pool(1);  // A death test forks.
  Muon muon(&pool, &kernels, {});
  std::vector<float> matrix(60);
  for (const std::vector<int64_t>& pattern : {std::vector<int64_t>{4}, {3, 4}, {0}, {7}}) {
    const MuonShape shape{.rows = 6, .cols = 10, .block_rows = pattern};
    EXPECT_DEATH(muon.Orthogonalise(shape, matrix, matrix), "pattern");
  }
}

}  // namespace
}  // namespace k3::train
