#pragma once
// Writers of checkpoints: one safetensors shard as a stream of bytes, the index of all shards, and
// the configuration. Nothing is held but a small buffer, so shards may be larger than memory.
//
//   K3_TRY(SafetensorsWriter shard, SafetensorsWriter::Create(files, path, {{"a", kBF16, {2,
//   3}}})); K3_RETURN_IF_ERROR(shard.Append(bytes));   // all tensors' bytes in the order declared
//   K3_RETURN_IF_ERROR(shard.Finish());
//
// Every file is written as "<path>.<process>.partial", synced and renamed when it is whole; a
// writer that is dropped or fails removes its partial file. The FileSystem must outlive the writer.
// One thread.
//
// Failures: InvalidArgument for a bad declaration, ResourceExhausted for a full disk (naming path
// and bytes needed), else what the file system reports. Appending another number of bytes than
// declared is a broken invariant and aborts.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/shard_index.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace k3 {

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

/// A file that appears under its name only when it is whole.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(FileSystem& files, std::string path);
  AtomicFile(AtomicFile&& other) noexcept = default;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  Status Append(std::span<const std::byte> bytes);
  /// Syncs, closes and renames. Call once, last.
  Status Finish();
  const std::string& path() const { return path_; }

 private:
  AtomicFile(FileSystem& files, std::string path, std::unique_ptr<WritableFile> file)
      : files_(&files), path_(std::move(path)), file_(std::move(file)) {}
  std::string PartialPath() const { return k3::PartialPath(path_); }

  FileSystem* files_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;  // null when finished
};

class SafetensorsWriter {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  /// Creates the file and writes its header. `tensors` is not kept.
  static Result<SafetensorsWriter> Create(FileSystem& files, std::string path,
                                          std::span<const TensorDeclaration> tensors,
                                          const Metadata& metadata = {{"format", "pt"}});

  /// The next bytes of the data section; a chunk may end anywhere and span tensors.
  Status Append(std::span<const std::byte> bytes);
  /// Every declared byte must have been appended.
  Status Finish();

  int64_t file_bytes() const { return file_bytes_; }
  int64_t remaining_bytes() const { return remaining_bytes_; }

 private:
  SafetensorsWriter(AtomicFile file, int64_t file_bytes, int64_t data_bytes)
      : file_(std::move(file)), file_bytes_(file_bytes), remaining_bytes_(data_bytes) {}
  Status Explain(const Status& status) const;

  AtomicFile file_;
  int64_t file_bytes_;
  int64_t remaining_bytes_;
};

/// Bytes of the file that these tensors make, header included; InvalidArgument for a bad one.
Result<int64_t> SafetensorsFileBytes(std::span<const TensorDeclaration> tensors);

class ShardIndexWriter {
 public:
  static Result<ShardIndexWriter> Create(FileSystem& files, std::string path);
  /// Names must be valid UTF-8 and differ.
  Status Add(std::string_view tensor, std::string_view shard);
  Status Finish(const ShardIndexMetadata& metadata);

 private:
  explicit ShardIndexWriter(AtomicFile file) : file_(std::move(file)) {}
  Status Flush();

  AtomicFile file_;
  std::string buffer_;
  bool empty_ = true;
};

/// Writes `json` as the config.json of `dir`, after checking that it is one.
Status WriteConfigFile(FileSystem& files, const std::string& dir, std::string_view json);

}  // namespace k3
