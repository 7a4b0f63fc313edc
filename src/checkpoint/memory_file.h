#pragma once
// A ReadableFile over bytes in memory, for tests and fuzzers. Does not own the bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "sys/file.h"

namespace k3 {

class MemoryFile : public ReadableFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Status ReadAt(int64_t offset, std::span<std::byte> out) override {
    if (offset < 0 || offset > size() || std::ssize(out) > size() - offset) {
      return Corruption("the file ends early");
    }
    std::copy_n(bytes_.begin() + offset, out.size(), out.begin());
    return OkStatus();
  }
  int64_t size() const override { return std::ssize(bytes_); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace k3
