#include "engine/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "cache/prefix_hash.h"
#include "cache/sequence_state.h"
#include "sys/file.h"

namespace k3 {
namespace {

constexpr int64_t kTensorSampleBytes = 4096;
constexpr int64_t kPieceBytes = 1 << 20;
constexpr std::string_view kLatentType = "float32";

using Digest = std::array<uint8_t, 16>;

/// XXH3 of 128 bits over values of which each says how long it is.
class Fingerprinter {
 public:
  Fingerprinter() { XXH3_128bits_reset(&state_); }
  void Add(std::span<const std::byte> bytes) {
    Add(std::ssize(bytes));
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  void Add(std::string_view text) { Add(AsBytes(text)); }
  void Add(int64_t value) { XXH3_128bits_update(&state_, &value, sizeof(value)); }
  Digest Finish() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    Digest digest;
    std::memcpy(digest.data(), canonical.digest, digest.size());
    return digest;
  }

 private:
  XXH3_state_t state_;
};

/// A file that is not there is told from an empty one.
Status AddFile(FileSystem& files, const std::string& path, int64_t bytes_max, Fingerprinter* sum) {
  const Result<std::string> content = ReadWholeFile(files, path, bytes_max);
  if (content.status().code() == StatusCode::kNotFound) {
    sum->Add(int64_t{-1});
    return OkStatus();
  }
  K3_RETURN_IF_ERROR(content.status());
  sum->Add(*content);
  return OkStatus();
}

/// One shard by itself: name, size, time, header, and the start of each of its tensors.
Result<Digest> ShardDigest(FileSystem& files, const ShardInfo& shard,
                           std::span<const TensorInfo* const> tensors) {
  Fingerprinter sum;
  sum.Add(shard.file_name);
  sum.Add(shard.file_bytes);
  std::error_code error;
  const auto time = std::filesystem::last_write_time(shard.path, error);
  if (error) return IoError(fmt::format("{}: cannot stat: {}", shard.path, error.message()));
  sum.Add(static_cast<int64_t>(time.time_since_epoch().count()));
  K3_TRY(const std::unique_ptr<ReadableFile> file, files.OpenReadable(shard.path));
  std::vector<std::byte> buffer(static_cast<size_t>(kPieceBytes));
  const auto add = [&](int64_t begin, int64_t bytes) -> Status {
    const std::span<std::byte> piece = std::span(buffer).first(static_cast<size_t>(bytes));
    K3_RETURN_IF_ERROR(file->ReadAt(begin, piece));
    sum.Add(piece);
    return OkStatus();
  };
  for (int64_t at = 0; at < shard.data_offset; at += kPieceBytes) {
    K3_RETURN_IF_ERROR(add(at, std::min(kPieceBytes, shard.data_offset - at)));
  }
  // Read, not touched in the mapping, which would bring in what lies around each.
  for (const TensorInfo* tensor : tensors) {
    K3_RETURN_IF_ERROR(add(tensor->file_offset, std::min(kTensorSampleBytes, tensor->bytes)));
  }
  return sum.Finish();
}

/// [shards], each by where they lie in the file.
std::vector<std::vector<const TensorInfo*>> TensorsByShard(const Checkpoint& checkpoint) {
  std::vector<std::vector<const TensorInfo*>> by_shard(checkpoint.shards().size());
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    by_shard[static_cast<size_t>(tensor.shard)].push_back(&tensor);
  }
  for (std::vector<const TensorInfo*>& tensors : by_shard) {
    std::ranges::sort(tensors, {}, [](const TensorInfo* tensor) {
      return std::pair(tensor->file_offset, tensor->name);
    });
  }
  return by_shard;
}

}  // namespace

Result<std::array<uint8_t, 16>> ModelFingerprint(Engine& engine) {
  const Checkpoint& checkpoint = engine.checkpoint();
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  Fingerprinter sum;
  sum.Add(int64_t{kNumericsVersion});
  sum.Add(SimdTargetName(engine.target()));
  sum.Add(kLatentType);
  sum.Add(cache::kPageTokens);
  sum.Add(cache::kHashBlockTokens);
  sum.Add(checkpoint.config_json());
  for (const std::string_view name :
       {kGenerationConfigFileName, std::string_view("tokenizer_config.json"),
        std::string_view("tiktoken.model")}) {
    K3_RETURN_IF_ERROR(
        AddFile(*files, JoinPath(checkpoint.dir(), name), limits::kTokenizerFileBytesMax, &sum));
  }
  const std::vector<std::vector<const TensorInfo*>> tensors = TensorsByShard(checkpoint);
  std::vector<Result<Digest>> digests(tensors.size(), Digest{});
  engine.pool().ParallelFor(std::ssize(digests), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      digests[at] = ShardDigest(*files, checkpoint.shards()[at], tensors[at]);
    }
  });
  for (const Result<Digest>& digest : digests) {
    K3_RETURN_IF_ERROR(digest.status());
    sum.Add(std::as_bytes(std::span(*digest)));
  }
  return sum.Finish();
}

}  // namespace k3
