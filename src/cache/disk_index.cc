#include "cache/disk_index.h"

#include <algorithm>

#include "base/check.h"

namespace k3::cache {
namespace {

constexpr int64_t kBlocksPerPage = kPageTokens / kHashBlockTokens;

size_t BlockOf(int64_t tokens) { return static_cast<size_t>(tokens / kHashBlockTokens - 1); }

/// Whether the first `tokens` tokens of `page` have the hash `end`.
bool Covers(const IndexedRecord& page, int64_t tokens, const PrefixHash& end) {
  if (tokens == page.tokens) return page.key == end;
  return tokens < page.tokens && page.block_ends[BlockOf(tokens)] == end.low;
}

std::vector<uint64_t> BlockEnds(const RecordHeader& header) {
  std::vector<uint64_t> ends;
  for (const PrefixHash& end : ChainHashes(header.parent, header.tokens)) ends.push_back(end.low);
  ends.erase(ends.begin());  // the hash in front of them all
  return ends;
}

}  // namespace

const IndexedRecord* DiskIndex::Add(const RecordHeader& header, int64_t file_bytes,
                                    int64_t last_use) {
  const bool is_page = header.kind == RecordKind::kPage;
  const auto [at, added] =
      (is_page ? pages_ : snapshots_)
          .try_emplace(header.key, IndexedRecord{.kind = header.kind,
                                                 .parent = header.parent,
                                                 .key = header.key,
                                                 .begin = header.begin,
                                                 .tokens = std::ssize(header.tokens),
                                                 .file_bytes = file_bytes,
                                                 .last_use = last_use});
  K3_CHECK(added, "a record is indexed once");
  IndexedRecord& record = at->second;
  if (is_page) record.block_ends = BlockEnds(header);
  Fork& fork = forks_[record.parent];
  (is_page ? fork.pages : fork.snapshots).push_back(&record);
  bytes_ += file_bytes;
  if (is_page) {
    Refresh(&record);
  } else {
    record.is_leaf = true;
    leaves_.emplace(record.last_use, &record);
  }
  RefreshBelow(record);
  return &record;
}

void DiskIndex::Remove(const IndexedRecord* record) {
  const IndexedRecord removed = *record;
  if (removed.is_leaf) leaves_.erase({removed.last_use, record});
  const auto fork = forks_.find(removed.parent);
  const bool is_page = removed.kind == RecordKind::kPage;
  std::erase(is_page ? fork->second.pages : fork->second.snapshots, record);
  if (fork->second.pages.empty() && fork->second.snapshots.empty()) forks_.erase(fork);
  bytes_ -= removed.file_bytes;
  (is_page ? pages_ : snapshots_).erase(removed.key);
  RefreshBelow(removed);
}

void DiskIndex::Touch(const IndexedRecord* record, int64_t last_use) {
  auto* const changed = const_cast<IndexedRecord*>(record);
  if (record->is_leaf) {
    leaves_.erase({record->last_use, record});
    leaves_.emplace(last_use, record);
  }
  changed->last_use = last_use;
}

const IndexedRecord* DiskIndex::Find(RecordKind kind, const PrefixHash& key) const {
  const Records& records = kind == RecordKind::kPage ? pages_ : snapshots_;
  const auto at = records.find(key);
  return at == records.end() ? nullptr : &at->second;
}

const IndexedRecord* DiskIndex::FindPage(const PrefixHash& parent, int64_t tokens,
                                         const PrefixHash& end) const {
  const auto fork = forks_.find(parent);
  if (fork == forks_.end()) return nullptr;
  const IndexedRecord* fullest = nullptr;
  for (const IndexedRecord* page : fork->second.pages) {
    if (Covers(*page, tokens, end) && (fullest == nullptr || page->tokens > fullest->tokens)) {
      fullest = page;
    }
  }
  return fullest;
}

const IndexedRecord* DiskIndex::PageInFrontOf(const RecordHeader& header) const {
  if (header.kind == RecordKind::kPage) return Find(RecordKind::kPage, header.parent);
  return FindPage(header.parent, std::ssize(header.tokens), header.key);
}

std::vector<const IndexedRecord*> DiskIndex::Beginnings(const IndexedRecord* page) const {
  std::vector<const IndexedRecord*> found;
  for (const IndexedRecord* other : forks_.at(page->parent).pages) {
    if (other->tokens < page->tokens && Covers(*page, other->tokens, other->key)) {
      found.push_back(other);
    }
  }
  return found;
}

int64_t DiskIndex::StoredLength(std::span<const PrefixHash> ends) const {
  const int64_t blocks = std::ssize(ends) - 1;
  for (int64_t first = 0; first < blocks; first += kBlocksPerPage) {
    int64_t count = std::min(blocks - first, kBlocksPerPage);
    const PrefixHash& parent = ends[static_cast<size_t>(first)];
    while (count > 0 && FindPage(parent, count * kHashBlockTokens,
                                 ends[static_cast<size_t>(first + count)]) == nullptr) {
      --count;
    }
    if (count < kBlocksPerPage) return (first + count) * kHashBlockTokens;
  }
  return std::max<int64_t>(blocks, 0) * kHashBlockTokens;
}

DiskPlan DiskIndex::Plan(std::span<const PrefixHash> ends, int64_t length_min, int64_t length_max,
                         int64_t memory_pages_length) const {
  const int64_t blocks = std::min(std::ssize(ends) - 1, length_max / kHashBlockTokens);
  // Whole pages that are there one after the other, those in memory left out.
  std::vector<const IndexedRecord*> chain;
  const int64_t memory_pages = std::max<int64_t>(memory_pages_length, 0) / kPageTokens;
  int64_t pages = memory_pages;
  for (; (pages + 1) * kBlocksPerPage <= blocks; ++pages) {
    const IndexedRecord* page =
        Find(RecordKind::kPage, ends[static_cast<size_t>((pages + 1) * kBlocksPerPage)]);
    if (page == nullptr) break;
    chain.push_back(page);
  }
  // A page that is partly filled may follow them.
  for (int64_t n = std::min(blocks, (pages + 1) * kBlocksPerPage - 1);
       n > 0 && n * kHashBlockTokens > length_min; --n) {
    const PrefixHash& end = ends[static_cast<size_t>(n)];
    const IndexedRecord* snapshot = Find(RecordKind::kSnapshot, end);
    if (snapshot == nullptr) continue;
    DiskPlan plan{.length = n * kHashBlockTokens, .snapshot = snapshot};
    if (plan.length <= memory_pages_length) return plan;
    const int64_t whole = n / kBlocksPerPage;
    plan.pages.assign(chain.begin(), chain.begin() + std::max<int64_t>(whole - memory_pages, 0));
    if (const int64_t rest = plan.length % kPageTokens; rest > 0) {
      const IndexedRecord* page =
          FindPage(ends[static_cast<size_t>(whole * kBlocksPerPage)], rest, end);
      if (page == nullptr) continue;
      plan.pages.push_back(page);
    }
    return plan;
  }
  return {};
}

const IndexedRecord* DiskIndex::OldestLeaf(const IndexedRecord* spared) const {
  for (const auto& [last_use, leaf] : leaves_) {
    if (leaf != spared) return leaf;
  }
  return nullptr;
}

bool DiskIndex::HasDependents(const IndexedRecord& page) const {
  if (page.tokens == kPageTokens && forks_.contains(page.key)) return true;
  const auto fork = forks_.find(page.parent);
  if (fork == forks_.end()) return false;
  return std::ranges::any_of(fork->second.snapshots, [&](const IndexedRecord* snapshot) {
    return Covers(page, snapshot->tokens, snapshot->key);
  });
}

void DiskIndex::Refresh(IndexedRecord* page) {
  const bool is_leaf = !HasDependents(*page);
  if (is_leaf == page->is_leaf) return;
  page->is_leaf = is_leaf;
  if (is_leaf) {
    leaves_.emplace(page->last_use, page);
  } else {
    leaves_.erase({page->last_use, page});
  }
}

void DiskIndex::RefreshBelow(const IndexedRecord& record) {
  if (const auto front = pages_.find(record.parent); front != pages_.end()) Refresh(&front->second);
  if (record.kind == RecordKind::kPage) return;
  const auto fork = forks_.find(record.parent);
  if (fork == forks_.end()) return;
  for (IndexedRecord* page : fork->second.pages) {
    if (Covers(*page, record.tokens, record.key)) Refresh(page);
  }
}

}  // namespace k3::cache
