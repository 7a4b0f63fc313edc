#include "train/qk_clip.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace k3::train {
namespace {

constexpr QkClipShape kShape{
    .heads = 5, .nope = 16, .rope = 8, .value = 12, .q_rank = 24, .kv_rank = 20};
constexpr float kTau = 100.0f;

std::vector<float> Normals(int64_t n, uint64_t stream) {
  Random random(11, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = random.NextNormal();
  return values;
}

struct Layer {
  std::vector<float> q_b = Normals(kShape.heads * (kShape.nope + kShape.rope) * kShape.q_rank, 0);
  std::vector<float> kv_b =
      Normals(kShape.heads * (kShape.nope + kShape.value) * kShape.kv_rank, 1);
};

double RowDot(const std::vector<float>& matrix, int64_t row, const std::vector<float>& x) {
  double sum = 0;
  const float* values = matrix.data() + row * std::ssize(x);
  for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(values[i]) * x[i];
  return sum;
}

/// One head's logits from fixed random latents: the two parts, and how large their terms are.
struct Logit {
  double content = 0;
  double shared = 0;
  double size = 0;
};
Logit LogitOf(const Layer& layer, int64_t head) {
  const std::vector<float> q_latent = Normals(kShape.q_rank, 2);
  const std::vector<float> kv_latent = Normals(kShape.kv_rank, 3);
  const std::vector<float> shared_key = Normals(kShape.rope, 4);
  const int64_t q_first = head * (kShape.nope + kShape.rope);
  Logit logit;
  for (int64_t d = 0; d < kShape.nope; ++d) {
    const double term = RowDot(layer.q_b, q_first + d, q_latent) *
                        RowDot(layer.kv_b, head * (kShape.nope + kShape.value) + d, kv_latent);
    logit.content += term;
    logit.size += std::abs(term);
  }
  for (int64_t d = 0; d < kShape.rope; ++d) {
    const double term =
        RowDot(layer.q_b, q_first + kShape.nope + d, q_latent) * shared_key[static_cast<size_t>(d)];
    logit.shared += term;
    logit.size += std::abs(term);
  }
  return logit;
}

TEST(QkClipTest, BothPartsOfALogitScaleByGamma) {
  const std::vector<float> largest = {250.0f, 100.0f, 100.5f, -3.0f, 40000.0f};
  const Layer before;
  Layer after;
  EXPECT_EQ(QkClip(kShape, largest, kTau, after.q_b, after.kv_b), 3);
  for (int64_t head = 0; head < kShape.heads; ++head) {
    const float logit = largest[static_cast<size_t>(head)];
    const double gamma = logit > kTau ? static_cast<double>(kTau) / logit : 1;
    const Logit old = LogitOf(before, head);
    const Logit now = LogitOf(after, head);
    // float32 rounds every weight once; 1e-5 of the terms, which may cancel.
    EXPECT_NEAR(now.content, gamma * old.content, 1e-5 * gamma * old.size) << head;
    EXPECT_NEAR(now.shared, gamma * old.shared, 1e-5 * gamma * old.size) << head;
  }
}

TEST(QkClipTest, ValuesAndHeadsBelowTheThresholdStay) {
  const std::vector<float> largest = {101.0f, 99.0f, 100.0f, 0.0f, 101.0f};
  const Layer before;
  Layer after;
  EXPECT_EQ(QkClip(kShape, largest, kTau, after.q_b, after.kv_b), 2);
  const int64_t q_head = (kShape.nope + kShape.rope) * kShape.q_rank;
  for (int64_t i = 0; i < std::ssize(before.q_b); ++i) {
    const bool clipped = largest[static_cast<size_t>(i / q_head)] > kTau;
    EXPECT_EQ(after.q_b[static_cast<size_t>(i)] != before.q_b[static_cast<size_t>(i)], clipped);
  }
  const int64_t kv_head = (kShape.nope + kShape.value) * kShape.kv_rank;
  for (int64_t i = 0; i < std::ssize(before.kv_b); ++i) {
    const bool clipped = largest[static_cast<size_t>(i / kv_head)] > kTau &&
                         i % kv_head < kShape.nope * kShape.kv_rank;
    EXPECT_EQ(after.kv_b[static_cast<size_t>(i)] != before.kv_b[static_cast<size_t>(i)], clipped);
  }
}

TEST(QkClipTest, ALayerWithoutASharedKey) {
  const QkClipShape shape{.heads = 1, .nope = 2, .rope = 0, .value = 1, .q_rank = 1, .kv_rank = 1};
  std::vector<float> q_b = {2.0f, 4.0f};
  std::vector<float> kv_b = {8.0f, 16.0f, 32.0f};
  EXPECT_EQ(QkClip(shape, std::vector<float>{400.0f}, kTau, q_b, kv_b), 1);
  EXPECT_EQ(q_b, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_EQ(kv_b, (std::vector<float>{4.0f, 8.0f, 32.0f}));
}

}  // namespace
}  // namespace k3::train
