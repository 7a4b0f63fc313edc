#pragma once
// OutputFile: where a command's data goes: standard output for "-", a device or pipe as it stands,
// else a file that appears under its name only when it is whole. One thread.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "checkpoint/writer.h"
#include "sys/file.h"

namespace k3::cli {

/// Whether a device, a pipe, a directory or the like stands there: renaming a file over it would
/// put the file in its place.
bool IsNoRegularFile(const std::string& path);

class OutputFile {
 public:
  /// `files` must outlive the file.
  static Result<OutputFile> Create(FileSystem& files, const std::string& path);

  Status Append(std::span<const std::byte> bytes);
  /// Call once, last. Without it a file never appears.
  Status Finish();

 private:
  OutputFile() = default;

  // At most one of the two; neither for standard output.
  std::optional<AtomicFile> atomic_;
  std::unique_ptr<WritableFile> device_;
};

}  // namespace k3::cli
