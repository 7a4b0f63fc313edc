#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/arithmetic.h"
#include "base/random.h"
#include "ops/linear.h"
#include "ops/rows.h"
#include "ops/top_k.h"
#include "tensor/number_formats.h"

namespace k3::ops {
namespace {

struct Context {
  explicit Context(int threads) : pool(threads) {}
  ThreadPool pool;
  Arena arena;
  kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  ExecContext exec{&pool, &arena, &kernels};
};

std::vector<float> RandomFloats(int64_t count, uint64_t stream) {
  Random random(23, stream);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.NextNormal();
  return values;
}

std::vector<uint16_t> RandomBf16(int64_t count, uint64_t stream) {
  std::vector<uint16_t> bits;
  for (float value : RandomFloats(count, stream)) bits.push_back(FloatToBf16(value));
  return bits;
}

TEST(TopKTest, PrefersLowerIndicesAndSortsThem) {
  const std::vector<float> scores = {1, 5, 5, 2, 5, 0};
  std::vector<int32_t> top(2);
  TopK(scores, top);
  EXPECT_EQ(top, (std::vector<int32_t>{1, 2}));
  top.resize(4);
  TopK(scores, top);
  EXPECT_EQ(top, (std::vector<int32_t>{1, 2, 3, 4}));
  top.resize(6);
  TopK(scores, top);
  EXPECT_EQ(top, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

TEST(TopKTest, NanIsNeverPreferred) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<int32_t> top(2);
  TopK(std::vector<float>{nan, -3, nan, -7}, top);
  EXPECT_EQ(top, (std::vector<int32_t>{1, 3}));
}

TEST(TopKTest, AgreesWithSorting) {
  Random random(5, 0);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> scores(1 + random.NextBelow(40));
    for (float& score : scores) score = static_cast<float>(random.NextBelow(8));
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    order.resize(1 + random.NextBelow(scores.size()));
    std::sort(order.begin(), order.end());
    std::vector<int32_t> top(order.size());
    TopK(scores, top);
    EXPECT_EQ(top, order);
  }
}

TEST(LinearTest, EveryRowIsAsIfAlone) {
  constexpr int64_t kIn = 200, kOut = 77;
  const std::vector<uint16_t> weights = RandomBf16(kIn * kOut, 1);
  const WeightMatrix w{weights.data(), nullptr, kOut, kIn, WeightFormat::kBf16};
  const std::vector<float> x = RandomFloats(100 * kIn, 2);
  Context one(1);
  std::vector<float> want(100 * kOut);
  for (int64_t t = 0; t < 100; ++t) {
    const RowSet row = SplitRows(one.exec, &x[t * kIn], 1, kIn, kIn);
    const LinearTask task{&row, w, &want[t * kOut], kOut};
    Linear(one.exec, {&task, 1});
  }
  for (int threads : {1, 2, 3}) {
    for (int64_t count : {1, 2, 6, 7, 12, 13, 50, 100}) {
      Context context(threads);
      std::vector<float> got(static_cast<size_t>(count * kOut));
      const RowSet rows = SplitRows(context.exec, x.data(), count, kIn, kIn);
      const LinearTask task{&rows, w, got.data(), kOut};
      Linear(context.exec, {&task, 1});
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
          << threads << " threads, " << count << " rows";
    }
  }
}

TEST(LinearTest, GatheredRowsAndSeveralTasks) {
  constexpr int64_t kIn = 96, kOut = 40;
  const std::vector<uint16_t> a = RandomBf16(kIn * kOut, 1), b = RandomBf16(kIn * kOut, 2);
  const std::vector<float> x = RandomFloats(20 * kIn, 3);
  Context context(2);
  const RowSet all = SplitRows(context.exec, x.data(), 20, kIn, kIn);
  const std::vector<int32_t> many = {3, 19, 0, 7, 7, 2, 11, 5, 6}, few = {4, 1};
  RowSet sets[2] = {GatherRows(context.exec, all, many), GatherRows(context.exec, all, few)};
  PackPanels(context.exec, sets);
  std::vector<float> whole(20 * kOut), whole_b(20 * kOut), ya(many.size() * kOut),
      yb(few.size() * kOut);
  const WeightMatrix wa{a.data(), nullptr, kOut, kIn, WeightFormat::kBf16};
  const WeightMatrix wb{b.data(), nullptr, kOut, kIn, WeightFormat::kBf16};
  const LinearTask tasks[] = {{&all, wa, whole.data(), kOut},
                              {&all, wb, whole_b.data(), kOut},
                              {&sets[0], wa, ya.data(), kOut},
                              {&sets[1], wb, yb.data(), kOut}};
  Linear(context.exec, tasks);
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_EQ(std::memcmp(&ya[i * kOut], &whole[many[i] * kOut], kOut * sizeof(float)), 0);
  }
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_EQ(std::memcmp(&yb[i * kOut], &whole_b[few[i] * kOut], kOut * sizeof(float)), 0);
  }
}

TEST(RowsTest, MixIsASoftmaxOverSources) {
  constexpr int64_t kWidth = 50;
  const std::vector<float> a = RandomFloats(3 * kWidth, 1), b = RandomFloats(3 * kWidth, 2),
                           w = RandomFloats(kWidth, 3);
  Context context(2);
  const float* sources[] = {a.data(), b.data()};
  std::vector<float> y(3 * kWidth);
  MixSources(context.exec, sources, w, 1e-5f, 3, y.data());
  for (int64_t t = 0; t < 3; ++t) {
    double scores[2];
    for (int s = 0; s < 2; ++s) {
      const float* x = sources[s] + t * kWidth;
      const double squares = std::inner_product(x, x + kWidth, x, 0.0);
      scores[s] =
          std::inner_product(x, x + kWidth, w.begin(), 0.0) / std::sqrt(squares / kWidth + 1e-5);
    }
    const double p = 1 / (1 + std::exp(scores[1] - scores[0]));
    for (int64_t i = 0; i < kWidth; ++i) {
      // Some ten roundings of float32.
      EXPECT_NEAR(y[t * kWidth + i], p * a[t * kWidth + i] + (1 - p) * b[t * kWidth + i], 2e-6);
    }
  }
}

TEST(RowsTest, EmbedReadsBf16AndF32Rows) {
  const std::vector<uint16_t> table = RandomBf16(10 * 24, 1);
  std::vector<float> wide;
  for (uint16_t bits : table) wide.push_back(Bf16ToFloat(bits));
  Context context(1);
  const std::vector<int32_t> ids = {9, 0, 3};
  std::vector<float> a(3 * 24), b(3 * 24);
  Embed(context.exec, {table.data(), nullptr, 10, 24, WeightFormat::kBf16}, ids, a.data());
  Embed(context.exec, {wide.data(), nullptr, 10, 24, WeightFormat::kF32}, ids, b.data());
  EXPECT_EQ(a, b);
  EXPECT_EQ(a[24], wide[0]);
}

}  // namespace
}  // namespace k3::ops
