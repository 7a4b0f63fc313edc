#include "weights/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "checkpoint/writer.h"
#include "tensor/number_formats.h"
#include "weights/test_configs.h"

namespace k3 {
namespace {

struct Stored {
  TensorDeclaration declaration;
  std::string bytes;
};

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "k3_weights_test_" + std::to_string(getpid());
    ASSERT_TRUE(files_->MakeDirectories(dir_).ok());
    ASSERT_TRUE(WriteConfigFile(*files_, dir_, TestConfigs()[0].json).ok());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  /// A checkpoint of just these tensors.
  Checkpoint Make(const std::vector<Stored>& tensors) {
    std::vector<TensorDeclaration> declarations;
    declarations.reserve(tensors.size());
    for (const Stored& tensor : tensors) declarations.push_back(tensor.declaration);
    SafetensorsWriter writer =
        *SafetensorsWriter::Create(*files_, JoinPath(dir_, kSingleShardFileName), declarations);
    for (const Stored& tensor : tensors) {
      EXPECT_TRUE(writer.Append(AsBytes(tensor.bytes)).ok());
    }
    EXPECT_TRUE(writer.Finish().ok());
    return *Checkpoint::Open(dir_);
  }

  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string dir_;
};

void ExpectFailure(const Status& status, StatusCode code,
                   std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << status.message() << " lacks " << part;
  }
}

TEST_F(WeightsTest, MatricesOfEveryFormatAreViews) {
  const std::vector<uint16_t> halves = {0x3C00, 0x4000, 0xC000, 0x3800, 0, 0x0001};
  const Checkpoint checkpoint =
      Make({{{"model.odd", DType::kU8, {1}}, "!"},  // makes everything behind it unaligned
            {{"model.a.weight", DType::kBF16, {2, 3}}, BytesOf(halves)},
            {{"model.b.weight", DType::kF16, {3, 2}}, BytesOf(halves)},
            {{"model.c.weight", DType::kF32, {1, 2}}, BytesOf(std::vector<float>{1.5f, -2})},
            {{"model.d.weight_packed", DType::kU8, {2, 16}}, std::string(32, '\x21')},
            {{"model.d.weight_scale", DType::kU8, {2, 1}}, "\x7f\x80"}});
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  EXPECT_FALSE(weights.names().nested());
  const WeightMatrix a = *weights.Matrix("a", 2, 3);
  EXPECT_EQ(a.format, WeightFormat::kBf16);
  EXPECT_EQ(a.data, checkpoint.Find("model.a.weight")->data);
  EXPECT_EQ(weights.Matrix("b", 3, 2)->format, WeightFormat::kF16);
  EXPECT_EQ(weights.Matrix("c", 1, 2)->format, WeightFormat::kF32);
  const WeightMatrix d = *weights.Matrix("d", 2, 32);
  EXPECT_EQ(d.format, WeightFormat::kMxfp4);
  EXPECT_EQ(d.scales[1], 0x80);
  EXPECT_EQ(d.bytes(), 34);
  EXPECT_TRUE(weights.HasMatrix("a") && weights.HasMatrix("d") && !weights.HasMatrix("e"));
}

TEST_F(WeightsTest, WrongShapesAndTypesAreNamed) {
  const Checkpoint checkpoint =
      Make({{{"model.a.weight", DType::kBF16, {2, 3}}, std::string(12, 0)},
            {{"model.u.weight", DType::kU8, {2, 3}}, std::string(6, 0)},
            {{"model.d.weight_packed", DType::kU8, {2, 16}}, std::string(32, 0)},
            {{"model.d.weight_scale", DType::kU8, {1, 2}}, std::string(2, 0)},
            {{"model.e.weight_packed", DType::kI8, {2, 16}}, std::string(32, 0)},
            {{"model.f.weight_packed", DType::kU8, {2, 16}}, std::string(32, 0)},
            {{"model.g.weight_packed", DType::kU8, {2, 16}}, std::string(32, 0)},
            {{"model.g.weight", DType::kF32, {1}}, std::string(4, 0)}});
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  ExpectFailure(weights.Matrix("a", 3, 2).status(), StatusCode::kInvalidArgument,
                {"model.safetensors", "\"model.a.weight\"", "[3, 2]", "BF16 [2, 3]"});
  ExpectFailure(weights.Matrix("u", 2, 3).status(), StatusCode::kInvalidArgument, {"U8 [2, 3]"});
  ExpectFailure(weights.Matrix("d", 2, 32).status(), StatusCode::kInvalidArgument,
                {"\"model.d.weight_scale\"", "U8 [2, 1]", "U8 [1, 2]"});
  ExpectFailure(weights.Matrix("d", 2, 64).status(), StatusCode::kInvalidArgument,
                {"\"model.d.weight_packed\"", "U8 [2, 32]"});
  ExpectFailure(weights.Matrix("d", 2, 33).status(), StatusCode::kInvalidArgument, {"33 columns"});
  ExpectFailure(weights.Matrix("e", 2, 32).status(), StatusCode::kInvalidArgument, {"I8"});
  ExpectFailure(weights.Matrix("f", 2, 32).status(), StatusCode::kNotFound,
                {"\"model.f.weight_scale\""});
  ExpectFailure(weights.Matrix("g", 2, 32).status(), StatusCode::kCorruption, {"found both"});
  ExpectFailure(weights.Matrix("h", 2, 32).status(), StatusCode::kNotFound,
                {dir_, "\"model.h.weight\""});
}

TEST_F(WeightsTest, NanScalesAreFoundWithTheirRow) {
  std::string scales(6, '\x7f');
  scales[5] = '\xff';
  const Checkpoint checkpoint =
      Make({{{"model.d.weight_packed", DType::kU8, {3, 32}}, std::string(96, 0)},
            {{"model.d.weight_scale", DType::kU8, {3, 2}}, scales}});
  const WeightStore strict = *WeightStore::Bind(checkpoint, {});
  ExpectFailure(strict.Matrix("d", 3, 64).status(), StatusCode::kCorruption,
                {"\"model.d.weight_scale\"", "row 2, block 1", "255", "download"});
  const WeightStore lazy = *WeightStore::Bind(checkpoint, {.validate_scales = false});
  const WeightMatrix matrix = *lazy.Matrix("d", 3, 64);
  ExpectFailure(ValidateScales(matrix, "d"), StatusCode::kCorruption, {"\"d\"", "row 2"});
  EXPECT_TRUE(ValidateScales(matrix.Rows(0, 2), "d").ok());
}

TEST_F(WeightsTest, VectorsAreWidened) {
  const Checkpoint checkpoint =
      Make({{{"model.odd", DType::kU8, {1}}, "!"},
            {{"model.bf16", DType::kBF16, {1, 2}}, BytesOf(std::vector<uint16_t>{0x3FC0, 0xBF80})},
            {{"model.f16", DType::kF16, {2}}, BytesOf(std::vector<uint16_t>{0x3E00, 0x0001})},
            {{"model.f32", DType::kF32, {2, 1, 2}}, BytesOf(std::vector<float>{1, 2, 3, 4})},
            {{"model.u8", DType::kU8, {2}}, "ab"}});
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  EXPECT_EQ(*weights.Vector("bf16", 2), (std::vector<float>{1.5f, -1.0f}));
  EXPECT_EQ(*weights.Vector("f16", 2), (std::vector<float>{1.5f, 0x1p-24f}));
  EXPECT_EQ(*weights.Array("f32", {2, 2}), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(*weights.Array("f32", {2, 1, 2}), (std::vector<float>{1, 2, 3, 4}));
  ExpectFailure(weights.Vector("f32", 4).status(), StatusCode::kInvalidArgument,
                {"[4]", "F32 [2, 1, 2]"});
  ExpectFailure(weights.Vector("bf16", 3).status(), StatusCode::kInvalidArgument, {"[3]"});
  ExpectFailure(weights.Vector("u8", 2).status(), StatusCode::kInvalidArgument, {"U8"});
  ExpectFailure(weights.Vector("none", 2).status(), StatusCode::kNotFound, {"\"model.none\""});
}

TEST_F(WeightsTest, ALogIsCutAndItsPaddingChecked) {
  const Checkpoint checkpoint =
      Make({{{"model.good", DType::kF32, {5}}, BytesOf(std::vector<float>{1, 2, 3, 0, 0})},
            {{"model.bad", DType::kF32, {4}}, BytesOf(std::vector<float>{1, 2, 3, 0.5f})},
            {{"model.wide", DType::kF32, {1, 1, 3, 1}}, BytesOf(std::vector<float>{1, 2, 3})},
            {{"model.flat", DType::kF32, {2, 2}}, BytesOf(std::vector<float>{1, 2, 3, 4})}});
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  EXPECT_EQ(*weights.ALog("good", 3), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(*weights.ALog("wide", 3), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(*weights.ALog("bad", 4), (std::vector<float>{1, 2, 3, 0.5f}));
  ExpectFailure(weights.ALog("bad", 3).status(), StatusCode::kCorruption, {"\"model.bad\"", "0.5"});
  ExpectFailure(weights.ALog("good", 6).status(), StatusCode::kInvalidArgument, {"at least 6"});
  ExpectFailure(weights.ALog("flat", 2).status(), StatusCode::kInvalidArgument, {"F32 [2, 2]"});
}

TEST_F(WeightsTest, PrefixesAreDetected) {
  const std::string bytes(2, 0);
  {
    const Checkpoint nested =
        Make({{{"language_model.model.norm.weight", DType::kBF16, {1}}, bytes},
              {{"language_model.lm_head.weight", DType::kBF16, {1, 1}}, bytes}});
    const WeightStore weights = *WeightStore::Bind(nested, {});
    EXPECT_TRUE(weights.names().nested());
    EXPECT_TRUE(weights.Vector("norm.weight", 1).ok());
    EXPECT_TRUE(weights.Matrix("lm_head", 1, 1).ok());
  }
  {
    const Checkpoint flat = Make({{{"model.norm.weight", DType::kBF16, {1}}, bytes},
                                  {{"lm_head.weight", DType::kBF16, {1, 1}}, bytes}});
    const WeightStore weights = *WeightStore::Bind(flat, {});
    EXPECT_TRUE(weights.Vector("norm.weight", 1).ok());
    EXPECT_TRUE(weights.Matrix("lm_head", 1, 1).ok());
  }
  const Checkpoint other = Make({{{"vision_tower.x", DType::kBF16, {1}}, bytes}});
  ExpectFailure(WeightStore::Bind(other, {}).status(), StatusCode::kNotFound, {"language_model"});
}

TEST_F(WeightsTest, DifferencesFromTheInventoryAreListed) {
  const std::string bytes(2, 0);
  const Checkpoint checkpoint =
      Make({{{"model.norm.weight", DType::kBF16, {1}}, bytes},
            {{"model.norm.bias", DType::kBF16, {1}}, bytes},
            {{"model.layers.99.input_layernorm.weight", DType::kBF16, {1}}, bytes},
            {{"mm_projector.proj.0.weight", DType::kBF16, {1}}, bytes}});
  const InventoryDifference difference = *CompareWithInventory(checkpoint, 1000);
  EXPECT_EQ(
      difference.unexpected,
      (std::vector<std::string>{"model.layers.99.input_layernorm.weight", "model.norm.bias"}));
  EXPECT_EQ(difference.vision_count, 1);
  EXPECT_EQ(difference.matched_count, 1);
  EXPECT_GT(difference.missing.size(), 100u);
  EXPECT_EQ(CompareWithInventory(checkpoint, 1)->unexpected.size(), 1u);
}

/// The small trained model in the repository: a checkpoint this code did not write.
TEST_F(WeightsTest, OpensTheTrainedModel) {
  const std::string path = std::string(K3_SOURCE_DIR) + "/models/kjv";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const InventoryDifference difference = *CompareWithInventory(*checkpoint, 10);
  EXPECT_TRUE(difference.missing.empty() && difference.unexpected.empty());
  const WeightStore weights = *WeightStore::Bind(*checkpoint, {});
  VisitTensors(checkpoint->config(), [&](const ExpectedTensor& tensor) {
    const std::string& name = tensor.name;
    Status status;
    if (tensor.role == TensorRole::kALog) {
      status = weights.ALog(name, checkpoint->config().kda.heads).status();
    } else if (tensor.shape.rank() == 2 && tensor.role != TensorRole::kResidualQuery) {
      const std::string base = name.substr(0, name.size() - std::string(".weight").size());
      const auto matrix = weights.Matrix(base, tensor.shape[0], tensor.shape[1]);
      status = matrix.status();
      EXPECT_EQ(matrix.ok() && matrix->format == WeightFormat::kMxfp4,
                tensor.stored == StoredType::kMxfp4);
    } else {
      status = weights.Array(name, tensor.shape).status();
    }
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
}

}  // namespace
}  // namespace k3
