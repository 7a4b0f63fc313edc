#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/limits.h"
#include "base/random.h"

namespace k3 {
namespace {

constexpr std::string_view kConfig = R"({
  "model_type": "kimi_linear", "vocab_size": 16, "hidden_size": 4, "num_hidden_layers": 1,
  "num_attention_heads": 1, "intermediate_size": 4, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "hidden_act": "situ", "first_k_dense_replace": 1, "kv_lora_rank": 4,
  "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2, "mla_use_nope": true,
  "linear_attn_config": {"head_dim": 2, "num_heads": 1, "short_conv_kernel_size": 2,
                         "kda_layers": [1], "full_attn_layers": []}})";

std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  int64_t begin, int64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype,
                     shape, begin, end);
}

std::string Shard(std::string_view entries, std::string_view data) {
  const std::string header = "{" + std::string(entries) + "}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + std::string(data);
}

/// A directory with two shards of three tensors, of which tests spoil one thing.
class CheckpointTest : public ::testing::Test {
 protected:
  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";

  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = ::testing::TempDir() + "k3_checkpoint_" + test + std::to_string(getpid());
    std::filesystem::create_directories(dir_);
    Write("config.json", kConfig);
    Write(kFirst,
          Shard(Entry("model.b", "U8", "[3]", 0, 3) + "," + Entry("model.a", "F32", "[1]", 3, 7),
                std::string("xyz\0\0\x80\x3f", 7)));
    Write(kSecond, Shard(Entry("vision_tower.c", "U8", "[2,1]", 0, 2), "pq"));
    WriteIndex({{"model.a", kFirst}, {"model.b", kFirst}, {"vision_tower.c", kSecond}});
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, std::string_view content) const {
    std::ofstream out(dir_ + "/" + name, std::ios::binary);
    out << content;
  }
  void Remove(const std::string& name) const { std::filesystem::remove(dir_ + "/" + name); }
  void WriteIndex(const std::vector<std::pair<std::string, std::string>>& entries,
                  std::string_view metadata = R"({"total_size": 9})") const {
    std::string map;
    for (const auto& [name, shard] : entries) {
      map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, shard);
    }
    Write("model.safetensors.index.json",
          fmt::format("{{\"metadata\": {}, \"weight_map\": {{{}}}}}", metadata, map));
  }
  void ExpectRefused(StatusCode code, std::initializer_list<std::string_view> parts) const {
    const auto result = Checkpoint::Open(dir_);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), code) << result.status().ToString();
    for (const std::string_view part : parts) {
      EXPECT_NE(result.status().message().find(part), std::string::npos)
          << result.status().message() << " lacks " << part;
    }
  }

  std::string dir_;
};

TEST_F(CheckpointTest, FindsTensorsAndListsThem) {
  const Checkpoint opened = *Checkpoint::Open(dir_ + "/");
  EXPECT_EQ(opened.config().layers, 1);
  EXPECT_EQ(opened.config_json(), kConfig);
  EXPECT_EQ(opened.tensor_bytes(), 9);
  EXPECT_FALSE(opened.partial_layers().has_value());
  EXPECT_FALSE(opened.generation_config().top_p.has_value());
  ASSERT_EQ(opened.shards().size(), 2u);
  EXPECT_EQ(opened.shards()[0].file_name, kFirst);
  EXPECT_EQ(opened.shards()[0].path, dir_ + "/" + kFirst);
  EXPECT_EQ(opened.shards()[0].tensors_count, 2);
  EXPECT_EQ(opened.shards()[0].file_bytes,
            static_cast<int64_t>(std::filesystem::file_size(opened.shards()[0].path)));
  ASSERT_EQ(opened.tensors().size(), 3u);
  EXPECT_EQ(opened.tensors()[0].name, "model.a");
  EXPECT_EQ(opened.tensors()[2].name, "vision_tower.c");
  EXPECT_EQ(opened.tensors()[2].shard, 1);
  EXPECT_EQ(opened.WithPrefix("model.").size(), 2u);
  EXPECT_EQ(opened.WithPrefix("model.b").size(), 1u);
  EXPECT_TRUE(opened.WithPrefix("z").empty());

  const TensorView a = *opened.Find("model.a");
  float value = 0;
  std::memcpy(&value, a.data, sizeof(value));
  EXPECT_EQ(value, 1.0f);
  EXPECT_EQ(opened.Find("vision_tower.c")->shape, (Shape{2, 1}));
  EXPECT_EQ(opened.Lookup("model.A"), nullptr);
  EXPECT_EQ(opened.Find("model.z").status().code(), StatusCode::kNotFound);

  const ShardInfo& shard = opened.shards()[1];
  std::ifstream raw(shard.path, std::ios::binary);
  raw.seekg(opened.tensors()[2].file_offset);
  EXPECT_EQ(raw.get(), 'p');
}

TEST_F(CheckpointTest, ViewsSurviveAMove) {
  Checkpoint opened = *Checkpoint::Open(dir_);
  const TensorView view = *opened.Find("model.b");
  const TensorInfo* info = opened.Lookup("model.b");
  const Checkpoint moved = std::move(opened);
  EXPECT_EQ(static_cast<char>(view.data[0]), 'x');
  EXPECT_EQ(moved.Lookup("model.b"), info);
  EXPECT_EQ(info->name, "model.b");
}

TEST_F(CheckpointTest, OpensASingleFileWithoutIndex) {
  Remove("model.safetensors.index.json");
  ExpectRefused(StatusCode::kNotFound, {"model.safetensors", "download"});
  std::filesystem::rename(dir_ + "/" + kFirst, dir_ + "/model.safetensors");
  Write("generation_config.json", R"({"top_p": 0.5})");
  const Checkpoint opened = *Checkpoint::Open(dir_);
  EXPECT_EQ(opened.tensors().size(), 2u);
  EXPECT_EQ(opened.generation_config().top_p, 0.5f);
  Write("generation_config.json", R"({"top_p": 2})");
  ExpectRefused(StatusCode::kInvalidArgument, {"generation_config.json", "top_p"});
}

TEST_F(CheckpointTest, MissingPiecesAreNamed) {
  Remove(kSecond);
  ExpectRefused(StatusCode::kNotFound, {kSecond, "download"});
  Remove("config.json");
  ExpectRefused(StatusCode::kNotFound, {"config.json"});
  EXPECT_EQ(Checkpoint::Open(dir_ + "/nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(Checkpoint::Open(dir_ + "/" + kFirst).ok());
  EXPECT_FALSE(Checkpoint::Open("").ok());
}

TEST_F(CheckpointTest, AnIncompleteMarkerIsRefused) {
  Write(".incomplete", "");
  ExpectRefused(StatusCode::kCorruption, {dir_, ".incomplete", "delete"});
}

TEST_F(CheckpointTest, FilesThatAreNotRegularAreRefused) {
  Remove(kSecond);
  std::filesystem::create_directory(dir_ + "/" + kSecond);
  ExpectRefused(StatusCode::kInvalidArgument, {kSecond, "regular file"});
  std::filesystem::remove(dir_ + "/" + kSecond);
  ASSERT_EQ(mkfifo((dir_ + "/" + kSecond).c_str(), 0600), 0);
  ExpectRefused(StatusCode::kInvalidArgument, {kSecond, "regular file"});
  Remove("model.safetensors.index.json");
  std::filesystem::create_directory(dir_ + "/model.safetensors.index.json");
  ExpectRefused(StatusCode::kInvalidArgument, {"index.json", "regular file"});
}

TEST_F(CheckpointTest, TruncatedShardsAreRefusedAtEveryLength) {
  std::ifstream in(dir_ + "/" + kFirst, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (size_t length = 0; length < good.size(); ++length) {
    Write(kFirst, good.substr(0, length));
    ExpectRefused(StatusCode::kCorruption, {kFirst, "download the shard again"});
  }
  Write(kFirst, good + "!");
  ExpectRefused(StatusCode::kCorruption, {kFirst, "1 more"});
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  WriteIndex({{"model.a", kFirst},
              {"model.b", kFirst},
              {"vision_tower.c", kSecond},
              {"model.zz", kSecond}});
  ExpectRefused(StatusCode::kCorruption, {"\"model.zz\"", kSecond, "no shard"});
  WriteIndex({{"model.a", kFirst}, {"vision_tower.c", kSecond}});
  ExpectRefused(StatusCode::kCorruption, {"\"model.b\"", kFirst, "no entry"});
  WriteIndex({{"model.a", kFirst}, {"model.b", kSecond}, {"vision_tower.c", kSecond}});
  ExpectRefused(StatusCode::kCorruption, {"\"model.b\"", "expected in", kSecond, kFirst});
  WriteIndex(
      {{"model.a", kFirst}, {"model.b", kFirst}, {"model.b", kFirst}, {"vision_tower.c", kSecond}});
  ExpectRefused(StatusCode::kCorruption, {"\"model.b\"", "twice"});
  Write(kSecond, Shard(Entry("model.a", "U8", "[2,1]", 0, 2), "pq"));
  ExpectRefused(StatusCode::kCorruption, {"\"model.a\"", kFirst, kSecond, "one shard"});
}

TEST_F(CheckpointTest, ShardNamesStayInTheDirectory) {
  for (const char* name :
       {"../other.safetensors", "/etc/passwd", "", "a/b", "a\\\\b", "..", ".hidden", "a\\u0000b"}) {
    WriteIndex({{"model.a", name}});
    ExpectRefused(StatusCode::kCorruption, {"\"model.a\"", "plain file name"});
  }
  WriteIndex({{"model.a", std::string(300, 'n')}});
  ExpectRefused(StatusCode::kCorruption, {"plain file name"});
}

TEST_F(CheckpointTest, BrokenIndexesAreRefused) {
  for (const char* text :
       {"", "[]", "3", "\"weight_map\"", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 1}}",
        "{\"weight_map\": {\"a\": {}}}", "{\"weight_map\": {\"a\": []}}", "{\"weight_map\": 4}",
        "{\"metadata\": {}}", "{\"weight_map\": {}, \"weight_map\": {}}",
        "{\"metadata\": {\"a\": 1, \"a\": 2}, \"weight_map\": {}}",
        "{\"metadata\": [{\"b\": {}, \"b\": 2}], \"weight_map\": {}}",
        "{\"metadata\": {\"k3_first_layer\": 1}, \"weight_map\": {}}",
        "{\"metadata\": {\"k3_first_layer\": 2, \"k3_last_layer\": 1}, \"weight_map\": {}}",
        "{\"weight_map\": {\"a\": \"b\"", "{\"weight_map\": {}} x"}) {
    Write("model.safetensors.index.json", text);
    ExpectRefused(StatusCode::kCorruption, {"index.json"});
  }
  Write("model.safetensors.index.json", "{\"metadata\":" + std::string(1'000'000, '['));
  ExpectRefused(StatusCode::kCorruption, {"levels of nesting"});
  WriteIndex({{std::string(limits::kTensorNameBytesMax + 1, 'n'), kFirst}});
  ExpectRefused(StatusCode::kCorruption, {"at most 1024 bytes"});
}

TEST_F(CheckpointTest, ASliceSaysWhichLayersItHolds) {
  WriteIndex(
      {{"model.a", kFirst}, {"model.b", kFirst}, {"vision_tower.c", kSecond}},
      R"({"total_size": 9, "k3_first_layer": 2, "k3_last_layer": 5, "note": {"x": [1, {}]}})");
  const Checkpoint opened = *Checkpoint::Open(dir_);
  ASSERT_TRUE(opened.partial_layers().has_value());
  EXPECT_EQ(opened.partial_layers()->first, 2);
  EXPECT_EQ(opened.partial_layers()->last, 5);
}

TEST_F(CheckpointTest, MutatedFilesNeverCrash) {
  Random random(3, 4);
  for (const std::string& name :
       {std::string("config.json"), std::string("model.safetensors.index.json"),
        std::string(kFirst)}) {
    std::ifstream in(dir_ + "/" + name, std::ios::binary);
    const std::string good((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (int round = 0; round < 300; ++round) {
      std::string file = good;
      file[random.NextBelow(file.size())] = static_cast<char>(random.NextBelow(256));
      if (random.NextBelow(2) == 0) file.erase(random.NextBelow(file.size()), 3);
      Write(name, file);
      const auto result = Checkpoint::Open(dir_);
      EXPECT_TRUE(result.ok() || !result.status().message().empty());
    }
    Write(name, good);
  }
  EXPECT_TRUE(Checkpoint::Open(dir_).ok());
}

}  // namespace
}  // namespace k3
