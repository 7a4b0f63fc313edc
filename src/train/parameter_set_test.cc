#include "train/parameter_set.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "train/state_test_util.h"
#include "weights/random_init.h"

namespace k3::train {
namespace {

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(ParameterSetTest, EveryTensorHasAPlaceOfItsOwn) {
  for (const std::string& json : {FullConfigJson(), PlainConfigJson()}) {
    ParameterSet set(ParsedConfig(json));
    std::vector<int> owners(set.masters().size());
    int64_t count = 0;
    for (const TrainedTensor& tensor : set.tensors()) {
      EXPECT_EQ(tensor.count, tensor.spec.shape.Elements());
      EXPECT_EQ(set.Lookup(tensor.spec.name), &tensor);
      EXPECT_TRUE(tensor.spec.role == TensorRole::kExpert || tensor.offset % 32 == 0);
      for (const float& value : set.Master(tensor)) ++owners[size_t(&value - set.masters().data())];
      if (tensor.spec.role != TensorRole::kCorrectionBias) count += tensor.count;
    }
    for (const int owned : owners) EXPECT_LE(owned, 1);
    // Of three KDA layers' 128 stored A_log three each are real.
    EXPECT_EQ(set.parameters_count(), count - 3 * (128 - 3));
    EXPECT_EQ(set.Lookup("no.such"), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(set.masters().data()) % 64, 0u);
  }
}

TEST(ParameterSetTest, TheExpertsOfALayerAreNeighbours) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  for (const char* name : {"w1", "w2", "w3"}) {
    int64_t next = -1;
    for (int expert = 0; expert < 6; ++expert) {
      const TrainedTensor* tensor = set.Lookup("layers.2.block_sparse_moe.experts." +
                                               std::to_string(expert) + "." + name + ".weight");
      ASSERT_NE(tensor, nullptr);
      if (expert > 0) {
        EXPECT_EQ(tensor->offset, next);
      }
      next = tensor->offset + tensor->count;
    }
  }
}

TEST(ParameterSetTest, TheStartDependsOnTheSeedAlone) {
  const ModelConfig config = ParsedConfig(FullConfigJson());
  ParameterSet one(config), many(config), other(config);
  ThreadPool single(1), pool(4);
  one.Initialise(&single, 7);
  many.Initialise(&pool, 7);
  other.Initialise(&pool, 8);
  EXPECT_TRUE(SameBits(one.masters(), many.masters()));
  EXPECT_FALSE(SameBits(one.masters(), other.masters()));
}

TEST(ParameterSetTest, TheStartHasItsRecipesSpread) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  ThreadPool pool(1);
  set.Initialise(&pool, 1);
  const auto deviation = [&](const std::string& name) {
    const TrainedTensor* tensor = set.Lookup(name);
    K3_CHECK(tensor != nullptr, "a tensor of the configuration");
    double sum = 0;
    for (const float value : set.Master(*tensor)) sum += double{value} * value;
    return std::sqrt(sum / static_cast<double>(tensor->count));
  };
  const std::string layer = "layers.1.", moe = "layers.1.block_sparse_moe.";
  const std::vector<std::pair<std::string, double>> expected = {
      {"embed_tokens.weight", 0.5},
      {"lm_head.weight", 0.3 / std::sqrt(32)},
      {layer + "self_attn.q_proj.weight", 1 / std::sqrt(32)},
      {layer + "self_attn.f_b_proj.weight", 0.5 / std::sqrt(16)},
      {layer + "self_attn.o_proj.weight", 0.5 / std::sqrt(48)},
      {layer + "self_attn.q_conv1d.weight", 0.3},
      {moe + "routed_expert_down_proj.weight", 1 / std::sqrt(32)},
      {moe + "routed_expert_up_proj.weight", 0.5 / std::sqrt(64)},
      {moe + "experts.3.w2.weight", 1 / std::sqrt(32)},
      {moe + "gate.weight", 1 / std::sqrt(32)},
      {layer + "input_layernorm.weight", 1},
      {layer + "mlp_res_proj.weight", 0},
      {layer + "self_attn.A_log", 0},
      {moe + "gate.e_score_correction_bias", 0}};
  for (const auto& [name, value] : expected) {
    // The smallest random tensor has 192 values: four standard errors are 4 / sqrt(384) = 20 %.
    EXPECT_NEAR(deviation(name), value, 0.2 * value) << name;
  }
  // softplus(bias) is a step between 0.001 and 0.1, log-uniform: its mean logarithm is that of
  // 0.01.
  double mean = 0;
  const TrainedTensor& bias = *set.Lookup(layer + "self_attn.dt_bias");
  for (const float value : set.Master(bias)) {
    const double step = std::log1p(std::exp(double{value}));
    EXPECT_GT(step, 0.000999);
    EXPECT_LT(step, 0.1001);
    mean += std::log(step) / static_cast<double>(bias.count);
  }
  // Four standard errors: 4 x ln(100) / sqrt(12 x 48) = 0.77.
  EXPECT_NEAR(mean, std::log(0.01), 0.77);
}

TEST(ParameterSetTest, RoundingGivesStoredValues) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  ThreadPool single(1), pool(3);
  set.Initialise(&pool, 2);
  for (const RoundingOptions options :
       {RoundingOptions{false}, RoundingOptions{true, Mxfp4ScaleRule::kFloor},
        RoundingOptions{true, Mxfp4ScaleRule::kCeil}}) {
    set.Round(&pool, options);
    const std::vector<float> rounded = Copy(set.rounded());
    for (const TrainedTensor& tensor : set.tensors()) {
      SCOPED_TRACE(tensor.spec.name);
      const std::span<const float> master = set.Master(tensor), now = set.Rounded(tensor);
      if (tensor.spec.stored == StoredType::kF32) {
        EXPECT_TRUE(SameBits(master, now));
      } else if (tensor.spec.role != TensorRole::kExpert || !options.quantize_experts) {
        for (size_t i = 0; i < now.size(); ++i) {
          ASSERT_EQ(now[i], Bf16ToFloat(FloatToBf16(master[i])));
        }
      } else {
        const size_t width = size_t(tensor.spec.shape[1]);
        std::vector<uint8_t> codes(width / 2), scales(width / 32);
        std::vector<float> row(width);
        for (size_t at = 0; at < now.size(); at += width) {
          QuantizeMxfp4Row(master.subspan(at, width), options.rule, codes.data(), scales.data());
          UnpackMxfp4Row(codes.data(), scales.data(), row);
          ASSERT_TRUE(SameBits(row, now.subspan(at, width)));
          ASSERT_TRUE(std::equal(codes.begin(), codes.end(), set.Codes(tensor).begin() + at / 2));
          ASSERT_TRUE(
              std::equal(scales.begin(), scales.end(), set.Scales(tensor).begin() + at / 32));
        }
      }
    }
    set.Round(&single, options);
    EXPECT_TRUE(SameBits(rounded, set.rounded()));
    // What is rounded stays as it is.
    const std::vector<float> masters = Copy(set.masters());
    std::ranges::copy(rounded, set.masters().begin());
    set.Round(&pool, options);
    for (size_t i = 0; i < rounded.size(); ++i) ASSERT_EQ(set.rounded()[i], rounded[i]);
    std::ranges::copy(masters, set.masters().begin());
  }
}

TEST(ParameterSetTest, ExpertsWithoutWholeBlocksAreRefused) {
  const std::string json =
      TinyConfigJson(R"("routed_expert_hidden_size": 40, "latent_moe_use_norm": true,)", "", false);
  ParameterSet set(ParsedConfig(json));
  EXPECT_TRUE(set.CheckRounding({false}).ok());
  const Status status = set.CheckRounding({true});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("found 40"), std::string::npos) << status.message();
}

TEST(ParameterSetTest, VectorGradientsComeBackInTheStoredForm) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  ThreadPool pool(1);
  set.Initialise(&pool, 3);
  for (const TrainedTensor& tensor : set.tensors()) {
    if (tensor.spec.role != TensorRole::kResidualQuery && tensor.spec.role != TensorRole::kALog) {
      continue;
    }
    Random random(5, static_cast<uint64_t>(tensor.offset));
    const auto live = tensor.spec.role == TensorRole::kALog ? 3 : tensor.count;
    for (float& value : set.Master(tensor).first(size_t(live))) value = random.NextNormal();
  }
  set.Round(&pool, {.quantize_experts = true});
  set.ZeroGradients();
  model::LayerGradients& layer = set.gradients().layers[1];
  const auto fill = [](model::Vector& values) { std::iota(values.begin(), values.end(), 1.0f); };
  for (model::Vector* values : {&layer.kda.conv_k, &layer.kda.rate, &layer.kda.dt_bias,
                                &layer.attention_mix, &layer.moe.correction_bias}) {
    fill(*values);
  }
  layer.kda.k.data[5] = 42;
  set.FinishGradients();
  const auto gradient = [&](const std::string& name) {
    return set.FlatGradient(*set.Lookup("layers.1." + name));
  };
  const auto rounded = [&](const std::string& name) {
    return set.Rounded(*set.Lookup("layers.1." + name));
  };
  EXPECT_EQ(gradient("self_attn.k_proj.weight")[5], 42);
  for (size_t channel = 0; channel < 48; ++channel) {
    for (size_t tap = 0; tap < 4; ++tap) {
      EXPECT_EQ(gradient("self_attn.k_conv1d.weight")[channel * 4 + tap],
                static_cast<float>(tap * 48 + channel + 1));
    }
    EXPECT_EQ(gradient("self_attn.dt_bias")[channel], static_cast<float>(channel + 1));
  }
  for (size_t head = 0; head < 3; ++head) {
    const double expected = double(head + 1) * std::exp(double{rounded("self_attn.A_log")[head]});
    // A rounding of the product and two of the kernel's exp.
    EXPECT_NEAR(gradient("self_attn.A_log")[head], expected, 3e-7 * expected);
  }
  for (size_t i = 3; i < 128; ++i) EXPECT_EQ(gradient("self_attn.A_log")[i], 0);
  for (size_t i = 0; i < 32; ++i) {
    const auto d = static_cast<float>(i + 1);
    EXPECT_EQ(gradient("self_attention_res_norm.weight")[i],
              d * rounded("self_attention_res_proj.weight")[i]);
    EXPECT_EQ(gradient("self_attention_res_proj.weight")[i],
              d * rounded("self_attention_res_norm.weight")[i]);
  }
  for (const float value : gradient("block_sparse_moe.gate.e_score_correction_bias")) {
    EXPECT_EQ(value, 0);
  }
  set.ZeroGradients();
  for (const float value : set.flat_gradients()) EXPECT_EQ(value, 0);
  EXPECT_EQ(layer.kda.rate, model::Vector(3));
}

TEST(ParameterSetTest, LoadsAnyCheckpoint) {
  for (const std::string& json : {FullConfigJson(), FullConfigJson(false), PlainConfigJson()}) {
    TestDirectory directory("k3_parameter_set_test");
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    RandomCheckpointOptions options;
    options.config_json = json;
    options.out_dir = directory.path();
    options.seed = 3;
    ASSERT_TRUE(WriteRandomCheckpoint(*files, options).ok());
    const Checkpoint checkpoint = *Checkpoint::Open(directory.path());
    const WeightStore weights = *WeightStore::Bind(checkpoint, {});
    const ParameterCollector expected(checkpoint.config(), *model::BindParameters(weights));
    ParameterSet set(checkpoint.config());
    ThreadPool pool(2);
    ASSERT_TRUE(set.LoadFrom(weights).ok());
    for (const Mxfp4ScaleRule rule : {Mxfp4ScaleRule::kFloor, Mxfp4ScaleRule::kCeil}) {
      set.Round(&pool, {checkpoint.config().quantized_experts, rule});
      const ParameterCollector found(set.config(), set.parameters());
      ASSERT_EQ(found.values.size(), expected.values.size());
      for (const auto& [name, values] : expected.values) {
        EXPECT_TRUE(SameBits(found.values.at(name), values)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace k3::train
