// The released model's whole directory, tensor for tensor, as sparse files: 497,220 tensors in 96
// shards. Checks the inventory against the published totals and that opening stays quick and small.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/arithmetic.h"
#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "weights/inventory.h"
#include "weights/test_configs.h"
#include "weights/weights.h"

namespace k3 {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

std::vector<TensorDeclaration> StoredAs(const ExpectedTensor& tensor) {
  const std::string name = TensorNames(/*nested=*/true).Full(tensor.name);
  if (tensor.stored != StoredType::kMxfp4) {
    return {{name, tensor.stored == StoredType::kF32 ? DType::kF32 : DType::kBF16, tensor.shape}};
  }
  return {{name + "_packed", DType::kU8, {tensor.shape[0], tensor.shape[1] / 2}},
          {name + "_scale", DType::kU8, {tensor.shape[0], tensor.shape[1] / 32}}};
}

std::vector<TensorDeclaration> ProjectorTensors() {
  return {{"mm_projector.proj.0.weight", DType::kBF16, {4096, 4096}},
          {"mm_projector.proj.2.weight", DType::kBF16, {7168, 4096}},
          {"mm_projector.post_norm.weight", DType::kBF16, {7168}}};
}

std::vector<TensorDeclaration> VisionTensors() {
  std::vector<TensorDeclaration> tensors = {
      {"vision_tower.patch_embed.proj.weight", DType::kBF16, {1024, 3, 14, 14}},
      {"vision_tower.patch_embed.pos_emb.weight", DType::kBF16, {64, 64, 1024}},
      {"vision_tower.encoder.final_layernorm.weight", DType::kBF16, {1024}}};
  for (int block = 0; block < 27; ++block) {
    const auto add = [&](std::string_view name, const Shape& shape) {
      tensors.push_back({fmt::format("vision_tower.encoder.blocks.{}.{}.weight", block, name),
                         DType::kBF16, shape});
    };
    add("norm0", {1024});
    add("norm1", {1024});
    add("wqkv", {4608, 1024});
    add("wo", {1024, 1536});
    add("mlp.fc0", {4096, 1024});
    add("mlp.fc1", {1024, 4096});
  }
  return tensors;
}

/// A shard whose data section is one hole in the file system.
void WriteSparseShard(const std::string& path, const std::vector<TensorDeclaration>& tensors,
                      int64_t* data_bytes) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  int64_t end = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const int64_t begin = end;
    end += tensor.shape.Elements() * DTypeBytes(tensor.dtype);
    header +=
        fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                    DTypeName(tensor.dtype), fmt::join(tensor.shape.dims(), ","), begin, end);
  }
  header += '}';
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  file += header;
  std::ofstream(path, std::ios::binary).write(file.data(), std::ssize(file));
  std::filesystem::resize_file(path, file.size() + static_cast<size_t>(end));
  *data_bytes += end;
}

struct Layout {
  int64_t tensors_count = 0;
  int64_t data_bytes = 0;
};

Layout WriteReleasedLayout(FileSystem& files, const std::string& dir, const ModelConfig& config) {
  ShardIndexWriter index = *ShardIndexWriter::Create(files, JoinPath(dir, kIndexFileName));
  Layout layout;
  for (int shard = 1; shard <= 96; ++shard) {
    std::vector<TensorDeclaration> tensors;
    const auto add = [&](const ExpectedTensor& tensor) {
      for (TensorDeclaration& stored : StoredAs(tensor)) tensors.push_back(std::move(stored));
    };
    if (shard <= 93) VisitLayerTensors(config, shard - 1, add);
    if (shard == 94) VisitOuterTensors(config, add);
    if (shard == 95) tensors = ProjectorTensors();
    if (shard == 96) tensors = VisionTensors();
    const std::string name = fmt::format("model-{:05d}-of-00096.safetensors", shard);
    WriteSparseShard(JoinPath(dir, name), tensors, &layout.data_bytes);
    layout.tensors_count += std::ssize(tensors);
    for (const TensorDeclaration& tensor : tensors) EXPECT_TRUE(index.Add(tensor.name, name).ok());
  }
  EXPECT_TRUE(index.Finish({layout.data_bytes, std::nullopt}).ok());
  return layout;
}

TEST(LargeCheckpointTest, OpensTheReleasedLayoutQuicklyInLittleMemory) {
  const std::string dir = ::testing::TempDir() + "k3_large_" + std::to_string(getpid());
  const auto files = MakeRealFileSystem();
  ASSERT_TRUE(files->MakeDirectories(dir).ok());
  const std::string json = ReleasedConfigJson();
  ASSERT_TRUE(WriteConfigFile(*files, dir, json).ok());
  const Layout layout = WriteReleasedLayout(*files, dir, *ParseModelConfig(json, "config.json"));
  // The published totals of the released checkpoint.
  EXPECT_EQ(layout.tensors_count, 497'220);
  EXPECT_EQ(layout.data_bytes, 1'560'860'324'864);

  malloc_trim(0);
  const int64_t resident_before = ResidentBytes();
  const int64_t start = MonotonicNanoseconds();
  auto opened = Checkpoint::Open(dir);
  const double seconds = SecondsBetween(start, MonotonicNanoseconds());
  const int64_t grown = ResidentBytes() - resident_before;
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  std::printf("opened %zu tensors in %zu shards in %.2f s, resident memory grew by %.1f MB\n",
              opened->tensors().size(), opened->shards().size(), seconds,
              static_cast<double>(grown) * 1e-6);
  EXPECT_EQ(std::ssize(opened->tensors()), layout.tensors_count);
  EXPECT_EQ(opened->tensor_bytes(), layout.data_bytes);

  const int64_t compare_start = MonotonicNanoseconds();
  const InventoryDifference difference = *CompareWithInventory(*opened, 10);
  std::printf("compared with the inventory in %.2f s\n",
              SecondsBetween(compare_start, MonotonicNanoseconds()));
  EXPECT_TRUE(difference.missing.empty() && difference.unexpected.empty());
  EXPECT_EQ(difference.vision_count, 3 + 3 + 27 * 6);
  EXPECT_EQ(difference.matched_count + difference.vision_count, layout.tensors_count);

  const WeightStore weights = *WeightStore::Bind(*opened, {});
  const auto expert = weights.Matrix("layers.92.block_sparse_moe.experts.895.w2", 3584, 3072);
  ASSERT_TRUE(expert.ok()) << expert.status().ToString();
  EXPECT_EQ(expert->format, WeightFormat::kMxfp4);
  EXPECT_EQ(static_cast<const uint8_t*>(expert->data)[expert->rows * expert->cols / 2 - 1], 0);
  if (!kSanitized) {
    EXPECT_LT(seconds, 10.0);
    EXPECT_LT(grown, 200'000'000);
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace k3
