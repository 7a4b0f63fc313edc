#pragma once
// Writer of GGUF files (version 3, little-endian): metadata, a table of tensors and their data, as
// a stream. Nothing is held but the header, so a file may be larger than memory.
//
//   GgufMetadata metadata;
//   metadata.AddString("general.architecture", "kimi-k3");
//   K3_TRY(GgufWriter writer, GgufWriter::Create(files, path, metadata, tensors));
//   K3_RETURN_IF_ERROR(writer.Append(bytes));  // every tensor's bytes in the order declared
//   K3_RETURN_IF_ERROR(writer.Finish());
//
// The file stands as "<path>.<process>.partial" until it is whole; a writer that is dropped or
// fails removes that. Every tensor starts at a multiple of kGgufAlignment from the start of the
// data; the writer adds the padding. The FileSystem must outlive the writer. One thread.
//
// Failures: InvalidArgument for a bad declaration, ResourceExhausted for a full disk (naming path
// and bytes needed), else what the file system reports. Appending another number of bytes than
// declared is a broken invariant and aborts. Source: the GGUF specification of the ggml project.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/writer.h"
#include "sys/file.h"

namespace k3 {

/// Element types, with their numbers in the file.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8 = 8, kBf16 = 30, kMxfp4 = 39 };

/// "F32", "Q8_0", ...
std::string_view GgufTypeName(GgufType type);
/// Elements of a block: rows are whole blocks.
int64_t GgufBlockElements(GgufType type);
int64_t GgufBlockBytes(GgufType type);

/// The first bytes of every GGUF file.
inline constexpr std::string_view kGgufMagic = "GGUF";
/// Also the value to put under "general.alignment".
inline constexpr int64_t kGgufAlignment = 32;
/// Names and dimensions that ggml's readers accept.
inline constexpr int64_t kGgufNameBytesMax = 63;
inline constexpr int64_t kGgufRankMax = 4;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> dims;  // innermost first, the other way round than in safetensors

  /// Stored bytes of a tensor that the writer accepts, padding not counted.
  int64_t bytes() const;
};

/// Key-value pairs, encoded as they are added. A plain value.
class GgufMetadata {
 public:
  void AddU32(std::string_view key, uint32_t value);
  void AddF32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddI32Array(std::string_view key, std::span<const int32_t> values);
  void AddStringArray(std::string_view key, std::span<const std::string> values);

  int64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void AddKey(std::string_view key, uint32_t type);

  std::string bytes_;
  int64_t count_ = 0;
};

class GgufWriter {
 public:
  /// Creates the file and writes everything before the data.
  static Result<GgufWriter> Create(FileSystem& files, std::string path,
                                   const GgufMetadata& metadata,
                                   std::span<const GgufTensor> tensors);

  /// The next bytes of the tensor that is not whole yet; they may not reach into the next one.
  Status Append(std::span<const std::byte> bytes);
  /// Every declared byte must have been appended.
  Status Finish();

  int64_t file_bytes() const { return file_bytes_; }

 private:
  GgufWriter(AtomicFile file, std::vector<int64_t> tensor_bytes, int64_t file_bytes)
      : file_(std::move(file)), tensor_bytes_(std::move(tensor_bytes)), file_bytes_(file_bytes) {}
  Status AppendZeros(int64_t count);
  Status Explain(const Status& status) const;

  AtomicFile file_;
  std::vector<int64_t> tensor_bytes_;
  int64_t file_bytes_;
  size_t tensor_ = 0;  // the one being written
  int64_t done_ = 0;   // its bytes so far
};

/// Bytes of the file that these make; InvalidArgument for a tensor that cannot be written.
Result<int64_t> GgufFileBytes(const GgufMetadata& metadata, std::span<const GgufTensor> tensors);

}  // namespace k3
