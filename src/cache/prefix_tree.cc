#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/check.h"

namespace k3::cache {
namespace {

// Of a look-up against the clock of bytes: orders uses between which nothing was added, and is
// too small to order anything else.
constexpr double kUseTick = 1e-9;
// Below that of every other entry.
constexpr double kTransientWorth = -1e6;
// A use counts as late while fewer bytes were added since than this share of the budget.
constexpr double kYoungTurnovers = 0.1;
// A turn is gone on from once, and sometimes again; what is used more often is no turn of one
// conversation, whatever the caller took it for.
constexpr int64_t kTurnUsesMax = 4;

std::span<const int32_t> Blocks(std::span<const int32_t> tokens, int64_t blocks) {
  return tokens.first(static_cast<size_t>(blocks * kHashBlockTokens));
}

bool StartsWith(const CachedPage& page, std::span<const int32_t> tokens) {
  return std::ssize(page.tokens) >= std::ssize(tokens) &&
         std::equal(tokens.begin(), tokens.end(), page.tokens.begin());
}

/// In [0, 1), a property of the prefix. When more users come back in turn than fit, the order of
/// age alone would evict each of them shortly before; so some are kept for longer than others.
double Spread(const PrefixHash& hash) { return static_cast<double>(hash.low >> 11) * 0x1p-53; }

/// Where many prompts part, as against a turn of one conversation.
bool IsJunction(const CachedSnapshot& snapshot) {
  return snapshot.kind == SnapshotKind::kSystem || snapshot.kind == SnapshotKind::kBranch ||
         snapshot.uses > kTurnUsesMax;
}

template <typename Map, typename Match>
void EraseOne(Map& map, const PrefixHash& hash, const Match& match) {
  const auto [begin, end] = map.equal_range(hash);
  const auto found = std::find_if(begin, end, [&](const auto& item) { return match(item.second); });
  K3_CHECK(found != end, "every entry stands in its index");
  map.erase(found);
}

}  // namespace

PrefixTree::PrefixTree(const ModelConfig& config, const PrefixCacheOptions& options)
    : options_(options), cost_(config), row_width_(MlaLatents(config.mla).row_width()) {
  mla_layers_count_ = std::count(config.is_mla.begin(), config.is_mla.end(), true);
  page_bytes_ = kPageTokens * (mla_layers_count_ * row_width_ * int64_t{sizeof(float)} +
                               int64_t{sizeof(int32_t)}) +
                kPageBlocks * int64_t{sizeof(PrefixHash)};
  snapshot_bytes_ = KdaSnapshot::FloatsCount(config) * int64_t{sizeof(float)};
}

PrefixTree::BlockPlace PrefixTree::LongestChild(const CachedPage& parent,
                                                std::span<const int32_t> tokens,
                                                std::span<const PrefixHash> ends) const {
  for (int64_t blocks = std::ssize(ends); blocks > 0; --blocks) {
    const auto [begin, end] = blocks_.equal_range(ends[static_cast<size_t>(blocks - 1)]);
    for (auto at = begin; at != end; ++at) {
      const auto& [page, page_blocks] = at->second;
      if (page->parent == &parent && page_blocks == blocks &&
          StartsWith(*page, Blocks(tokens, blocks))) {
        return at->second;
      }
    }
  }
  return {nullptr, 0};
}

PrefixMatch PrefixTree::Match(const PrefixHash& start, std::span<const int32_t> tokens,
                              int64_t limit) const {
  PrefixMatch match;
  const auto root = roots_.find(start);
  if (root == roots_.end()) return match;
  const CachedPage* parent = root->second.get();
  PrefixHash hash = start;
  limit = std::min(limit, std::ssize(tokens));
  while (match.length + kHashBlockTokens <= limit) {
    const auto rest =
        tokens.subspan(static_cast<size_t>(match.length),
                       static_cast<size_t>(std::min(limit - match.length, kPageTokens)));
    const size_t count = rest.size() / kHashBlockTokens;
    BlockEnds ends;
    for (size_t i = 0; i < count; ++i) {
      hash = options_.extend_hash(hash, rest.subspan(i * kHashBlockTokens, kHashBlockTokens));
      ends[i] = hash;
    }
    const auto [page, blocks] = LongestChild(*parent, rest, std::span(ends).first(count));
    if (page != nullptr) match.chain.push_back(page);
    match.length += blocks * kHashBlockTokens;
    if (blocks < static_cast<int64_t>(count)) {
      match.has_parted = page != nullptr ? blocks < page->blocks() : parent->children > 0;
    }
    if (blocks < kPageBlocks) break;
    parent = page;
  }
  return match;
}

CachedSnapshot* PrefixTree::FindSnapshot(const CachedPage& page, int64_t blocks) const {
  const auto tokens = Blocks(page.tokens, blocks);
  const auto [begin, end] = snapshot_ends_.equal_range(page.ends[static_cast<size_t>(blocks - 1)]);
  for (auto at = begin; at != end; ++at) {
    CachedSnapshot* snapshot = at->second;
    if (snapshot->blocks == blocks && snapshot->host->parent == page.parent &&
        StartsWith(*snapshot->host, tokens)) {
      return snapshot;
    }
  }
  return nullptr;
}

CachedSnapshot* PrefixTree::LongestSnapshot(const PrefixMatch& match) const {
  for (int64_t i = std::ssize(match.chain) - 1; i >= 0; --i) {
    const CachedPage& page = *match.chain[static_cast<size_t>(i)];
    if (page.parent->child_snapshots == 0) continue;
    const int64_t blocks = (match.length - i * kPageTokens) / kHashBlockTokens;
    for (int64_t b = std::min(blocks, kPageBlocks); b > 0; --b) {
      if ((i * kPageTokens + b * kHashBlockTokens) % options_.alignment != 0) continue;
      if (CachedSnapshot* found = FindSnapshot(page, b)) return found;
    }
  }
  return nullptr;
}

CachedPage& PrefixTree::Root(const PrefixHash& start) {
  std::unique_ptr<CachedPage>& root = roots_[start];
  if (root == nullptr) {
    root = std::make_unique<CachedPage>();
    root->before = start;
  }
  return *root;
}

void PrefixTree::DropRoot(const PrefixHash& start) {
  const auto root = roots_.find(start);
  if (root == roots_.end() || root->second->children > 0 || root->second->pins > 0) return;
  roots_.erase(root);
}

void PrefixTree::AppendTokens(CachedPage& page, std::span<const int32_t> tokens) {
  page.tokens.assign(tokens.begin(), tokens.end());
  while (page.blocks() * kHashBlockTokens < std::ssize(tokens)) {
    const auto block = tokens.subspan(static_cast<size_t>(page.blocks() * kHashBlockTokens),
                                      static_cast<size_t>(kHashBlockTokens));
    page.ends.push_back(
        options_.extend_hash(page.ends.empty() ? page.before : page.ends.back(), block));
    blocks_.emplace(page.ends.back(), BlockPlace{&page, page.blocks()});
  }
}

CachedPage& PrefixTree::AddPage(CachedPage& parent, std::span<const int32_t> tokens,
                                std::vector<SharedRows> layers) {
  auto owned = std::make_unique<CachedPage>();
  CachedPage& page = *owned;
  page.id = next_id_++;
  page.is_page = true;
  page.parent = &parent;
  page.index = parent.index + 1;
  page.before = parent.parent == nullptr ? parent.before : parent.ends.back();
  page.tokens.reserve(static_cast<size_t>(kPageTokens));
  page.ends.reserve(static_cast<size_t>(kPageBlocks));
  page.layers = std::move(layers);
  pages_.emplace(&page, std::move(owned));
  AppendTokens(page, tokens);
  ++parent.children;
  Requeue(parent);
  clock_ += static_cast<double>(page_bytes_) / static_cast<double>(options_.bytes_max);
  Use(page);
  return page;
}

void PrefixTree::ExtendPage(CachedPage& page, std::span<const int32_t> tokens,
                            std::vector<SharedRows> layers) {
  page.layers = std::move(layers);
  AppendTokens(page, tokens);
  Use(page);
}

CachedSnapshot& PrefixTree::AddSnapshot(CachedPage& host, int64_t blocks, SnapshotKind kind,
                                        SharedSnapshot state) {
  auto owned = std::make_unique<CachedSnapshot>();
  CachedSnapshot& snapshot = *owned;
  snapshot.id = next_id_++;
  snapshot.host = &host;
  snapshot.blocks = blocks;
  snapshot.kind = kind;
  snapshot.state = std::move(state);
  snapshots_.emplace(&snapshot, std::move(owned));
  snapshot_ends_.emplace(host.ends[static_cast<size_t>(blocks - 1)], &snapshot);
  host.snapshots.push_back(&snapshot);
  ++host.parent->child_snapshots;
  Link(snapshot);
  Requeue(host);
  clock_ += static_cast<double>(snapshot_bytes_) / static_cast<double>(options_.bytes_max);
  Use(snapshot);
  return snapshot;
}

void PrefixTree::RemoveSnapshot(CachedSnapshot& snapshot) {
  CachedPage& host = *snapshot.host;
  Unqueue(snapshot);
  Unlink(snapshot);
  EraseOne(snapshot_ends_, host.ends[static_cast<size_t>(snapshot.blocks - 1)],
           [&](const CachedSnapshot* other) { return other == &snapshot; });
  std::erase(host.snapshots, &snapshot);
  --host.parent->child_snapshots;
  snapshots_.erase(&snapshot);
  Requeue(host);
}

void PrefixTree::RemovePage(CachedPage& page) {
  Unqueue(page);
  for (const PrefixHash& end : page.ends) {
    EraseOne(blocks_, end, [&](const BlockPlace& place) { return place.page == &page; });
  }
  CachedPage& parent = *page.parent;
  --parent.children;
  pages_.erase(&page);
  if (parent.parent == nullptr) {
    DropRoot(parent.before);
  } else {
    Requeue(parent);
  }
}

std::vector<CachedSnapshot*>& PrefixTree::Behind(CachedPage& host, CachedSnapshot* previous) {
  if (previous != nullptr) return previous->next;
  CachedPage* root = &host;
  while (root->parent != nullptr) root = root->parent;
  return root->firsts;
}

CachedSnapshot* PrefixTree::PreviousOf(const CachedSnapshot& snapshot) const {
  int64_t blocks = snapshot.blocks - 1;
  for (const CachedPage* page = snapshot.host; page->parent != nullptr; page = page->parent) {
    for (; page->parent->child_snapshots > 0 && blocks > 0; --blocks) {
      if (CachedSnapshot* found = FindSnapshot(*page, blocks)) return found;
    }
    blocks = kPageBlocks;
  }
  return nullptr;
}

bool PrefixTree::IsBehind(const CachedSnapshot& later, const CachedSnapshot& earlier) const {
  if (later.length() <= earlier.length()) return false;
  const CachedPage* page = later.host;
  while (page->index > earlier.host->index) page = page->parent;
  return page->parent == earlier.host->parent &&
         StartsWith(*page, Blocks(earlier.host->tokens, earlier.blocks));
}

void PrefixTree::Link(CachedSnapshot& snapshot) {
  CachedPage& host = *snapshot.host;
  snapshot.previous = PreviousOf(snapshot);
  std::vector<CachedSnapshot*>& among = Behind(host, snapshot.previous);
  // The end of a sequence has nothing behind it, and this is where most snapshots are taken.
  const bool is_end = host.children == 0 && blocks_.count(host.ends.back()) == 1 &&
                      snapshot.blocks == host.blocks();
  if (!is_end) {
    const auto moved = std::partition(among.begin(), among.end(), [&](const CachedSnapshot* other) {
      return !IsBehind(*other, snapshot);
    });
    snapshot.next.assign(moved, among.end());
    among.erase(moved, among.end());
    for (CachedSnapshot* other : snapshot.next) other->previous = &snapshot;
  }
  among.push_back(&snapshot);
}

void PrefixTree::Unlink(CachedSnapshot& snapshot) {
  std::vector<CachedSnapshot*>& among = Behind(*snapshot.host, snapshot.previous);
  std::erase(among, &snapshot);
  for (CachedSnapshot* other : snapshot.next) {
    other->previous = snapshot.previous;
    among.push_back(other);
  }
}

/// A conversation that goes on from an earlier turn seldom comes back to the later ones.
bool PrefixTree::IsLeftBehind(const CachedSnapshot& snapshot) const {
  for (const CachedSnapshot* at = snapshot.previous; at != nullptr; at = at->previous) {
    if (!IsJunction(*at) && at->last_use > snapshot.last_use) return true;
  }
  return false;
}

void PrefixTree::RequeueBehind(CachedSnapshot& snapshot) {
  if (IsJunction(snapshot)) return;
  std::vector<CachedSnapshot*> pending = snapshot.next;
  while (!pending.empty()) {
    CachedSnapshot& behind = *pending.back();
    pending.pop_back();
    pending.insert(pending.end(), behind.next.begin(), behind.next.end());
    Requeue(behind);
  }
}

void PrefixTree::Use(CachedPage& page) {
  page.last_use = clock_;
  Requeue(page);
}

void PrefixTree::Use(CachedSnapshot& snapshot) {
  clock_ += kUseTick;
  ++snapshot.uses;
  snapshot.last_use = clock_;
  Requeue(snapshot);
  RequeueBehind(snapshot);
  // A junction is in use as long as anything behind it is.
  for (CachedSnapshot* at = snapshot.previous; at != nullptr; at = at->previous) {
    if (!IsJunction(*at)) continue;
    at->last_use = clock_;
    Requeue(*at);
  }
  for (CachedPage* page = snapshot.host; page->parent != nullptr; page = page->parent) Use(*page);
}

void PrefixTree::Pin(CachedPage& page) {
  ++page.pins;
  Requeue(page);
}

void PrefixTree::Unpin(CachedPage& page) {
  --page.pins;
  Requeue(page);
}

void PrefixTree::Pin(CachedSnapshot& snapshot) {
  if (snapshot.pins++ == 0) ++pinned_snapshots_;
  Unqueue(snapshot);
}

void PrefixTree::Unpin(CachedSnapshot& snapshot) {
  if (--snapshot.pins > 0) return;
  --pinned_snapshots_;
  Requeue(snapshot);
}

bool PrefixTree::IsYoung(const Evictable& entry) const {
  return entry.last_use > clock_ - kYoungTurnovers &&
         (entry.is_page ||
          static_cast<const CachedSnapshot&>(entry).kind != SnapshotKind::kPeriodic);
}

void PrefixTree::Queue(Evictable& entry) {
  const bool is_young = IsYoung(entry);
  const double score = entry.last_use + (is_young ? 0 : options_.work_weight * Worth(entry));
  if (entry.is_queued && entry.is_young == is_young && entry.score == score) return;
  Unqueue(entry);
  entry.score = score;
  entry.is_young = is_young;
  entry.is_queued = true;
  (is_young ? young_ : old_).insert(&entry);
}

void PrefixTree::Unqueue(Evictable& entry) {
  if (!entry.is_queued) return;
  (entry.is_young ? young_ : old_).erase(&entry);
  entry.is_queued = false;
}

void PrefixTree::Requeue(CachedPage& page) {
  if (page.parent == nullptr) return;
  if (page.children > 0 || page.pins > 0 || !page.snapshots.empty()) {
    Unqueue(page);
  } else {
    Queue(page);
  }
}

void PrefixTree::Requeue(CachedSnapshot& snapshot) {
  if (snapshot.pins == 0) Queue(snapshot);
}

/// What evicting it frees sooner or later: itself, and the pages that nothing else needs.
double PrefixTree::OwnBytes(const CachedSnapshot& snapshot) const {
  int64_t pages = 0, children = 0;
  size_t snapshots = 1;
  for (const CachedPage* page = snapshot.host; page->parent != nullptr; page = page->parent) {
    if (page->children > children || page->snapshots.size() > snapshots) break;
    ++pages;
    children = 1;
    snapshots = 0;
  }
  return static_cast<double>(snapshot_bytes_ + pages * page_bytes_);
}

double PrefixTree::Worth(const Evictable& entry) const {
  if (entry.is_page) return 0;  // leads to no snapshot
  const auto& snapshot = static_cast<const CachedSnapshot&>(entry);
  if (snapshot.kind == SnapshotKind::kPeriodic) return kTransientWorth;
  const int64_t before = snapshot.previous != nullptr ? snapshot.previous->length() : 0;
  const double per_token = static_cast<double>(page_bytes_) / static_cast<double>(kPageTokens);
  const double work =
      WorkPerByte(cost_.Of(before, snapshot.length()), OwnBytes(snapshot), per_token);
  return work + Spread(snapshot.host->ends[static_cast<size_t>(snapshot.blocks - 1)]) -
         (IsLeftBehind(snapshot) ? 1 : 0);
}

bool PrefixTree::MakeRoom(int64_t bytes, bool spare_snapshots) {
  while (this->bytes() + bytes > options_.bytes_max) {
    while (!young_.empty() && !IsYoung(**young_.begin())) Queue(**young_.begin());
    if (old_.empty() && (young_.empty() || spare_snapshots)) return false;
    Evictable& entry = **(old_.empty() ? young_ : old_).begin();
    if (entry.is_page) {
      RemovePage(static_cast<CachedPage&>(entry));
      ++evicted_pages_;
      continue;
    }
    auto& snapshot = static_cast<CachedSnapshot&>(entry);
    // Others came and went around it since it was put there.
    const double score = snapshot.score;
    Queue(snapshot);
    if (snapshot.score > score) continue;
    if (spare_snapshots && snapshot.kind != SnapshotKind::kPeriodic) return false;
    RemoveSnapshot(snapshot);
    ++evicted_snapshots_;
  }
  return true;
}

}  // namespace k3::cache
