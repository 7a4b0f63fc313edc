#include "cache/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "cache/prefix_tree.h"

namespace k3::cache {
namespace {

// Nearer to a snapshot than this, another one saves too little.
constexpr int64_t kBranchTokensMin = 64;

int64_t WholeBlocks(int64_t tokens) { return tokens / kHashBlockTokens * kHashBlockTokens; }

/// Adds what `match` lacks of `tokens`; rows(index) are those of a page, or none when there are
/// none. Returns the length that is cached afterwards.
int64_t Add(PrefixTree& tree, const PrefixHash& start, std::span<const int32_t> tokens,
            const std::function<std::vector<SharedRows>(int64_t)>& rows, int64_t* declined) {
  K3_CHECK(std::ssize(tokens) % kHashBlockTokens == 0, "whole blocks of tokens");
  PrefixMatch match = tree.Match(start, tokens, std::ssize(tokens));
  CachedPage* parent = &tree.Root(start);
  // The end of the chain is pinned, and with it all that stands in front of it.
  tree.Pin(*parent);
  for (CachedPage* page : match.chain) {
    tree.Use(*page);
    if (match.length < (page->index + 1) * kPageTokens) break;
    tree.Pin(*page);
    tree.Unpin(*std::exchange(parent, page));
  }
  while (match.length < std::ssize(tokens)) {
    const int64_t index = parent->index + 1;
    const auto rest = tokens.subspan(static_cast<size_t>(index * kPageTokens));
    const auto own = rest.first(std::min(rest.size(), static_cast<size_t>(kPageTokens)));
    // A page that ends early and goes on here takes the new rows: of the same tokens they are the
    // same, and there are more.
    CachedPage* page = std::ssize(match.chain) > index ? match.chain.back() : nullptr;
    const bool extends =
        page != nullptr && match.length == index * kPageTokens + std::ssize(page->tokens);
    if (!extends && !tree.MakeRoom(tree.page_bytes(), false)) {
      ++*declined;
      break;
    }
    std::vector<SharedRows> layers = rows(index);
    if (layers.empty()) break;
    if (extends) {
      tree.ExtendPage(*page, own, std::move(layers));
    } else {
      page = &tree.AddPage(*parent, own, std::move(layers));
    }
    match.length = index * kPageTokens + std::ssize(own);
    tree.Pin(*page);
    tree.Unpin(*std::exchange(parent, page));
  }
  tree.Unpin(*parent);
  tree.DropRoot(start);
  return match.length;
}

/// From the first page to the one that holds the end.
std::vector<const CachedPage*> PagesOf(const CachedSnapshot& snapshot) {
  std::vector<const CachedPage*> pages;
  for (const CachedPage* page = snapshot.host; page->parent != nullptr; page = page->parent) {
    pages.push_back(page);
  }
  std::reverse(pages.begin(), pages.end());
  return pages;
}

}  // namespace

PrefixLease& PrefixLease::operator=(PrefixLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  tree_ = std::exchange(other.tree_, nullptr);
  snapshot_ = std::exchange(other.snapshot_, nullptr);
  length_ = std::exchange(other.length_, 0);
  pages_length_ = std::exchange(other.pages_length_, 0);
  reason_ = other.reason_;
  branch_point_ = std::exchange(other.branch_point_, std::nullopt);
  return *this;
}

void PrefixLease::Release() {
  if (snapshot_ != nullptr) tree_->Unpin(*snapshot_);
  snapshot_ = nullptr;
}

PrefixCache::PrefixCache(const ModelConfig& config, const PrefixCacheOptions& options)
    : options_(options), tree_(std::make_unique<PrefixTree>(config, options)) {
  K3_CHECK(options.alignment > 0 && options.alignment % kHashBlockTokens == 0, "on the grid");
}

PrefixCache::~PrefixCache() {
  K3_CHECK(tree_->pinned_snapshots() == 0, "leases end before their cache");
}

PrefixLease PrefixCache::Lookup(const PrefixHash& start, std::span<const int32_t> tokens,
                                int64_t length_max) {
  const PrefixMatch match = tree_->Match(start, tokens, length_max);
  PrefixLease lease;
  lease.tree_ = tree_.get();
  lease.pages_length_ = match.length;
  lease.snapshot_ = tree_->LongestSnapshot(match);
  ++counters_.lookups;
  if (lease.snapshot_ != nullptr) {
    tree_->Pin(*lease.snapshot_);
    tree_->Use(*lease.snapshot_);
    lease.length_ = lease.snapshot_->length();
    ++counters_.hits;
    counters_.hit_tokens += lease.length_;
  } else {
    lease.reason_ = match.length > 0 ? MissReason::kNoSnapshot : MissReason::kNoPages;
    ++(match.length > 0 ? counters_.no_snapshot : counters_.no_pages);
  }
  const int64_t point = match.length / options_.alignment * options_.alignment;
  if (match.has_parted && point >= lease.length_ + kBranchTokensMin) lease.branch_point_ = point;
  return lease;
}

int64_t PrefixCache::Peek(const PrefixHash& start, std::span<const int32_t> tokens,
                          int64_t length_max) const {
  const CachedSnapshot* found = tree_->LongestSnapshot(tree_->Match(start, tokens, length_max));
  return found != nullptr ? found->length() : 0;
}

void PrefixCache::Restore(const PrefixLease& lease, SequenceState& state) {
  K3_CHECK(state.length() == 0 && state.MlaLayers().front()->pages_count() == 0,
           "restore onto a new sequence");
  if (lease.snapshot_ == nullptr) return;
  const std::vector<MlaLatents*> layers = state.MlaLayers();
  for (const CachedPage* page : PagesOf(*lease.snapshot_)) {
    const int64_t rows = lease.length_ - page->index * kPageTokens;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (rows >= kPageTokens) {
        layers[i]->AdoptPage(page->layers[i]);
      } else {
        layers[i]->CopyPage(*page->layers[i], rows);
      }
    }
  }
  state.RestoreSnapshot(*lease.snapshot_->state, lease.length_);
}

int64_t PrefixCache::AddPages(const PrefixHash& start, std::span<const int32_t> tokens,
                              SequenceState& state) {
  K3_CHECK(std::ssize(tokens) <= state.length(), "what was computed");
  const auto rows = [layers = state.MlaLayers()](int64_t index) {
    std::vector<SharedRows> shared;
    for (MlaLatents* latents : layers) shared.push_back(latents->SharePage(index));
    return shared;
  };
  return Add(*tree_, start, tokens, rows, &counters_.declined);
}

int64_t PrefixCache::AddLoadedPages(const PrefixHash& start, std::span<const int32_t> tokens,
                                    std::span<const PageRows> pages) {
  const auto rows = [&](int64_t index) -> std::vector<SharedRows> {
    for (const PageRows& page : pages) {
      if (page.begin == index * kPageTokens) return page.layers;
    }
    return {};
  };
  return Add(*tree_, start, tokens, rows, &counters_.declined);
}

bool PrefixCache::AddSnapshot(const PrefixHash& start, std::span<const int32_t> tokens,
                              SharedSnapshot snapshot, SnapshotKind kind) {
  const int64_t length = std::ssize(tokens);
  if (length == 0 || length % options_.alignment != 0) return false;
  const PrefixMatch match = tree_->Match(start, tokens, length);
  if (match.length != length) return false;
  CachedPage& host = *match.chain.back();
  const int64_t blocks = (length - host.index * kPageTokens) / kHashBlockTokens;
  if (CachedSnapshot* present = tree_->FindSnapshot(host, blocks)) {
    if (present->kind == SnapshotKind::kPeriodic) present->kind = kind;
    tree_->Use(*present);
    return true;
  }
  K3_CHECK(snapshot->bytes() == tree_->snapshot_bytes(), "a snapshot of this model");
  tree_->Pin(host);
  const bool fits = tree_->MakeRoom(tree_->snapshot_bytes(), kind == SnapshotKind::kPeriodic);
  if (fits) {
    tree_->AddSnapshot(host, blocks, kind, std::move(snapshot));
  } else {
    ++counters_.declined;
  }
  tree_->Unpin(host);
  return fits;
}

void PrefixCache::DropTransient(const PrefixHash& start, std::span<const int32_t> tokens) {
  const PrefixMatch match = tree_->Match(start, tokens, std::ssize(tokens));
  if (match.chain.empty() || match.length != std::ssize(tokens)) return;
  const CachedPage& host = *match.chain.back();
  CachedSnapshot* found =
      tree_->FindSnapshot(host, (match.length - host.index * kPageTokens) / kHashBlockTokens);
  if (found == nullptr || found->kind != SnapshotKind::kPeriodic || found->pins > 0) return;
  tree_->RemoveSnapshot(*found);
}

std::vector<PageRows> PrefixCache::ExportPages(const PrefixHash& start,
                                               std::span<const int32_t> tokens,
                                               int64_t first_page) const {
  const PrefixMatch match = tree_->Match(start, tokens, std::ssize(tokens));
  std::vector<PageRows> pages;
  for (const CachedPage* page : match.chain) {
    if (page->index < first_page) continue;
    const int64_t begin = page->index * kPageTokens;
    const int64_t count = std::min(match.length - begin, kPageTokens);
    pages.push_back({.begin = begin,
                     .before = page->before,
                     .end = page->ends[static_cast<size_t>(count / kHashBlockTokens - 1)],
                     .tokens = {page->tokens.begin(), page->tokens.begin() + count},
                     .layers = page->layers});
  }
  return pages;
}

SharedSnapshot PrefixCache::ExportSnapshot(const PrefixHash& start,
                                           std::span<const int32_t> tokens) const {
  if (tokens.empty() || std::ssize(tokens) != WholeBlocks(std::ssize(tokens))) return nullptr;
  const PrefixMatch match = tree_->Match(start, tokens, std::ssize(tokens));
  if (match.length != std::ssize(tokens)) return nullptr;
  const CachedPage& host = *match.chain.back();
  const CachedSnapshot* found =
      tree_->FindSnapshot(host, (match.length - host.index * kPageTokens) / kHashBlockTokens);
  return found != nullptr ? found->state : nullptr;
}

// Shared: see SharedRows.
std::vector<std::shared_ptr<FloatArray>> PrefixCache::MakePageRows() const {
  // Shared: see SharedRows.
  std::vector<std::shared_ptr<FloatArray>> rows;
  for (int64_t i = 0; i < mla_layers_count(); ++i) {
    // Shared: see SharedRows.
    rows.push_back(std::make_shared<FloatArray>(kPageTokens * row_width()));
  }
  return rows;
}

int64_t PrefixCache::row_width() const { return tree_->row_width(); }
int64_t PrefixCache::mla_layers_count() const { return tree_->mla_layers_count(); }
int64_t PrefixCache::page_bytes() const { return tree_->page_bytes(); }
int64_t PrefixCache::snapshot_bytes() const { return tree_->snapshot_bytes(); }
int64_t PrefixCache::bytes() const { return tree_->bytes(); }

bool PrefixCache::MakeRoom(int64_t bytes) { return tree_->MakeRoom(bytes, false); }

void PrefixCache::Clear() { tree_->MakeRoom(options_.bytes_max, false); }

PrefixCacheStats PrefixCache::stats() const {
  return {.bytes = bytes(),
          .bytes_max = options_.bytes_max,
          .pages = tree_->pages_count(),
          .snapshots = tree_->snapshots_count(),
          .pinned = tree_->pinned_snapshots(),
          .lookups = counters_.lookups,
          .hits = counters_.hits,
          .misses_no_pages = counters_.no_pages,
          .misses_no_snapshot = counters_.no_snapshot,
          .hit_tokens = counters_.hit_tokens,
          .evicted_pages = tree_->evicted_pages(),
          .evicted_snapshots = tree_->evicted_snapshots(),
          .declined = counters_.declined};
}

}  // namespace k3::cache
