#pragma once
// FileLock: one process at a time, by a lock on a file that the system takes back when the process
// ends, however it ends. The file stays; its content means nothing. Advisory: only those who ask
// are kept out. Works between processes and between two locks of one process.

#include <string>

#include "base/status.h"

namespace k3 {

class FileLock {
 public:
  /// Creates the file if need be. Unavailable when another holds the lock, else IoError.
  static Result<FileLock> Acquire(const std::string& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace k3
