#pragma once
// Memory for numbers. Arena: a bump allocator for the scratch of one forward pass. Memory is
// 64-byte aligned and not initialised. One owner thread; views stay valid until Reset or
// destruction. Blocks are kept over Reset, so a warmed-up arena never calls malloc again.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace k3 {

struct AlignedDelete {
  void operator()(void* p) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

/// `bytes` bytes aligned to 64 (huge-page advice from 4 MiB up). Aborts when the system has none.
AlignedBytes AllocateAligned(int64_t bytes);

/// A block that several arrays lie in, which live as long as any of them does: shared by them.
using SharedBytes = std::shared_ptr<std::byte[]>;

/// Several blocks, each on pages of its own. They are mapped together, as one large array is, which
/// under a hypervisor costs a fraction of mapping them one by one; what each holds goes back to the
/// system when its last owner lets go of it.
std::vector<SharedBytes> AllocateTogether(std::span<const int64_t> bytes);

class Arena {
 public:
  Arena() = default;
  /// Reserves `bytes` in one block.
  explicit Arena(int64_t bytes) { Grow(bytes); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// `count` uninitialised elements, 64-byte aligned. T must be trivially destructible.
  template <typename T>
  T* Allocate(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return static_cast<T*>(AllocateBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  template <typename T>
  std::span<T> AllocateSpan(int64_t count) {
    return {Allocate<T>(count), static_cast<size_t>(count)};
  }

  /// Frees everything at once. A pass that needed several blocks gets one large one next time.
  void Reset();

  int64_t used_bytes() const { return used_bytes_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  friend class ArenaScope;
  struct Block {
    AlignedBytes data;
    int64_t size = 0;
  };

  void* AllocateBytes(int64_t bytes);
  void Grow(int64_t bytes);

  std::vector<Block> blocks_;
  size_t block_ = 0;
  int64_t offset_ = 0;
  int64_t used_bytes_ = 0;
  int64_t capacity_bytes_ = 0;
};

/// Returns the arena to where it stood, at the end of a scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena)
      : arena_(arena), block_(arena.block_), offset_(arena.offset_), used_(arena.used_bytes_) {}
  ~ArenaScope() {
    arena_.block_ = block_;
    arena_.offset_ = offset_;
    arena_.used_bytes_ = used_;
  }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t block_;
  int64_t offset_;
  int64_t used_;
};

}  // namespace k3
