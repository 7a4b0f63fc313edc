#pragma once
// DiskIndex: which records the disk tier has of one model, how they hang together, and which of
// them may go. Memory only: the tier keeps it and the files in step.
//
// Records form trees: a page stands behind the page whose end is its parent, a snapshot on the page
// that covers its boundary. A record that nothing stands behind is a leaf, and only leaves may be
// evicted. One thread at a time. Lookups of a whole prefix take one step a page and a block.

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/disk_record.h"
#include "cache/prefix_hash.h"

namespace k3::cache {

struct IndexedRecord {
  RecordKind kind = RecordKind::kPage;
  PrefixHash parent;
  PrefixHash key;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t file_bytes = 0;
  int64_t last_use = 0;
  /// Of a page: the hash behind each of its blocks, lower half. What is found by it is compared
  /// with the tokens once the file is read.
  std::vector<uint64_t> block_ends;
  bool is_leaf = false;
};

/// What to read for one boundary.
struct DiskPlan {
  int64_t length = 0;  // 0: there is none
  const IndexedRecord* snapshot = nullptr;
  std::vector<const IndexedRecord*> pages;  // ascending
};

class DiskIndex {
 public:
  /// `header` must not be there yet. Pointers to records are valid until their removal.
  const IndexedRecord* Add(const RecordHeader& header, int64_t file_bytes, int64_t last_use);
  void Remove(const IndexedRecord* record);
  void Touch(const IndexedRecord* record, int64_t last_use);

  const IndexedRecord* Find(RecordKind kind, const PrefixHash& key) const;
  /// The fullest page with the first `tokens` tokens behind `parent`, whose hash is `end`.
  const IndexedRecord* FindPage(const PrefixHash& parent, int64_t tokens,
                                const PrefixHash& end) const;
  /// What stands directly in front of a record, be it there already or not: null for none.
  const IndexedRecord* PageInFrontOf(const RecordHeader& header) const;
  /// The pages that hold nothing but the beginning of `page`.
  std::vector<const IndexedRecord*> Beginnings(const IndexedRecord* page) const;

  /// As DiskTier's functions of these names.
  int64_t StoredLength(std::span<const PrefixHash> ends) const;
  DiskPlan Plan(std::span<const PrefixHash> ends, int64_t length_min, int64_t length_max,
                int64_t memory_pages_length) const;

  /// The least recently used leaf other than `spared`; null when there is none.
  const IndexedRecord* OldestLeaf(const IndexedRecord* spared) const;

  int64_t bytes() const { return bytes_; }
  int64_t pages_count() const { return std::ssize(pages_); }
  int64_t snapshots_count() const { return std::ssize(snapshots_); }

 private:
  using Records = std::unordered_map<PrefixHash, IndexedRecord, PrefixHasher>;
  /// What begins at one page boundary.
  struct Fork {
    std::vector<IndexedRecord*> pages;
    std::vector<IndexedRecord*> snapshots;
  };

  bool HasDependents(const IndexedRecord& page) const;
  /// Decides anew whether `page` is a leaf; null is fine.
  void Refresh(IndexedRecord* page);
  /// The same for whatever `record` stands on.
  void RefreshBelow(const IndexedRecord& record);

  Records pages_;
  Records snapshots_;
  std::unordered_map<PrefixHash, Fork, PrefixHasher> forks_;
  std::set<std::pair<int64_t, const IndexedRecord*>> leaves_;  // by last use
  int64_t bytes_ = 0;
};

}  // namespace k3::cache
