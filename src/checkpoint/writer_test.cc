#include "checkpoint/writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace k3 {
namespace {

class WriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "k3_writer_test_" + std::to_string(getpid());
    ASSERT_TRUE(files_->MakeDirectories(dir_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::vector<std::string> Names() { return *files_->List(dir_); }

  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string dir_;
};

TEST_F(WriterTest, StreamsAShardInOddChunks) {
  const std::vector<TensorDeclaration> tensors = {{"b", DType::kBF16, {2, 3}},
                                                  {"name \"quoted\" é", DType::kU8, {5}},
                                                  {"empty", DType::kF32, {0}},
                                                  {"scalar", DType::kI64, {}}};
  const std::string path = dir_ + "/x.safetensors";
  std::string data;
  for (int i = 0; i < 12 + 5 + 8; ++i) data += static_cast<char>('a' + i);
  {
    SafetensorsWriter writer = *SafetensorsWriter::Create(*files_, path, tensors);
    EXPECT_EQ(writer.file_bytes(), *SafetensorsFileBytes(tensors));
    for (size_t at = 0; at < data.size(); at += 7) {
      ASSERT_TRUE(writer.Append(AsBytes(std::string_view(data).substr(at, 7))).ok());
    }
    EXPECT_EQ(writer.remaining_bytes(), 0);
    EXPECT_EQ(Names(), std::vector<std::string>{PartialPath("x.safetensors")});
    ASSERT_TRUE(writer.Finish().ok());
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"x.safetensors"});
  auto file = *files_->OpenReadable(path);
  const SafetensorsHeader header = *ReadSafetensorsHeader(*file, path);
  EXPECT_EQ(header.data_offset % 64, 0);
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(header.tensors[2].name, "name \"quoted\" é");
  EXPECT_EQ(header.tensors[2].file_offset, header.data_offset + 12);
  EXPECT_EQ(header.metadata.at(0), (std::pair<std::string, std::string>("format", "pt")));
}

TEST_F(WriterTest, ADroppedWriterLeavesNothing) {
  const std::vector<TensorDeclaration> tensors = {{"a", DType::kU8, {100}}};
  {
    SafetensorsWriter writer = *SafetensorsWriter::Create(*files_, dir_ + "/x", tensors);
    ASSERT_TRUE(writer.Append(AsBytes("half")).ok());
    EXPECT_EQ(Names().size(), 1u);
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(WriterTest, BadDeclarationsAreRefusedBeforeAnythingIsWritten) {
  const std::vector<std::vector<TensorDeclaration>> bad = {
      {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}},
      {{"\xff", DType::kU8, {1}}},
      {{std::string(2000, 'n'), DType::kU8, {1}}},
      {{"__metadata__", DType::kU8, {1}}},
      {{"a", DType::kF32, {int64_t{1} << 62}}},
      {{"a", DType::kU8, {int64_t{1} << 62}}, {"b", DType::kU8, {int64_t{1} << 62}}},
      {{"a", DType::kU8, {-1}}}};
  for (const auto& tensors : bad) {
    const auto writer = SafetensorsWriter::Create(*files_, dir_ + "/x", tensors);
    EXPECT_EQ(writer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Names().empty());
  }
  EXPECT_EQ(SafetensorsWriter::Create(*files_, dir_ + "/no/x", {}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(WriterTest, IndexRoundTrip) {
  const std::string path = dir_ + "/" + std::string(kIndexFileName);
  ShardIndexWriter writer = *ShardIndexWriter::Create(*files_, path);
  constexpr int kEntries = 50'000;
  for (int i = 0; i < kEntries; ++i) {
    const std::string shard = "s" + std::to_string(i % 7) + ".safetensors";
    ASSERT_TRUE(writer.Add("layers." + std::to_string(i) + ".\"é", shard).ok());
  }
  EXPECT_EQ(writer.Add("\xff", "s").code(), StatusCode::kInvalidArgument);
  ShardIndexMetadata metadata;
  metadata.total_size = 12345;
  metadata.layers = LayerRange{3, 4};
  ASSERT_TRUE(writer.Finish(metadata).ok());
  int seen = 0;
  const std::string text = *ReadWholeFile(*files_, path, int64_t{1} << 30);
  const ShardIndexMetadata read =
      *ReadShardIndex(text, path, [&](std::string_view tensor, std::string_view shard) {
        EXPECT_EQ(tensor, "layers." + std::to_string(seen) + ".\"é");
        EXPECT_EQ(shard, "s" + std::to_string(seen % 7) + ".safetensors");
        ++seen;
        return OkStatus();
      });
  EXPECT_EQ(seen, kEntries);
  EXPECT_EQ(read.total_size, 12345);
  EXPECT_EQ(read.layers->last, 4);
}

TEST_F(WriterTest, OnlyAConfigurationBecomesConfigJson) {
  EXPECT_EQ(WriteConfigFile(*files_, dir_, "{}").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace k3
