#pragma once
// Files behind interfaces, so that tests can inject short reads, I/O errors and full disks.
// A File belongs to whoever opened it; ReadAt may be called from any thread, everything else from
// one. Errors name the path and the system's reason. Failures are IoError, NotFound when the path
// does not exist, ResourceExhausted when the disk is full.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3 {

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  /// Fills `out` from `offset` or fails; a file that ends early is Corruption.
  virtual Status ReadAt(int64_t offset, std::span<std::byte> out) = 0;
  virtual int64_t size() const = 0;
};

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  /// Forces what was appended to the disk.
  virtual Status Sync() = 0;
  /// Closes and reports a failure that only closing shows. Call once, last.
  virtual Status Close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<ReadableFile>> OpenReadable(const std::string& path) = 0;
  /// Creates or truncates.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  /// Creates; InvalidArgument when there is one already, also when another process was faster.
  virtual Result<std::unique_ptr<WritableFile>> CreateNew(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;
  /// Makes the directory and its parents; an existing one is fine.
  virtual Status MakeDirectories(const std::string& path) = 0;
  /// Makes renames and creations inside `path` durable.
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  /// Names (not paths) in a directory, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
};

/// The machine's own files. Stateless; the caller owns it.
std::unique_ptr<FileSystem> MakeRealFileSystem();

/// Reads a whole file of at most `bytes_max` bytes; a larger one is InvalidArgument.
Result<std::string> ReadWholeFile(FileSystem& files, const std::string& path, int64_t bytes_max);

/// Where a file stands while it is being written: beside `path`, apart for each process.
std::string PartialPath(const std::string& path);

/// Writes PartialPath(path), syncs it and renames it over `path`: never a half-written file.
Status WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view content);

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

/// A read-only mapping of a whole file. Bytes are read when touched; a file that shrinks under the
/// mapping ends the process with SIGBUS, as for every mapped reader.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }

  /// Maps those of the bytes [begin, end), begin a multiple of 4096, that the system already holds
  /// in memory. Touched one by one, pages cost a fault each, which under a hypervisor is half a
  /// second a GB; so it is a tenth of that. What is not in memory is not read. Only a hint: where
  /// the system cannot do it, or does not say what is there since the file is somebody else's,
  /// nothing happens.
  void MapResident(int64_t begin, int64_t end) const;

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  bool shows_residency_ = false;
};

}  // namespace k3
