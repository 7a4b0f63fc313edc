#include "train/export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "model/forward.h"
#include "train/state_test_util.h"
#include "weights/random_init.h"

namespace k3::train {
namespace {

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> Logits(const ModelConfig& config, const model::Parameters& parameters) {
  ThreadPool pool(1);
  Arena arena;
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  const model::ForwardContext ctx{.exec = {&pool, &arena, &kernels}};
  cache::SequenceState state(config);
  std::vector<int32_t> tokens, rows;
  for (int32_t i = 0; i < 40; ++i) {
    tokens.push_back(i * 7 % 64);
    rows.push_back(i);
  }
  std::vector<float> logits(tokens.size() * 64);
  const model::Batch batch{{{&state, tokens, model::AttentionForm::kPrefill}}};
  const Status status = model::Forward(ctx, config, parameters, batch, rows, logits.data());
  EXPECT_TRUE(status.ok()) << status.ToString();
  return logits;
}

class ExportTest : public ::testing::Test {
 protected:
  /// What a checkpoint in the directory binds to, by name; empty with a failure when it does not.
  std::map<std::string, std::vector<float>> Opened() {
    const auto checkpoint = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    if (!checkpoint.ok()) return {};
    const auto bound = model::BindParameters(*WeightStore::Bind(*checkpoint, {}));
    EXPECT_TRUE(bound.ok()) << bound.status().ToString();
    if (!bound.ok()) return {};
    return ParameterCollector(checkpoint->config(), *bound).values;
  }
  ExportTarget Target(const std::string& name, const std::string& json) {
    return {directory_.path(), name, json};
  }

  TestDirectory directory_{"k3_export_test"};
  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  ThreadPool pool_{2};
};

TEST_F(ExportTest, ReadsBackBitForBit) {
  int exports = 0;
  for (const std::string& json : {FullConfigJson(), FullConfigJson(false), PlainConfigJson()}) {
    for (const RoundingOptions options :
         {RoundingOptions{false}, RoundingOptions{true, Mxfp4ScaleRule::kFloor},
          RoundingOptions{true, Mxfp4ScaleRule::kCeil}}) {
      ParameterSet set(ParsedConfig(json));
      set.Initialise(&pool_, 5);
      for (size_t i = 0; i < set.masters().size(); i += 3) set.masters()[i] *= 1.01f;
      set.Round(&pool_, options);
      const Status written =
          ExportCheckpoint(*files_, Target("model-" + std::to_string(++exports), json), set);
      ASSERT_TRUE(written.ok()) << written.ToString();
      const Checkpoint checkpoint = *Checkpoint::Open(directory_.path());
      EXPECT_EQ(checkpoint.shards().size(), 1u);
      const InventoryDifference difference = *CompareWithInventory(checkpoint, 10);
      EXPECT_TRUE(difference.missing.empty() && difference.unexpected.empty());
      const ParameterCollector expected(set.config(), set.parameters());
      const auto found = Opened();
      ASSERT_EQ(found.size(), expected.values.size());
      for (const auto& [name, values] : expected.values) {
        EXPECT_TRUE(SameBits(found.at(name), values)) << name;
      }
      const model::Parameters bound = *model::BindParameters(*WeightStore::Bind(checkpoint, {}));
      EXPECT_TRUE(SameBits(Logits(set.config(), set.parameters()), Logits(set.config(), bound)));
    }
  }
}

TEST_F(ExportTest, ExpertsHaveTheCodesOfTheMasters) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 6);
  set.Round(&pool_, {.quantize_experts = true, .rule = Mxfp4ScaleRule::kCeil});
  ASSERT_TRUE(ExportCheckpoint(*files_, Target("model", FullConfigJson()), set).ok());
  const Checkpoint checkpoint = *Checkpoint::Open(directory_.path());
  const std::string name = "layers.4.block_sparse_moe.experts.2.w3.weight";
  const std::span<const float> master = set.Master(*set.Lookup(name));
  std::vector<uint8_t> codes(master.size() / 2), scales(master.size() / 32);
  for (size_t at = 0; at < master.size(); at += 64) {
    QuantizeMxfp4Row(master.subspan(at, 64), Mxfp4ScaleRule::kCeil, codes.data() + at / 2,
                     scales.data() + at / 32);
  }
  const TensorView packed = *checkpoint.Find("language_model.model." + name + "_packed");
  const TensorView scale = *checkpoint.Find("language_model.model." + name + "_scale");
  EXPECT_EQ(packed.shape, (Shape{32, 32}));
  EXPECT_EQ(scale.shape, (Shape{32, 2}));
  EXPECT_EQ(std::memcmp(packed.data, codes.data(), codes.size()), 0);
  EXPECT_EQ(std::memcmp(scale.data, scales.data(), scales.size()), 0);
  const TensorView a_log = *checkpoint.Find("language_model.model.layers.1.self_attn.A_log");
  EXPECT_EQ(a_log.shape, Shape{128});
  EXPECT_EQ(a_log.dtype, DType::kF32);
}

TEST_F(ExportTest, ALaterExportTakesThePlaceOfTheEarlier) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 7);
  set.Round(&pool_, {});
  const auto export_as = [&](const std::string& name) {
    const Status status = ExportCheckpoint(*files_, Target(name, FullConfigJson()), set);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return directory_.Names();
  };
  const std::string config(kConfigFileName), index(kIndexFileName);
  EXPECT_EQ(export_as("a"), (std::vector<std::string>{"a.safetensors", config, index}));
  EXPECT_EQ(export_as("b"), (std::vector<std::string>{"b.safetensors", config, index}));
  EXPECT_EQ(export_as("b"), (std::vector<std::string>{"b-2.safetensors", config, index}));
  EXPECT_EQ(export_as("b"), (std::vector<std::string>{"b.safetensors", config, index}));
}

TEST_F(ExportTest, AnotherCheckpointIsNotTouched) {
  RandomCheckpointOptions options;
  options.config_json = FullConfigJson();
  options.out_dir = directory_.path();
  ASSERT_TRUE(WriteRandomCheckpoint(*files_, options).ok());
  const std::vector<std::string> before = directory_.Names();
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Round(&pool_, {});
  const Status status = ExportCheckpoint(*files_, Target("a", FullConfigJson()), set);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("another origin"), std::string::npos) << status.message();
  EXPECT_EQ(directory_.Names(), before);
}

TEST_F(ExportTest, AFailureAtAnyMomentLeavesOneOfTheTwo) {
  using Fault = FaultyFiles::Fault;
  const std::string json = PlainConfigJson();
  ParameterSet set(ParsedConfig(json));
  set.Initialise(&pool_, 8);
  set.Round(&pool_, {.quantize_experts = true});
  const auto old_values = ParameterCollector(set.config(), set.parameters()).values;
  ParameterSet next(ParsedConfig(json));
  next.Initialise(&pool_, 9);
  next.Round(&pool_, {});
  const auto new_values = ParameterCollector(next.config(), next.parameters()).values;
  for (const Fault fault : {Fault::kDiskFull, Fault::kShortWrite, Fault::kKilled}) {
    bool is_old = false, failed = true;
    int64_t old_left = 0, new_left = 0;
    // Most operations append a tensor, all alike: some are skipped, but not those at the end.
    for (int64_t allowed = 0; failed; allowed += allowed < 150 ? 7 : 1) {
      SCOPED_TRACE(allowed);
      if (!is_old) {
        std::filesystem::remove_all(directory_.path());
        ASSERT_TRUE(ExportCheckpoint(*files_, Target("old", json), set).ok());
      }
      FaultyFiles faulty(fault, allowed);
      const Status status = ExportCheckpoint(faulty, Target("new", json), next);
      failed = faulty.failed();
      EXPECT_EQ(status.code(), failed ? StatusCode::kResourceExhausted : StatusCode::kOk)
          << status.ToString();
      const auto found = Opened();
      is_old = found == old_values;
      EXPECT_TRUE(is_old || found == new_values);
      EXPECT_TRUE(failed || !is_old);
      (is_old ? old_left : new_left) += 1;
      for (const std::string& name : directory_.Names()) {
        EXPECT_FALSE(name.ends_with(".partial") && fault != Fault::kKilled) << name;
      }
    }
    // Among the failures are some before the index; behind it only a kill can come, as nothing is
    // written there.
    EXPECT_GT(old_left, 20);
    EXPECT_GT(new_left, fault == Fault::kKilled ? 1 : 0);
  }
}

}  // namespace
}  // namespace k3::train
