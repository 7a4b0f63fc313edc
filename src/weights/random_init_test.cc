#include "weights/random_init.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "sys/faulty_files.h"
#include "tensor/number_formats.h"
#include "weights/random_values.h"
#include "weights/test_configs.h"
#include "weights/weights.h"

namespace k3 {
namespace {

class RandomInitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "k3_random_init_" + std::to_string(getpid());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  RandomCheckpointOptions Options(const std::string& json) {
    RandomCheckpointOptions options;
    options.config_json = json;
    options.out_dir = root_ + "/" + std::to_string(++directories_);
    options.seed = 7;
    return options;
  }
  /// Writes and returns the directory.
  std::string Write(const RandomCheckpointOptions& options) {
    const auto summary = WriteRandomCheckpoint(*files_, options);
    EXPECT_TRUE(summary.ok()) << summary.status().ToString();
    return options.out_dir;
  }

  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string root_;
  int directories_ = 0;
};

/// Every tensor's bytes by name.
std::map<std::string, std::string> Contents(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> contents;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    contents[std::string(tensor.name)] =
        std::string(reinterpret_cast<const char*>(checkpoint.View(tensor).data),
                    static_cast<size_t>(tensor.bytes));
  }
  return contents;
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  float smallest = 0;
  float largest = 0;
};
Moments MomentsOf(std::span<const float> values) {
  Moments moments;
  moments.smallest = moments.largest = values[0];
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    EXPECT_TRUE(std::isfinite(value));
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
    moments.smallest = std::min(moments.smallest, value);
    moments.largest = std::max(moments.largest, value);
  }
  moments.mean = sum / static_cast<double>(values.size());
  moments.deviation =
      std::sqrt(squares / static_cast<double>(values.size()) - moments.mean * moments.mean);
  return moments;
}

TEST_F(RandomInitTest, EveryVariantRoundTrips) {
  for (const NamedConfig& variant : TestConfigs()) {
    SCOPED_TRACE(variant.name);
    const auto opened = Checkpoint::Open(Write(Options(variant.json)));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_EQ(opened->config_json(), variant.json);
    EXPECT_FALSE(opened->partial_layers().has_value());
    EXPECT_EQ(opened->shards().size(), 6u);
    const InventoryDifference difference = *CompareWithInventory(*opened, 10);
    EXPECT_TRUE(difference.missing.empty() && difference.unexpected.empty());
    const WeightStore weights = *WeightStore::Bind(*opened, {});
    VisitTensors(opened->config(), [&](const ExpectedTensor& tensor) {
      const std::string& name = tensor.name;
      if (tensor.role == TensorRole::kALog) {
        EXPECT_EQ(opened->Lookup(weights.names().Full(name))->shape, Shape{128});
        const auto values = weights.ALog(name, opened->config().kda.heads);
        ASSERT_TRUE(values.ok()) << values.status().ToString();
        EXPECT_NE(values->back(), 0.0f);
      } else if (tensor.shape.rank() == 2 && tensor.role != TensorRole::kResidualQuery) {
        const auto matrix =
            weights.Matrix(name.substr(0, name.size() - 7), tensor.shape[0], tensor.shape[1]);
        ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
        EXPECT_EQ(matrix->format == WeightFormat::kMxfp4, tensor.stored == StoredType::kMxfp4);
      } else {
        EXPECT_TRUE(weights.Array(name, tensor.shape).ok()) << name;
      }
    });
  }
}

TEST_F(RandomInitTest, BytesDependOnSeedAndNameAlone) {
  const std::string json = TestConfigs()[0].json;
  const auto base = Contents(*Checkpoint::Open(Write(Options(json))));
  RandomCheckpointOptions options = Options(json);
  options.threads_count = 3;
  options.shard_bytes_max = 2000;
  const Checkpoint cut = *Checkpoint::Open(Write(options));
  EXPECT_GT(cut.shards().size(), 20u);
  EXPECT_EQ(Contents(cut), base);
  // Layer and expert stay together, whatever the size of shards.
  const auto shard_of = [&](const std::string& name) {
    return cut.Lookup("language_model.model.layers.2.block_sparse_moe.experts.3." + name)->shard;
  };
  EXPECT_EQ(shard_of("w1.weight_packed"), shard_of("w3.weight_scale"));

  options = Options(json);
  options.layers = LayerRange{1, 2};
  const Checkpoint slice = *Checkpoint::Open(Write(options));
  ASSERT_TRUE(slice.partial_layers().has_value());
  EXPECT_EQ(slice.partial_layers()->first, 1);
  EXPECT_TRUE(CompareWithInventory(slice, 10)->missing.empty());
  EXPECT_TRUE(CompareWithInventory(slice, 10)->unexpected.empty());
  EXPECT_EQ(slice.Lookup("language_model.lm_head.weight"), nullptr);
  for (const auto& [name, bytes] : Contents(slice)) EXPECT_EQ(base.at(name), bytes) << name;
  const auto missing = WeightStore::Bind(slice, {})->Matrix("embed_tokens", 64, 32);
  EXPECT_NE(missing.status().message().find("layers 1 to 2 only"), std::string::npos);

  options = Options(json);
  options.seed = 8;
  const auto other = Contents(*Checkpoint::Open(Write(options)));
  for (const auto& [name, bytes] : other) EXPECT_NE(base.at(name), bytes) << name;
}

TEST_F(RandomInitTest, NumbersHaveTheIntendedLaw) {
  const Checkpoint checkpoint = *Checkpoint::Open(Write(Options(TestConfigs()[0].json)));
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  const Moments embed = MomentsOf(*weights.Array("embed_tokens.weight", {64, 32}));
  EXPECT_NEAR(embed.mean, 0, 0.1);
  EXPECT_NEAR(embed.deviation, 1, 0.06);
  const Moments head = MomentsOf(*weights.Array("lm_head.weight", {64, 32}));
  EXPECT_NEAR(head.deviation, 2 / std::sqrt(32.0), 0.02);
  const Moments norm = MomentsOf(*weights.Vector("norm.weight", 32));
  EXPECT_NEAR(norm.mean, 1, 0.15);
  EXPECT_NEAR(norm.deviation, 0.2, 0.1);
  const Moments decay = MomentsOf(*weights.ALog("layers.0.self_attn.A_log", 3));
  EXPECT_TRUE(decay.smallest >= -0.5f && decay.largest <= 0.7f);
  const Moments step = MomentsOf(*weights.Vector("layers.0.self_attn.dt_bias", 48));
  EXPECT_TRUE(step.smallest >= -4 && step.largest <= 1 && step.deviation > 1);
  const Moments bias =
      MomentsOf(*weights.Vector("layers.1.block_sparse_moe.gate.e_score_correction_bias", 6));
  EXPECT_TRUE(bias.smallest >= -0.1f && bias.largest <= 0.1f && bias.deviation > 0.01);
  const Moments conv = MomentsOf(*weights.Array("layers.0.self_attn.q_conv1d.weight", {48, 4}));
  EXPECT_NEAR(conv.deviation, 0.5, 0.1);
}

TEST(RandomValuesTest, Mxfp4IsCloseToPackedNormals) {
  for (const float sigma : {0.025f, 0.0271f, 0.0412f, 1.0f}) {
    RandomFiller filler;
    RandomSpec codes;
    codes.mxfp4 = filler.PrepareMxfp4(sigma);
    codes.law = RandomSpec::Law::kMxfp4Codes;
    codes.stream = 1;
    codes.scale_stream = 2;
    RandomSpec scales = codes;
    scales.law = RandomSpec::Law::kMxfp4Scales;
    scales.stream = 2;
    constexpr int64_t kBlocks = kRandomChunkBytes / 16;
    std::vector<uint8_t> code_bytes(kRandomChunkBytes);
    std::vector<uint8_t> scale_bytes(3 * kBlocks);
    // The scales of one long chunk are those that each chunk of codes was drawn with.
    filler.Fill(scales, 0, std::as_writable_bytes(std::span(scale_bytes)));
    std::vector<float> values(kBlocks * 32);
    for (int64_t chunk = 0; chunk < 3; ++chunk) {
      filler.Fill(codes, chunk, std::as_writable_bytes(std::span(code_bytes)));
      UnpackMxfp4Row(code_bytes.data(), scale_bytes.data() + chunk * kBlocks, values);
      const Moments moments = MomentsOf(values);
      EXPECT_NEAR(moments.mean / sigma, 0, 0.01);
      EXPECT_NEAR(moments.deviation / sigma, 1, 0.05);
      EXPECT_GT(moments.largest, 3 * sigma);
      EXPECT_LT(moments.largest, 8 * sigma);
    }
    EXPECT_EQ(std::count(scale_bytes.begin(), scale_bytes.end(), kE8m0Nan), 0);
  }
}

TEST_F(RandomInitTest, AFullDiskLeavesNothingBehind) {
  RandomCheckpointOptions options = Options(TestConfigs()[0].json);
  options.shard_bytes_max = 30'000;
  int64_t allowed = 0;
  for (;; ++allowed) {
    FaultyFiles disk(FaultyFiles::Fault::kDiskFull, allowed);
    const auto result = WriteRandomCheckpoint(disk, options);
    if (result.ok()) break;
    ASSERT_TRUE(disk.failed());
    EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(result.status().message().find(options.out_dir), std::string::npos);
    EXPECT_NE(result.status().message().find("needs "), std::string::npos);
    EXPECT_TRUE(files_->List(options.out_dir)->empty()) << "after " << allowed << " operations";
  }
  EXPECT_GT(allowed, 60);
  EXPECT_TRUE(Checkpoint::Open(options.out_dir).ok());
}

/// Another process writes a whole checkpoint between the look at the directory and the marker.
class OvertakenDisk : public FaultyFiles {
 public:
  OvertakenDisk() : FaultyFiles(Fault::kDiskFull, INT64_MAX) {}
  Result<std::unique_ptr<WritableFile>> CreateNew(const std::string& path) override {
    const std::unique_ptr<FileSystem> other = MakeRealFileSystem();
    const std::string dir = path.substr(0, path.rfind('/'));
    K3_RETURN_IF_ERROR(WriteFileAtomically(*other, JoinPath(dir, kConfigFileName), "{}"));
    return FaultyFiles::CreateNew(path);
  }
};

TEST_F(RandomInitTest, WhatAnotherProcessWroteMeanwhileIsKept) {
  const RandomCheckpointOptions options = Options(TestConfigs()[0].json);
  OvertakenDisk disk;
  const auto result = WriteRandomCheckpoint(disk, options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("found config.json"), std::string::npos);
  EXPECT_EQ(*files_->List(options.out_dir), std::vector<std::string>{"config.json"});
}

TEST_F(RandomInitTest, AHalfWrittenDirectoryDoesNotOpen) {
  RandomCheckpointOptions options = Options(TestConfigs()[0].json);
  int64_t calls = 0;
  options.progress = [&](const RandomCheckpointProgress& progress) {
    ++calls;
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
    const auto opened = Checkpoint::Open(options.out_dir);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.status().message().find(".incomplete"), std::string::npos);
  };
  Write(options);
  EXPECT_GE(calls, 6);
  EXPECT_TRUE(Checkpoint::Open(options.out_dir).ok());
}

TEST_F(RandomInitTest, RefusesWhatItCannotDo) {
  const std::string json = TestConfigs()[0].json;
  RandomCheckpointOptions options = Options(json);
  Write(options);
  const auto expect_refused = [&](const RandomCheckpointOptions& bad, std::string_view part) {
    const Status status = WriteRandomCheckpoint(*files_, bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect_refused(options, "without a checkpoint");
  for (const LayerRange range : {LayerRange{-1, 2}, LayerRange{3, 2}, LayerRange{0, 5}}) {
    RandomCheckpointOptions bad = Options(json);
    bad.layers = range;
    expect_refused(bad, "range in 0-4");
  }
  RandomCheckpointOptions bad = Options(json);
  bad.shard_bytes_max = 0;
  expect_refused(bad, "shard size");
  bad = Options("{}");
  expect_refused(bad, "model_type");
  bad = Options(json);
  const std::string field = "\"moe_intermediate_size\": 32";
  bad.config_json.replace(bad.config_json.find(field), field.size(),
                          "\"moe_intermediate_size\": 40");
  expect_refused(bad, "multiple of 32");
  EXPECT_FALSE(files_->Exists(bad.out_dir));
}

TEST_F(RandomInitTest, AMissingTerabyteIsReportedBeforeWriting) {
  const RandomCheckpointOptions options = Options(ReleasedConfigJson());
  const auto space = std::filesystem::space(::testing::TempDir());
  if (space.available > uint64_t{1'500'000'000'000}) GTEST_SKIP() << "the disk is large enough";
  const Status status = WriteRandomCheckpoint(*files_, options).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("free bytes"), std::string::npos);
  EXPECT_TRUE(files_->List(options.out_dir)->empty());
}

TEST(RandomValuesTest, FillingIsFast) {
  const RandomFiller filler;
  RandomFiller with_laws;
  std::vector<std::byte> out(kRandomChunkBytes);
  const auto measure = [&](const RandomFiller& source, const RandomSpec& spec, const char* name) {
    constexpr int kChunks = 200;
    const int64_t start = MonotonicNanoseconds();
    for (int chunk = 0; chunk < kChunks; ++chunk) source.Fill(spec, chunk, out);
    const double seconds = SecondsBetween(start, MonotonicNanoseconds());
    std::printf("%s: %.0f MB/s on one thread\n", name,
                static_cast<double>(kChunks * kRandomChunkBytes) * 1e-6 / seconds);
  };
  RandomSpec spec;
  measure(filler, spec, "bf16 normals");
  spec.mxfp4 = with_laws.PrepareMxfp4(0.025f);
  spec.law = RandomSpec::Law::kMxfp4Codes;
  measure(with_laws, spec, "MXFP4 codes");
}

}  // namespace
}  // namespace k3
