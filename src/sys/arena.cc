#include "sys/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/arithmetic.h"
#include "base/check.h"

namespace k3 {
namespace {
constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kBlockBytesMin = int64_t{1} << 20;
constexpr int64_t kPopulateBytesMin = int64_t{64} << 10;

int64_t PageBytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

/// Maps the whole pages of [p, p + size) at once: touched one by one they cost a fault each, which
/// under a hypervisor is the larger part of filling a new array. Where the system cannot do it,
/// they are mapped when they are touched.
void PopulatePages(void* p, int64_t size) {
  const auto page = static_cast<uintptr_t>(PageBytes());
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(p) + page - 1) / page * page;
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(size)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

}  // namespace

void AlignedDelete::operator()(void* p) const { std::free(p); }

AlignedBytes AllocateAligned(int64_t bytes) {
  K3_CHECK(bytes >= 0, "allocation size overflowed");
  const bool huge = bytes >= 2 * kHugePage;
  const int64_t alignment = huge ? kHugePage : kAlignment;
  const int64_t size = RoundUp(std::max<int64_t>(bytes, 1), alignment);
  void* p = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
  if (p == nullptr) throw std::bad_alloc();  // as operator new does
  if (huge) madvise(p, static_cast<size_t>(size), MADV_HUGEPAGE);
  if (!huge && size >= kPopulateBytesMin) PopulatePages(p, size);
  return AlignedBytes(static_cast<std::byte*>(p));
}

std::vector<SharedBytes> AllocateTogether(std::span<const int64_t> bytes) {
  const int64_t page = PageBytes();
  int64_t total = page;  // the block need not begin with a page
  for (const int64_t size : bytes) total += RoundUp(std::max<int64_t>(size, 1), page);
  const SharedBytes block = AllocateAligned(total);
  const auto base = reinterpret_cast<uintptr_t>(block.get());
  std::byte* at =
      block.get() + (RoundUp(static_cast<int64_t>(base), page) - static_cast<int64_t>(base));
  std::vector<SharedBytes> parts;
  for (const int64_t size : bytes) {
    const int64_t rounded = RoundUp(std::max<int64_t>(size, 1), page);
    const auto give_back = [block, rounded](std::byte* p) {
      madvise(p, static_cast<size_t>(rounded), MADV_DONTNEED);
    };
    parts.emplace_back(at, give_back);
    at += rounded;
  }
  return parts;
}

void* Arena::AllocateBytes(int64_t bytes) {
  K3_CHECK(bytes >= 0, "allocation size overflowed");
  const int64_t size = RoundUp(bytes, kAlignment);
  while (block_ < blocks_.size() && offset_ + size > blocks_[block_].size) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) Grow(size);
  void* p = blocks_[block_].data.get() + offset_;
  offset_ += size;
  used_bytes_ += size;
  return p;
}

void Arena::Grow(int64_t bytes) {
  const int64_t size = std::max({bytes, kBlockBytesMin, capacity_bytes_ / 2});
  blocks_.push_back({AllocateAligned(size), size});
  capacity_bytes_ += size;
}

void Arena::Reset() {
  if (blocks_.size() > 1) {
    const int64_t total = capacity_bytes_;
    blocks_.clear();
    capacity_bytes_ = 0;
    Grow(total);
  }
  block_ = 0;
  offset_ = 0;
  used_bytes_ = 0;
}

}  // namespace k3
