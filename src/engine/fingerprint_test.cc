#include "engine/fingerprint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace k3 {
namespace {

namespace fs = std::filesystem;

class FingerprintTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    for (const auto& entry :
         fs::directory_iterator(std::string(K3_SOURCE_DIR) + "/tests/golden/tiny-a")) {
      if (!entry.is_regular_file()) continue;
      fs::copy_file(entry.path(), dir_ / entry.path().filename());
      fs::permissions(dir_ / entry.path().filename(), fs::perms::owner_write,
                      fs::perm_options::add);
    }
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::array<uint8_t, 16> Fingerprint(const EngineOptions& options = {}) {
    EngineOptions without_tokenizer = options;
    without_tokenizer.needs_tokenizer = false;
    const auto engine = Engine::Open(dir_.string(), without_tokenizer);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    const auto fingerprint = ModelFingerprint(**engine);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status().ToString();
    return *fingerprint;
  }
  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  /// Flips a bit of the file and gives it the time that it had.
  void FlipByte(int64_t at) {
    const auto time = fs::last_write_time(shard_);
    std::fstream file(shard_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    fs::last_write_time(shard_, time);
  }

  const fs::path dir_ = fs::temp_directory_path() / ("k3_fingerprint_" + std::to_string(getpid()));
  const fs::path shard_ = dir_ / "model-00002-of-00003.safetensors";
};

TEST_F(FingerprintTest, TheSameForTheSameModel) {
  const auto first = Fingerprint();
  EXPECT_EQ(Fingerprint(), first);
  EXPECT_EQ(Fingerprint({.threads = 1}), first);
  EXPECT_EQ(Fingerprint({.threads = 3}), first);
}

TEST_F(FingerprintTest, AnotherForWhateverChanges) {
  std::set<std::array<uint8_t, 16>> seen = {Fingerprint()};
  const auto expect_new = [&](const char* what, const EngineOptions& options = {}) {
    EXPECT_TRUE(seen.insert(Fingerprint(options)).second) << what;
  };
  if (BestSimdTarget() != SimdTarget::kScalar) {
    expect_new("SIMD target", {.target = SimdTarget::kScalar});
  }
  fs::last_write_time(shard_, fs::last_write_time(shard_) + std::chrono::nanoseconds(1000));
  expect_new("modification time of a shard");
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "generation_config.json"}) {
    WriteText(name, "{}");
    expect_new(name);
  }
  WriteText("tiktoken.model", "[]");
  expect_new("content of a file");
  std::ifstream config(dir_ / "config.json");
  const std::string json((std::istreambuf_iterator<char>(config)), {});
  WriteText("config.json", json + "\n");
  expect_new("config.json");
}

TEST_F(FingerprintTest, TheStartOfEachTensorCounts) {
  std::set<std::array<uint8_t, 16>> seen = {Fingerprint()};
  const auto engine = Engine::Open(dir_.string(), {.needs_tokenizer = false});
  ASSERT_TRUE(engine.ok());
  const TensorInfo* large = nullptr;
  const TensorInfo* small = nullptr;
  for (const TensorInfo& tensor : (*engine)->checkpoint().tensors()) {
    if (tensor.shard != 1) continue;
    if (tensor.bytes > 5000) large = &tensor;
    if (tensor.bytes <= 4096) small = &tensor;
  }
  ASSERT_NE(large, nullptr);
  ASSERT_NE(small, nullptr);
  for (const int64_t at : {large->file_offset, large->file_offset + 4095, small->file_offset,
                           small->file_offset + small->bytes - 1}) {
    FlipByte(at);
    EXPECT_TRUE(seen.insert(Fingerprint()).second) << at;
  }
  // What lies behind is known by size and time alone.
  FlipByte(large->file_offset + 4096);
  EXPECT_FALSE(seen.insert(Fingerprint()).second);
}

}  // namespace
}  // namespace k3
