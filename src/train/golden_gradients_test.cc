// Loss and every gradient of the golden model against another implementation's in float64
// (tests/golden/README.md), through the whole training pass.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "model/training_pass.h"
#include "train/parameter_set.h"

namespace k3::train {
namespace {

const std::string kModelDir = std::string(K3_SOURCE_DIR) + "/tests/golden/tiny-a";
const std::string kGradsDir = kModelDir + "/expected/grads";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double Norm(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// One training pass over the golden tokens, as segments of the given lengths.
class GoldenGradients : public testing::Test {
 protected:
  void SetUp() override {
    const Result<Checkpoint> checkpoint = Checkpoint::Open(kModelDir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const Result<WeightStore> weights = WeightStore::Bind(*checkpoint, {});
    ASSERT_TRUE(weights.ok()) << weights.status().ToString();
    set_ = std::make_unique<ParameterSet>(checkpoint->config());
    ASSERT_TRUE(set_->LoadFrom(*weights).ok());
    manifest_ = nlohmann::json::parse(ReadFile(kGradsDir + "/manifest.json"));
    ids_ = manifest_["tokens"].get<std::vector<int32_t>>();
    ASSERT_FALSE(ids_.empty());
  }

  /// Gradients by tensor in the set, and the mean loss. The weights are stored values already, so
  /// that rounding (experts to bf16, which holds every MXFP4 value) changes none.
  double Run(int threads, SimdTarget target, const model::TapePolicy& policy) {
    ThreadPool pool(threads);
    Arena arena;
    const kernels::KernelTable kernels = kernels::Kernels(target);
    model::Tape tape(policy);
    set_->Round(&pool, {});
    set_->ZeroGradients();
    const model::ForwardContext ctx{.exec = {&pool, &arena, &kernels}, .tape = &tape};
    const std::span<const int32_t> ids(ids_);
    model::Batch batch;
    batch.segments.push_back({.tokens = ids.first(ids.size() - 1)});
    const Result<double> loss =
        model::LossAndGradients(ctx, set_->config(), set_->parameters(), batch, ids.subspan(1),
                                1.0f / static_cast<float>(ids.size() - 1), set_->gradients());
    EXPECT_TRUE(loss.ok()) << loss.status().ToString();
    set_->FinishGradients();
    score_max_.clear();
    for (const model::LayerTape& layer : tape.layers) {
      if (layer.mla.score_max == nullptr) continue;
      const int64_t count = tape.tokens() * set_->config().mla.heads;
      score_max_.insert(score_max_.end(), layer.mla.score_max, layer.mla.score_max + count);
    }
    return *loss / static_cast<double>(ids.size() - 1);
  }

  std::unique_ptr<ParameterSet> set_;
  nlohmann::json manifest_;
  std::vector<int32_t> ids_;
  std::vector<float> score_max_;  // of all MLA layers, tokens and heads
};

TEST_F(GoldenGradients, AgreeWithFloat64) {
  const double loss = Run(2, BestSimdTarget(), {});
  EXPECT_NEAR(loss, manifest_["loss"].get<double>(), 1e-5);
  const TensorNames names(true);
  int64_t compared = 0;
  double worst = 0;
  for (const TrainedTensor& tensor : set_->tensors()) {
    if (tensor.spec.role == TensorRole::kCorrectionBias) continue;
    const std::string name = names.Full(tensor.spec.name);
    ASSERT_TRUE(manifest_["grads"].contains(name)) << name;
    const nlohmann::json& expected = manifest_["grads"][name];
    const std::span<const float> gradient = set_->FlatGradient(tensor);
    int64_t count = 1;
    for (const nlohmann::json& size : expected["shape"]) count *= size.get<int64_t>();
    // A_log is padded where it is stored.
    ASSERT_LE(count, std::ssize(gradient)) << name;
    const std::vector<double> ours(gradient.begin(), gradient.begin() + count);
    const double norm = expected["norm"].get<double>();
    double error = 0;
    if (expected.contains("file")) {
      const std::string bytes = ReadFile(kGradsDir + "/" + expected["file"].get<std::string>());
      ASSERT_EQ(bytes.size(), static_cast<size_t>(count) * 4) << name;
      std::vector<double> difference;
      for (int64_t i = 0; i < count; ++i) {
        float value;
        std::memcpy(&value, bytes.data() + i * 4, 4);
        difference.push_back(ours[static_cast<size_t>(i)] - value);
      }
      error = Norm(difference) / norm;
    } else {
      error = std::abs(Norm(ours) - norm) / norm;
      const std::vector<double> first = expected["first"].get<std::vector<double>>();
      for (size_t i = 0; i < first.size(); ++i) {
        // A value may be far below the others; it has the errors of sums of their size.
        const double rms = norm / std::sqrt(static_cast<double>(count));
        error = std::max(error, std::abs(ours[i] - first[i]) / std::max(std::abs(first[i]), rms));
      }
    }
    if (norm == 0) error = Norm(ours);
    EXPECT_LE(error, 1e-3) << name;
    worst = std::max(worst, error);
    ++compared;
  }
  EXPECT_EQ(compared, std::ssize(manifest_["grads"]));
  RecordProperty("worst_relative_error", std::to_string(worst));
  printf("loss off by %.2e, worst gradient by %.2e of its norm\n",
         std::abs(loss - manifest_["loss"].get<double>()), worst);
}

/// Threads, SIMD target and what the tape keeps change no bit.
TEST_F(GoldenGradients, SameBitsForThreadsTargetsAndPolicies) {
  using model::Keep;
  const double loss = Run(1, BestSimdTarget(), {});
  const std::vector<float> expected(set_->flat_gradients().begin(), set_->flat_gradients().end());
  const model::TapePolicy all{Keep::kRecompute, Keep::kRecompute, Keep::kRecompute,
                              Keep::kRecompute, Keep::kRecompute};
  const std::vector<float> scores = score_max_;
  ASSERT_EQ(std::ssize(scores), 3 * (std::ssize(ids_) - 1) * set_->config().mla.heads);
  const auto check = [&](int threads, SimdTarget target, const model::TapePolicy& policy) {
    EXPECT_EQ(Run(threads, target, policy), loss);
    EXPECT_EQ(std::memcmp(expected.data(), set_->flat_gradients().data(), expected.size() * 4), 0)
        << threads << " threads, " << SimdTargetName(target);
    EXPECT_EQ(score_max_, scores);
  };
  check(2, BestSimdTarget(), {});
  check(3, BestSimdTarget(), {});
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2}) {
    if (IsSupported(target)) check(2, target, {});
  }
  check(2, BestSimdTarget(), all);
  model::TapePolicy some = all;
  some.kda = Keep::kKeep;
  some.experts = Keep::kKeep;
  check(2, BestSimdTarget(), some);
}

}  // namespace
}  // namespace k3::train
