#pragma once
// What tests of the disk tier share: a directory that goes away, made-up conversations whose
// payloads follow from their hashes, and a look at what is on disk. One thread.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/disk_directory.h"
#include "cache/disk_tier.h"

namespace k3::cache {

inline constexpr int64_t kTestPageFloats = 3;  // a token
inline constexpr int64_t kTestSnapshotFloats = 100;

class CacheDirectory {
 public:
  CacheDirectory() {
    const std::string start = std::filesystem::temp_directory_path().string() + "/k3_cache_test_" +
                              std::to_string(getpid()) + "_";
    int number = 0;
    // One that is made at once, so that the next of this process is another.
    while (!std::filesystem::create_directory(path_ = start + std::to_string(number))) ++number;
  }
  ~CacheDirectory() { std::filesystem::remove_all(path_); }
  CacheDirectory(const CacheDirectory&) = delete;
  CacheDirectory& operator=(const CacheDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline ModelFingerprintBytes TestFingerprint(uint8_t first = 1) {
  ModelFingerprintBytes fingerprint{};
  fingerprint[0] = first;
  fingerprint[15] = 0xAB;
  return fingerprint;
}

/// The float at `index` of what stands for the hash `key`. Never the same for two of them.
inline float TestFloat(RecordKind kind, const PrefixHash& key, int64_t index) {
  const uint64_t mixed = (key.low ^ (kind == RecordKind::kPage ? 0 : 0x5555)) +
                         0x9E3779B97F4A7C15u * static_cast<uint64_t>(index + 1);
  return static_cast<float>((mixed >> 20) & 0xFFFFFF);
}

/// Tokens with their hashes. The rows of a token's block follow from the hash behind the block.
struct Conversation {
  explicit Conversation(std::vector<int32_t> ids)
      : tokens(std::move(ids)), ends(ChainHashes(NamespaceHash("test"), tokens)) {}
  static Conversation Random(uint64_t seed, int64_t tokens_count) {
    k3::Random random(seed, 7);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens_count; ++i) {
      ids.push_back(static_cast<int32_t>(random.NextBelow(1000)));
    }
    return Conversation(std::move(ids));
  }
  /// The first `shared` tokens of this, then others.
  Conversation Branch(int64_t shared, uint64_t seed, int64_t tokens_count) const {
    std::vector<int32_t> ids = Random(seed, tokens_count).tokens;
    std::copy_n(tokens.begin(), shared, ids.begin());
    return Conversation(std::move(ids));
  }
  const PrefixHash& End(int64_t length) const { return ends[static_cast<size_t>(length / 16)]; }

  std::vector<int32_t> tokens;
  std::vector<PrefixHash> ends;
};

/// Rows of the tokens [begin, end) as a page holds them: two layers, of 2 floats and of 1.
inline std::vector<float> PageFloats(const Conversation& conversation, int64_t begin, int64_t end) {
  std::vector<float> rows;
  for (const int64_t width : {2, 1}) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t i = 0; i < width; ++i) {
        rows.push_back(TestFloat(RecordKind::kPage, conversation.End(token / 16 * 16 + 16),
                                 token % 16 * 2 + i + width * 100));
      }
    }
  }
  return rows;
}

inline std::vector<float> SnapshotFloats(const PrefixHash& key) {
  std::vector<float> floats;
  for (int64_t i = 0; i < kTestSnapshotFloats; ++i) {
    floats.push_back(TestFloat(RecordKind::kSnapshot, key, i));
  }
  return floats;
}

inline RecordToStore ToStore(const Conversation& conversation, int64_t begin, int64_t end,
                             std::vector<float> floats) {
  // Shared, since that is what a record is kept alive by.
  const auto owned = std::make_shared<std::vector<float>>(std::move(floats));
  // In two parts, as a caller with several layers hands them over.
  const size_t half = owned->size() / 3;
  return {.parent = conversation.End(begin),
          .begin = begin,
          .tokens = {conversation.tokens.begin() + begin, conversation.tokens.begin() + end},
          .payload = {std::span(*owned).first(half), std::span(*owned).subspan(half)},
          .keeper = owned};
}

/// Pages of [from, length) and a snapshot at `length`.
inline void StoreTo(DiskTier& tier, const Conversation& conversation, int64_t length,
                    int64_t from = 0) {
  for (int64_t begin = from / 256 * 256; begin < length; begin += 256) {
    const int64_t end = std::min(begin + 256, length);
    tier.StorePage(ToStore(conversation, begin, end, PageFloats(conversation, begin, end)));
  }
  tier.StoreSnapshot(ToStore(conversation, (length - 1) / 256 * 256, length,
                             SnapshotFloats(conversation.End(length))));
}

inline DiskHit FetchNow(DiskTier& tier, const Conversation& conversation, int64_t length_max,
                        int64_t memory_pages_length = 0, int64_t length_min = 0) {
  std::promise<DiskHit> promise;
  tier.Fetch({.ends = conversation.ends,
              .tokens = conversation.tokens,
              .length_min = length_min,
              .length_max = length_max,
              .memory_pages_length = memory_pages_length,
              .done = [&](DiskHit hit) { promise.set_value(std::move(hit)); }});
  return promise.get_future().get();
}

/// Every float of a hit must be the one that was stored for these tokens.
inline void ExpectRight(const DiskHit& hit, const Conversation& conversation,
                        int64_t memory_pages_length = 0) {
  if (hit.length == 0) return;
  const std::vector<float> snapshot = SnapshotFloats(conversation.End(hit.length));
  ASSERT_TRUE(std::ranges::equal(hit.snapshot.values, snapshot)) << hit.length;
  int64_t begin = hit.length <= memory_pages_length ? hit.length : memory_pages_length / 256 * 256;
  for (const FetchedPage& page : hit.pages) {
    ASSERT_EQ(page.begin, begin);
    const int64_t end = std::min(page.begin + page.tokens, hit.length);
    const std::span<const float> payload = page.payload.values;
    ASSERT_EQ(std::ssize(payload), page.tokens * kTestPageFloats);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(payload.data()) % 64, 0u);
    const std::vector<float> rows = PageFloats(conversation, page.begin, end);
    const auto count = static_cast<size_t>(end - page.begin);
    const auto fill = static_cast<size_t>(page.tokens);
    ASSERT_TRUE(std::equal(rows.begin(), rows.begin() + 2 * std::ssize(rows) / 3, payload.begin()));
    ASSERT_TRUE(std::equal(rows.begin() + static_cast<int64_t>(2 * count), rows.end(),
                           payload.begin() + static_cast<int64_t>(2 * fill)));
    begin = end;
  }
  ASSERT_EQ(begin, hit.length);
}

/// The machine's files, never forced to the disk: many times as fast.
class UnsyncedFiles : public FileSystem {
 public:
  Result<std::unique_ptr<ReadableFile>> OpenReadable(const std::string& path) override {
    return real_->OpenReadable(path);
  }
  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    K3_TRY(std::unique_ptr<WritableFile> file, real_->Create(path));
    return std::unique_ptr<WritableFile>(std::make_unique<File>(std::move(file)));
  }
  Result<std::unique_ptr<WritableFile>> CreateNew(const std::string& path) override {
    return real_->CreateNew(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return real_->Rename(from, to);
  }
  Status Remove(const std::string& path) override { return real_->Remove(path); }
  Status MakeDirectories(const std::string& path) override { return real_->MakeDirectories(path); }
  Status SyncDirectory(const std::string&) override { return OkStatus(); }
  bool Exists(const std::string& path) override { return real_->Exists(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return real_->List(path);
  }

 private:
  struct File : public WritableFile {
    explicit File(std::unique_ptr<WritableFile> file) : real(std::move(file)) {}
    Status Append(std::span<const std::byte> bytes) override { return real->Append(bytes); }
    Status Sync() override { return OkStatus(); }
    Status Close() override { return real->Close(); }
    std::unique_ptr<WritableFile> real;
  };

  std::unique_ptr<FileSystem> real_ = MakeRealFileSystem();
};

struct Opened {
  std::unique_ptr<DiskTier> tier;
  // Shared with the tier's callback, whichever goes first.
  std::shared_ptr<std::vector<std::string>> warnings = std::make_shared<std::vector<std::string>>();
};

inline Opened OpenTier(const std::string& dir, int64_t bytes_max = int64_t{1} << 30,
                       uint8_t fingerprint = 1, FileSystem* files = nullptr) {
  Opened opened;
  auto tier = DiskTier::Open(
      dir, TestFingerprint(fingerprint),
      {.bytes_max = bytes_max,
       .page_floats_per_token = kTestPageFloats,
       .snapshot_floats = kTestSnapshotFloats,
       .warn = [warnings = opened.warnings](const std::string& m) { warnings->push_back(m); },
       .files = files});
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  opened.tier = std::move(*tier);
  return opened;
}

/// Names and sizes of the regular files of all models.
inline std::map<std::string, int64_t> FilesOnDisk(const std::string& dir) {
  std::map<std::string, int64_t> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file() && entry.path().filename() != kCacheLockName) {
      files[entry.path().string()] = static_cast<int64_t>(entry.file_size());
    }
  }
  return files;
}

inline int64_t BytesOnDisk(const std::string& dir) {
  int64_t total = 0;
  for (const auto& [name, bytes] : FilesOnDisk(dir)) total += bytes;
  return total;
}

}  // namespace k3::cache
