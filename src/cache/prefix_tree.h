#pragma once
// PrefixTree: the pages and snapshots of a PrefixCache, what finds them, and in which order they
// are given up. Private to this room.
//
// A page hangs behind the full page in front of it, the first ones behind a root, one for each
// tenant. Every 16-token block of every page stands in an index under the hash of its end; pages
// that part within share the hashes of their common blocks. A snapshot hangs on a page that holds
// its last block; a page goes only when nothing hangs on it, so what is pinned keeps all that it
// needs.
//
// Owns its entries; pointers to them stay valid until they are evicted. One thread.

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/eviction_score.h"
#include "cache/prefix_cache.h"

namespace k3::cache {

inline constexpr int64_t kPageBlocks = kPageTokens / kHashBlockTokens;

/// An entry in the queue of those that may be evicted.
struct Evictable {
  uint64_t id = 0;  // ascending in order of creation
  double last_use = 0;
  double score = 0;  // of its place in the queue
  bool is_page = false;
  bool is_queued = false;
  bool is_young = false;  // in the queue of those that were used lately
  int64_t pins = 0;
};

struct CachedPage : Evictable {
  CachedPage* parent = nullptr;  // null for a root
  int64_t index = -1;            // of the page in its sequence, -1 for a root
  PrefixHash before;             // of all tokens in front
  std::vector<int32_t> tokens;   // at most 256, whole blocks
  std::vector<PrefixHash> ends;  // [blocks]
  std::vector<SharedRows> layers;
  int64_t children = 0;
  int64_t child_snapshots = 0;  // that hang on its children
  std::vector<CachedSnapshot*> snapshots;
  std::vector<CachedSnapshot*> firsts;  // of a root: those with no snapshot in front

  int64_t blocks() const { return std::ssize(ends); }
  bool is_full() const { return parent == nullptr || blocks() == kPageBlocks; }
};

struct CachedSnapshot : Evictable {
  CachedPage* host = nullptr;
  int64_t blocks = 0;  // of the host, up to its end
  SnapshotKind kind = SnapshotKind::kTurn;
  SharedSnapshot state;
  int64_t uses = 0;
  CachedSnapshot* previous = nullptr;  // the longest one in front, or null
  std::vector<CachedSnapshot*> next;   // those whose previous this is

  int64_t length() const { return host->index * kPageTokens + blocks * kHashBlockTokens; }
};

/// The longest chain of blocks that equals a sequence's beginning.
struct PrefixMatch {
  std::vector<CachedPage*> chain;
  int64_t length = 0;       // tokens, whole blocks; the last page of the chain may reach further
  bool has_parted = false;  // others go on from there, and with other tokens
};

class PrefixTree {
 public:
  PrefixTree(const ModelConfig& config, const PrefixCacheOptions& options);

  /// Looks at whole blocks of `tokens` up to `limit`.
  PrefixMatch Match(const PrefixHash& start, std::span<const int32_t> tokens, int64_t limit) const;
  /// The snapshot behind the first `blocks` blocks of `page`, on whichever page it hangs.
  CachedSnapshot* FindSnapshot(const CachedPage& page, int64_t blocks) const;
  /// The longest one within `match` at a multiple of the alignment, or null.
  CachedSnapshot* LongestSnapshot(const PrefixMatch& match) const;

  CachedPage& Root(const PrefixHash& start);
  /// Forgets a root that nothing hangs on.
  void DropRoot(const PrefixHash& start);
  CachedPage& AddPage(CachedPage& parent, std::span<const int32_t> tokens,
                      std::vector<SharedRows> layers);
  /// `tokens` are those of `page` and more of the same page.
  void ExtendPage(CachedPage& page, std::span<const int32_t> tokens,
                  std::vector<SharedRows> layers);
  CachedSnapshot& AddSnapshot(CachedPage& host, int64_t blocks, SnapshotKind kind,
                              SharedSnapshot state);
  void RemoveSnapshot(CachedSnapshot& snapshot);

  /// Counts as a use of the snapshot and of all pages in front of its end.
  void Use(CachedSnapshot& snapshot);
  void Use(CachedPage& page);
  /// What is pinned is not evicted.
  void Pin(CachedPage& page);
  void Unpin(CachedPage& page);
  void Pin(CachedSnapshot& snapshot);
  void Unpin(CachedSnapshot& snapshot);
  /// After a change of what its place in the queue depends on.
  void Requeue(CachedPage& page);
  void Requeue(CachedSnapshot& snapshot);

  /// Evicts until `bytes` more fit. With `spare_snapshots` only what leads to no snapshot and
  /// transient ones are given up.
  bool MakeRoom(int64_t bytes, bool spare_snapshots);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t snapshot_bytes() const { return snapshot_bytes_; }
  int64_t bytes() const {
    return std::ssize(pages_) * page_bytes_ + std::ssize(snapshots_) * snapshot_bytes_;
  }
  int64_t pages_count() const { return std::ssize(pages_); }
  int64_t snapshots_count() const { return std::ssize(snapshots_); }
  int64_t evicted_pages() const { return evicted_pages_; }
  int64_t evicted_snapshots() const { return evicted_snapshots_; }
  int64_t pinned_snapshots() const { return pinned_snapshots_; }
  int64_t row_width() const { return row_width_; }
  int64_t mla_layers_count() const { return mla_layers_count_; }

 private:
  struct BlockPlace {
    CachedPage* page;
    int64_t blocks;  // of the page, up to the end that has the hash
  };
  struct GivenUpFirst {
    bool operator()(const Evictable* a, const Evictable* b) const {
      return a->score != b->score ? a->score < b->score : a->id < b->id;
    }
  };
  using BlockEnds = std::array<PrefixHash, static_cast<size_t>(kPageBlocks)>;

  /// The child of `parent` with the most leading blocks of `tokens`; ends [blocks of tokens].
  BlockPlace LongestChild(const CachedPage& parent, std::span<const int32_t> tokens,
                          std::span<const PrefixHash> ends) const;
  void AppendTokens(CachedPage& page, std::span<const int32_t> tokens);
  /// Puts it where it belongs by its last use and its worth.
  void Queue(Evictable& entry);
  void Unqueue(Evictable& entry);
  double Worth(const Evictable& entry) const;
  bool IsYoung(const Evictable& entry) const;
  /// Finds the place of a new snapshot among those in front of it and behind it, and back.
  void Link(CachedSnapshot& snapshot);
  void Unlink(CachedSnapshot& snapshot);
  std::vector<CachedSnapshot*>& Behind(CachedPage& host, CachedSnapshot* previous);
  CachedSnapshot* PreviousOf(const CachedSnapshot& snapshot) const;
  bool IsBehind(const CachedSnapshot& later, const CachedSnapshot& earlier) const;
  bool IsLeftBehind(const CachedSnapshot& snapshot) const;
  double OwnBytes(const CachedSnapshot& snapshot) const;
  void RequeueBehind(CachedSnapshot& snapshot);
  void RemovePage(CachedPage& page);

  const PrefixCacheOptions options_;
  const PrefillCost cost_;
  int64_t row_width_ = 0;
  int64_t mla_layers_count_ = 0;
  int64_t page_bytes_ = 0;
  int64_t snapshot_bytes_ = 0;

  std::unordered_map<PrefixHash, std::unique_ptr<CachedPage>, PrefixHasher> roots_;
  std::unordered_map<CachedPage*, std::unique_ptr<CachedPage>> pages_;
  std::unordered_map<CachedSnapshot*, std::unique_ptr<CachedSnapshot>> snapshots_;
  std::unordered_multimap<PrefixHash, BlockPlace, PrefixHasher> blocks_;
  std::unordered_multimap<PrefixHash, CachedSnapshot*, PrefixHasher> snapshot_ends_;
  // Those used lately go only when there is no other, in order of age; the others by their worth.
  std::set<Evictable*, GivenUpFirst> young_;
  std::set<Evictable*, GivenUpFirst> old_;

  double clock_ = 0;
  uint64_t next_id_ = 0;
  int64_t pinned_snapshots_ = 0;
  int64_t evicted_pages_ = 0;
  int64_t evicted_snapshots_ = 0;
};

}  // namespace k3::cache
