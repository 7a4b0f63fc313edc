#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "cache/fake_sequence.h"

namespace k3::cache {
namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kPlenty = int64_t{1} << 32;

std::span<const int32_t> First(const Ids& ids, int64_t count) {
  return std::span(ids).first(static_cast<size_t>(count));
}

Ids Count(int64_t count, int32_t first = 0) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// Only four names for all blocks there are: nearly everything collides.
PrefixHash FourNames(const PrefixHash& before, std::span<const int32_t> tokens) {
  return {.low = ExtendHash(before, tokens).low & 3, .high = 0};
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  PrefixCacheTest() { Open({.bytes_max = kPlenty}); }

  void Open(const PrefixCacheOptions& options) { cache_.emplace(config_, options); }

  /// Computes `ids` from nothing and registers their pages and a snapshot behind the last.
  bool Put(const Ids& ids, SnapshotKind kind = SnapshotKind::kTurn) {
    FakeSequence sequence(config_);
    sequence.Run(ids);
    if (cache_->AddPages(start_, ids, sequence.state()) < std::ssize(ids)) return false;
    return cache_->AddSnapshot(start_, ids, sequence.state().TakeSnapshot(), kind);
  }
  PrefixLease Find(const Ids& ids) { return cache_->Lookup(start_, ids, std::ssize(ids) - 1); }
  /// Restores, checks every number, goes on to the end of `ids` and checks again.
  bool GoesOnRight(const PrefixLease& lease, const Ids& ids) {
    FakeSequence sequence(config_);
    cache_->Restore(lease, sequence.state());
    if (!sequence.Holds(First(ids, lease.length()))) return false;
    sequence.Run(ids);
    return sequence.Holds(ids);
  }

  const ModelConfig config_ = FakeConfig();
  const PrefixHash start_ = NamespaceHash("");
  std::optional<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsTheBoundaryBeforeTheEnd) {
  for (const int64_t around : {16, 32, 256, 512}) {
    for (int64_t length = around - 5; length <= around + 5; ++length) {
      Open({.bytes_max = kPlenty});
      const Ids ids = Count(length);
      const int64_t boundary = (length - 1) / 16 * 16;
      if (boundary == 0) continue;
      ASSERT_TRUE(Put({ids.begin(), ids.begin() + boundary}));
      const PrefixLease lease = Find(ids);
      EXPECT_EQ(lease.length(), boundary) << length;
      EXPECT_EQ(lease.pages_length(), boundary);
      EXPECT_EQ(lease.reason(), MissReason::kNone);
      EXPECT_EQ(lease.branch_point(), std::nullopt);
      EXPECT_TRUE(GoesOnRight(lease, ids));
      // The same prompt again leaves nothing to run if the boundary is its end.
      EXPECT_EQ(cache_->Lookup(start_, First(ids, boundary), boundary - 1).length(), 0);
    }
  }
}

TEST_F(PrefixCacheTest, SaysWhyItMissed) {
  const Ids ids = Count(600);
  EXPECT_EQ(Find(ids).reason(), MissReason::kNoPages);
  FakeSequence sequence(config_);
  sequence.Run(ids);
  EXPECT_EQ(cache_->AddPages(start_, First(ids, 592), sequence.state()), 592);
  const PrefixLease lease = Find(ids);
  EXPECT_EQ(lease.reason(), MissReason::kNoSnapshot);
  EXPECT_EQ(lease.length(), 0);
  EXPECT_EQ(lease.pages_length(), 592);
  const PrefixCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.misses_no_pages, 1);
  EXPECT_EQ(stats.misses_no_snapshot, 1);
  EXPECT_EQ(stats.lookups, 2);
  EXPECT_EQ(stats.hits, 0);
}

TEST_F(PrefixCacheTest, ASnapshotNeedsItsPages) {
  const Ids ids = Count(64);
  FakeSequence sequence(config_);
  sequence.Run(ids);
  const auto snapshot = sequence.state().TakeSnapshot();
  EXPECT_FALSE(cache_->AddSnapshot(start_, ids, snapshot, SnapshotKind::kTurn));
  EXPECT_EQ(cache_->AddPages(start_, First(ids, 48), sequence.state()), 48);
  EXPECT_FALSE(cache_->AddSnapshot(start_, ids, snapshot, SnapshotKind::kTurn));
  EXPECT_EQ(cache_->AddPages(start_, ids, sequence.state()), 64);
  EXPECT_TRUE(cache_->AddSnapshot(start_, ids, snapshot, SnapshotKind::kTurn));
}

TEST_F(PrefixCacheTest, APageThatFillsIsOnePage) {
  const Ids ids = Count(1000);
  FakeSequence sequence(config_);
  for (int64_t end = 16; end <= 992; end += 16) {
    sequence.Run(First(ids, end));
    ASSERT_EQ(cache_->AddPages(start_, First(ids, end), sequence.state()), end);
    EXPECT_EQ(cache_->stats().pages, (end + 255) / 256);
    EXPECT_EQ(Find(Ids(ids.begin(), ids.begin() + end + 1)).pages_length(), end);
  }
  // Someone else computes the same: nothing is added.
  FakeSequence twin(config_);
  twin.Run(ids);
  EXPECT_EQ(cache_->AddPages(start_, First(ids, 992), twin.state()), 992);
  EXPECT_EQ(cache_->stats().pages, 4);
}

TEST_F(PrefixCacheTest, ARestoredSequenceExtendsThePartialPage) {
  const Ids ids = Count(400);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 304}));
  FakeSequence sequence(config_);
  {
    const PrefixLease lease = Find(ids);
    cache_->Restore(lease, sequence.state());
  }
  sequence.Run(ids);
  EXPECT_EQ(cache_->AddPages(start_, ids, sequence.state()), 400);
  EXPECT_EQ(cache_->stats().pages, 2);
  ASSERT_TRUE(
      cache_->AddSnapshot(start_, ids, sequence.state().TakeSnapshot(), SnapshotKind::kTurn));
  for (const int64_t length : {305, 320, 400, 401}) {
    Ids prompt = Count(401);
    prompt.resize(static_cast<size_t>(length));
    const PrefixLease lease = Find(prompt);
    EXPECT_EQ(lease.length(), length > 400 ? 400 : 304);
    EXPECT_TRUE(GoesOnRight(lease, prompt));
  }
}

TEST_F(PrefixCacheTest, PromptsThatPartWithinAPageShareItsBeginning) {
  Ids one = Count(512), two = one;
  std::fill(two.begin() + 330, two.end(), 9);
  ASSERT_TRUE(Put({one.begin(), one.begin() + 288}, SnapshotKind::kSystem));
  ASSERT_TRUE(Put(one));
  const PrefixLease parting = Find(two);
  EXPECT_EQ(parting.length(), 288);
  EXPECT_EQ(parting.pages_length(), 320);
  EXPECT_EQ(parting.branch_point(), std::nullopt);  // too near to the boundary
  ASSERT_TRUE(Put(two));
  EXPECT_EQ(cache_->stats().pages, 3);
  one.push_back(1);
  two.push_back(1);
  for (const Ids& ids : {one, two}) {
    const PrefixLease lease = Find(ids);
    EXPECT_EQ(lease.length(), 512);
    EXPECT_TRUE(GoesOnRight(lease, ids));
  }
}

TEST_F(PrefixCacheTest, ABeginningSeenTwiceIsWorthASnapshot) {
  Ids one = Count(1200), two = one, three = one;
  for (size_t i = 700; i < 1200; ++i) {
    two[i] = 5;
    three[i] = 6;
  }
  ASSERT_TRUE(Put({one.begin(), one.begin() + 1184}));
  // The same prompt, and one that goes on from its end, part from nobody.
  EXPECT_EQ(Find(one).branch_point(), std::nullopt);
  EXPECT_EQ(Find(Ids(one.begin(), one.begin() + 900)).branch_point(), std::nullopt);
  const PrefixLease second = Find(two);
  EXPECT_EQ(second.length(), 0);
  EXPECT_EQ(second.reason(), MissReason::kNoSnapshot);
  ASSERT_EQ(second.branch_point(), 688);
  FakeSequence sequence(config_);
  sequence.Run(First(two, 688));
  ASSERT_EQ(cache_->AddPages(start_, First(two, 688), sequence.state()), 688);
  ASSERT_TRUE(cache_->AddSnapshot(start_, First(two, 688), sequence.state().TakeSnapshot(),
                                  SnapshotKind::kBranch));
  const PrefixLease third = Find(three);
  EXPECT_EQ(third.length(), 688);
  EXPECT_EQ(third.branch_point(), std::nullopt);
}

TEST_F(PrefixCacheTest, TenantsShareNothing) {
  const Ids ids = Count(300);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 288}));
  EXPECT_EQ(Find(ids).length(), 288);
  const PrefixLease other = cache_->Lookup(NamespaceHash("other"), ids, 299);
  EXPECT_EQ(other.length(), 0);
  EXPECT_EQ(other.pages_length(), 0);
  EXPECT_TRUE(cache_->ExportPages(NamespaceHash("other"), ids).empty());
  EXPECT_EQ(cache_->ExportSnapshot(NamespaceHash("other"), First(ids, 288)), nullptr);
}

TEST_F(PrefixCacheTest, EqualNamesProveNothing) {
  Open({.bytes_max = kPlenty, .extend_hash = FourNames});
  for (int32_t first = 0; first < 40; ++first) {
    const Ids ids = Count(288, first * 1000);
    EXPECT_EQ(Find(ids).pages_length(), 0) << first;
    ASSERT_TRUE(Put(ids));
  }
  for (int32_t first = 0; first < 40; ++first) {
    const Ids ids = Count(300, first * 1000);
    const PrefixLease lease = Find(ids);
    EXPECT_EQ(lease.length(), 288);
    EXPECT_TRUE(GoesOnRight(lease, ids));
  }
}

TEST_F(PrefixCacheTest, TwoRequestsOnOneSnapshot) {
  const Ids ids = Count(300);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 288}));
  Ids one = ids, two = ids;
  std::fill(one.begin() + 288, one.end(), 1);
  std::fill(two.begin() + 288, two.end(), 2);
  FakeSequence first(config_), second(config_);
  {
    const PrefixLease a = Find(one), b = Find(two);
    cache_->Restore(a, first.state());
    cache_->Restore(b, second.state());
  }
  first.Run(one);
  second.Run(two);
  EXPECT_TRUE(first.Holds(one));
  EXPECT_TRUE(second.Holds(two));
  EXPECT_TRUE(GoesOnRight(Find(ids), ids));
}

TEST_F(PrefixCacheTest, WhatIsLeasedOutlivesEviction) {
  const int64_t page = cache_->page_bytes(), snapshot = cache_->snapshot_bytes();
  Open({.bytes_max = 4 * page + 2 * snapshot});
  const Ids ids = Count(500);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 496}));
  PrefixLease lease = Find(ids);
  ASSERT_EQ(lease.length(), 496);
  for (int32_t other = 1; other < 20; ++other) {
    Put(Count(512, other * 10'000));
    EXPECT_LE(cache_->bytes(), 4 * page + 2 * snapshot);
  }
  EXPECT_FALSE(Put(Count(1024, 500'000)));  // three pages at most are left for others
  cache_->Clear();
  EXPECT_EQ(cache_->stats().pages, 2);
  EXPECT_EQ(cache_->stats().snapshots, 1);
  EXPECT_EQ(cache_->stats().pinned, 1);
  PrefixLease moved = std::move(lease);
  lease.Release();
  EXPECT_EQ(cache_->stats().pinned, 1);
  EXPECT_TRUE(GoesOnRight(moved, ids));
  moved.Release();
  moved.Release();
  EXPECT_EQ(cache_->stats().pinned, 0);
  cache_->Clear();
  EXPECT_EQ(cache_->bytes(), 0);
  EXPECT_EQ(Find(ids).pages_length(), 0);
}

TEST_F(PrefixCacheTest, ARunningSequenceKeepsPagesThatWereEvicted) {
  const Ids ids = Count(600);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 592}));
  FakeSequence sequence(config_);
  cache_->Restore(Find(ids), sequence.state());
  cache_->Clear();
  EXPECT_EQ(cache_->bytes(), 0);
  sequence.Run(ids);
  EXPECT_TRUE(sequence.Holds(ids));
}

TEST_F(PrefixCacheTest, TheLongestUnusedGoesFirst) {
  const int64_t page = cache_->page_bytes(), snapshot = cache_->snapshot_bytes();
  Open({.bytes_max = 3 * (page + snapshot), .work_weight = 0});
  for (int32_t i = 0; i < 3; ++i) ASSERT_TRUE(Put(Count(256, i * 1000)));
  EXPECT_EQ(Find(Count(257, 0)).length(), 256);
  ASSERT_TRUE(Put(Count(256, 3000)));
  EXPECT_EQ(Find(Count(257, 1000)).length(), 0);
  for (const int32_t i : {0, 2, 3}) EXPECT_EQ(Find(Count(257, i * 1000)).length(), 256) << i;
}

TEST_F(PrefixCacheTest, WorkPerByteOutweighsALittleRecency) {
  const int64_t page = cache_->page_bytes(), snapshot = cache_->snapshot_bytes();
  for (const double weight : {0.0, 4.0}) {
    Open({.bytes_max = 6 * page + 5 * snapshot, .work_weight = weight});
    // 512 tokens in two pages are more work a byte than 16 in one.
    ASSERT_TRUE(Put(Count(512, 0)));
    for (int32_t i = 1; i <= 5; ++i) ASSERT_TRUE(Put(Count(16, i * 1000)));
    EXPECT_EQ(Find(Count(513, 0)).length(), weight > 0 ? 512 : 0);
  }
}

TEST_F(PrefixCacheTest, TransientSnapshotsGoFirstAndPushNothingOut) {
  const int64_t page = cache_->page_bytes(), snapshot = cache_->snapshot_bytes();
  Open({.bytes_max = 4 * page + 2 * snapshot});
  ASSERT_TRUE(Put(Count(512, 0)));
  ASSERT_TRUE(Put(Count(256, 1000), SnapshotKind::kPeriodic));
  ASSERT_TRUE(Put(Count(256, 2000)));
  EXPECT_EQ(Find(Count(257, 1000)).length(), 0);
  EXPECT_EQ(Find(Count(513, 0)).length(), 512);
  EXPECT_FALSE(Put(Count(256, 3000), SnapshotKind::kPeriodic));
  EXPECT_EQ(Find(Count(513, 0)).length(), 512);
  EXPECT_EQ(Find(Count(257, 2000)).length(), 256);
}

TEST_F(PrefixCacheTest, TransientSnapshotsAreDroppedUnlessTheyBecameMore) {
  const Ids ids = Count(256);
  ASSERT_TRUE(Put(ids, SnapshotKind::kPeriodic));
  cache_->DropTransient(start_, First(ids, 240));
  EXPECT_EQ(cache_->stats().snapshots, 1);
  cache_->DropTransient(start_, ids);
  EXPECT_EQ(cache_->stats().snapshots, 0);
  ASSERT_TRUE(Put(ids, SnapshotKind::kPeriodic));
  ASSERT_TRUE(Put(ids, SnapshotKind::kTurn));
  cache_->DropTransient(start_, ids);
  EXPECT_EQ(cache_->stats().snapshots, 1);
  ASSERT_TRUE(Put(ids, SnapshotKind::kPeriodic));  // it stays what it is
  cache_->DropTransient(start_, ids);
  EXPECT_EQ(cache_->stats().snapshots, 1);
}

TEST_F(PrefixCacheTest, ACoarseGridHitsAtItsPointsAlone) {
  Open({.bytes_max = kPlenty, .alignment = 512});
  const Ids ids = Count(1100);
  EXPECT_FALSE(Put(Count(496)));
  ASSERT_TRUE(Put(Count(512)));
  ASSERT_TRUE(Put(Count(1024)));
  EXPECT_EQ(Find(ids).length(), 1024);
  EXPECT_EQ(Find(Count(1024)).length(), 512);
  EXPECT_EQ(Find(Count(512)).length(), 0);
}

TEST_F(PrefixCacheTest, WhatIsExportedCanBeLoaded) {
  const Ids ids = Count(600);
  ASSERT_TRUE(Put({ids.begin(), ids.begin() + 592}));
  const std::vector<PageRows> pages = cache_->ExportPages(start_, First(ids, 560));
  ASSERT_EQ(pages.size(), 3u);
  EXPECT_EQ(pages[2].begin, 512);
  EXPECT_EQ(pages[2].tokens.size(), 48u);
  const std::vector<PrefixHash> ends = ChainHashes(start_, ids);
  EXPECT_EQ(pages[2].before, ends[32]);
  EXPECT_EQ(pages[2].end, ends[35]);
  EXPECT_EQ(cache_->ExportPages(start_, ids, 1).size(), 2u);
  EXPECT_EQ(cache_->ExportSnapshot(start_, First(ids, 560)), nullptr);
  const auto snapshot = cache_->ExportSnapshot(start_, First(ids, 592));
  ASSERT_NE(snapshot, nullptr);
  const std::vector<PageRows> all = cache_->ExportPages(start_, ids);

  // As from a disk: into arrays of its own.
  std::vector<PageRows> loaded;
  for (const PageRows& page : all) {
    const auto rows = cache_->MakePageRows();
    const int64_t floats = std::ssize(page.tokens) * cache_->row_width();
    for (size_t l = 0; l < rows.size(); ++l) {
      std::copy_n(page.layers[l]->data(), floats, rows[l]->data());
    }
    loaded.push_back({.begin = page.begin, .layers = {rows.begin(), rows.end()}});
  }
  cache_->Clear();
  // Those in front must be there.
  EXPECT_EQ(cache_->AddLoadedPages(start_, First(ids, 592), std::span(loaded).subspan(1)), 0);
  EXPECT_EQ(cache_->AddLoadedPages(start_, First(ids, 512), std::span(loaded).first(2)), 512);
  EXPECT_EQ(cache_->AddLoadedPages(start_, First(ids, 592), std::span(loaded).subspan(2)), 592);
  ASSERT_TRUE(cache_->AddSnapshot(start_, First(ids, 592), snapshot, SnapshotKind::kTurn));
  const PrefixLease lease = Find(ids);
  EXPECT_EQ(lease.length(), 592);
  EXPECT_TRUE(GoesOnRight(lease, ids));
}

/// What the cache must find: every prompt's blocks and every snapshot, kept as tokens.
class NaiveCache {
 public:
  void AddPages(std::span<const int32_t> tokens) { pages_.insert({tokens.begin(), tokens.end()}); }
  void AddSnapshot(std::span<const int32_t> tokens) {
    snapshots_.insert({tokens.begin(), tokens.end()});
  }
  int64_t PagesLength(const Ids& ids, int64_t limit) const {
    int64_t longest = 0;
    for (const Ids& pages : pages_) {
      const auto end = std::mismatch(pages.begin(), pages.end(), ids.begin(), ids.end()).first;
      longest = std::max(longest, std::min(end - pages.begin(), limit) / 16 * 16);
    }
    return longest;
  }
  int64_t HitLength(const Ids& ids, int64_t limit) const {
    int64_t longest = 0;
    for (const Ids& tokens : snapshots_) {
      const int64_t length = std::ssize(tokens);
      if (length > longest && length <= limit && length <= std::ssize(ids) &&
          std::equal(tokens.begin(), tokens.end(), ids.begin())) {
        longest = length;
      }
    }
    return longest;
  }

 private:
  std::set<Ids> pages_;
  std::set<Ids> snapshots_;
};

/// Prompts that fork everywhere and end around every multiple of 16 and 256.
class Prompts {
 public:
  explicit Prompts(uint64_t seed) : random_(seed, 0) {}

  Random& random() { return random_; }
  Ids Next() {
    Ids ids;
    if (!known_.empty() && random_.NextBelow(8) > 0) {
      ids = known_[random_.NextBelow(known_.size())];
      if (random_.NextBelow(2) == 0) ids.resize(static_cast<size_t>(Near(std::ssize(ids))));
    }
    const int64_t more = Near(random_.NextBelow(3) == 0 ? 600 : 60);
    // Few different ids, so that forks often agree for some tokens more.
    for (int64_t i = 0; i < more; ++i) {
      ids.push_back(i < 20 ? static_cast<int32_t>(random_.NextBelow(2)) : static_cast<int32_t>(i));
    }
    if (known_.size() < 60) known_.push_back(ids);
    known_[random_.NextBelow(known_.size())] = ids;
    if (ids.size() > 1400) ids.resize(700);
    return ids;
  }

 private:
  /// At most `limit`, mostly within 5 of a multiple of 16 or 256.
  int64_t Near(int64_t limit) {
    const int64_t step = random_.NextBelow(2) == 0 ? 16 : 256;
    const int64_t at = static_cast<int64_t>(random_.NextBelow(static_cast<uint64_t>(limit + 1)));
    const int64_t near =
        (at + step / 2) / step * step + static_cast<int64_t>(random_.NextBelow(11)) - 5;
    return std::clamp<int64_t>(near, 0, limit);
  }

  Random random_;
  std::vector<Ids> known_;
};

struct RandomCase {
  const char* name;
  int64_t pages_max;  // of budget; 0: plenty
  bool bad_names;
  uint64_t seed;
  int64_t hits_min;
};

class PrefixCacheRandomTest : public ::testing::TestWithParam<RandomCase> {};

/// Serves one prompt as a scheduler would, with a few boundaries on the way.
void Serve(PrefixCache& cache, const ModelConfig& config, const PrefixHash& start, const Ids& ids,
           const PrefixLease& lease, Random& random, NaiveCache* naive) {
  FakeSequence sequence(config);
  cache.Restore(lease, sequence.state());
  ASSERT_TRUE(sequence.Holds(First(ids, lease.length())));
  const int64_t last = std::ssize(ids) / 16 * 16;
  std::set<int64_t> boundaries = {last};
  for (int i = 0; i < 2; ++i) {
    boundaries.insert(static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(last / 16 + 1))) *
                      16);
  }
  for (const int64_t end : boundaries) {
    if (end <= lease.length()) continue;
    const auto tokens = First(ids, end);
    sequence.Run(tokens);
    const int64_t cached = cache.AddPages(start, tokens, sequence.state());
    naive->AddPages(tokens);
    if (random.NextBelow(3) == 0) continue;
    const SnapshotKind kind = static_cast<SnapshotKind>(random.NextBelow(4));
    const bool added = cache.AddSnapshot(start, tokens, sequence.state().TakeSnapshot(), kind);
    if (added) naive->AddSnapshot(tokens);
    EXPECT_TRUE(cached == end || !added);
  }
  sequence.Run(ids);
  ASSERT_TRUE(sequence.Holds(ids));
}

TEST_P(PrefixCacheRandomTest, EqualsANaiveCacheButForEvictions) {
  const RandomCase& test = GetParam();
  const ModelConfig config = FakeConfig();
  int64_t bytes_max = kPlenty;
  if (test.pages_max > 0) {
    bytes_max = test.pages_max * PrefixCache(config, {.bytes_max = kPlenty}).page_bytes();
  }
  PrefixCache cache(
      config, {.bytes_max = bytes_max, .extend_hash = test.bad_names ? FourNames : ExtendHash});
  Prompts prompts(test.seed);
  Random& random = prompts.random();
  std::map<std::string, NaiveCache> naive;
  struct Held {
    Ids ids;
    PrefixLease lease;
  };
  std::vector<Held> held;  // between look-up and restore much may happen
  for (int step = 0; step < 600; ++step) {
    const std::string tenant = random.NextBelow(8) == 0 ? "b" : "a";
    const Ids ids = prompts.Next();
    const int64_t limit = std::ssize(ids) - 1;
    PrefixLease lease = cache.Lookup(NamespaceHash(tenant), ids, limit);
    ASSERT_LE(lease.length(), std::max<int64_t>(limit, 0));
    ASSERT_LE(lease.length(), lease.pages_length());
    ASSERT_EQ(lease.length() % 16, 0);
    const int64_t pages = naive[tenant].PagesLength(ids, limit);
    const int64_t hit = naive[tenant].HitLength(ids, limit);
    if (test.pages_max == 0) {
      ASSERT_EQ(lease.pages_length(), pages) << step;
      ASSERT_EQ(lease.length(), hit) << step;
    } else {
      ASSERT_LE(lease.pages_length(), pages) << step;
      ASSERT_LE(lease.length(), hit) << step;
    }
    ASSERT_EQ(lease.length(), cache.Peek(NamespaceHash(tenant), ids, limit));
    if (random.NextBelow(4) == 0 && held.size() < 3) {
      held.push_back({ids, std::move(lease)});
    } else {
      Serve(cache, config, NamespaceHash(tenant), ids, lease, random, &naive[tenant]);
    }
    if (!held.empty() && random.NextBelow(6) == 0) {
      FakeSequence sequence(config);
      cache.Restore(held.front().lease, sequence.state());
      ASSERT_TRUE(sequence.Holds(First(held.front().ids, held.front().lease.length())));
      held.erase(held.begin());
    }
    ASSERT_LE(cache.bytes(), bytes_max);
    if (HasFatalFailure()) return;
  }
  const PrefixCacheStats stats = cache.stats();
  EXPECT_GE(stats.hits, test.hits_min);
  EXPECT_EQ(stats.hits + stats.misses_no_pages + stats.misses_no_snapshot, stats.lookups);
  const int64_t evicted = stats.evicted_pages + stats.evicted_snapshots;
  EXPECT_EQ(evicted > 100, test.pages_max > 0);
  held.clear();
  cache.Clear();
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(cache.stats().pinned, 0);
}

INSTANTIATE_TEST_SUITE_P(Budgets, PrefixCacheRandomTest,
                         ::testing::Values(RandomCase{"Plenty", 0, false, 1, 200},
                                           RandomCase{"PlentyBadNames", 0, true, 2, 200},
                                           RandomCase{"Tiny", 5, false, 3, 20},
                                           RandomCase{"TinyBadNames", 7, true, 4, 20},
                                           RandomCase{"Small", 20, false, 5, 80},
                                           RandomCase{"TwoPages", 2, false, 6, 1}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace k3::cache
