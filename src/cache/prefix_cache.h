#pragma once
// PrefixCache: keeps what sequences computed for their prompts, so that later prompts that begin
// alike go on from there. Three granularities: pages of MLA latents (256 tokens), hashes (16
// tokens) and KDA snapshots (only where one was given).
//
//   PrefixLease lease = cache.Lookup(start, prompt, prompt_size - 1);   // pins what it found
//   cache.Restore(lease, state);                                        // state.length() == hit
//   ... prefill up to a boundary n, a multiple of 16 ...
//   cache.AddPages(start, prompt.first(n), state);
//   cache.AddSnapshot(start, prompt.first(n), state.TakeSnapshot(), SnapshotKind::kTurn);
//
// Exact: an entry is used only after every token in front of its end was compared, never on the
// strength of a hash, and only if it was computed in prefill form, which the caller sees to.
// One byte budget for pages and snapshots together is never passed: what does not fit pushes out
// what is worth less, or is not taken. Pages that running sequences still read count here as long
// as they are cached, and are theirs alone afterwards. Not thread-safe: one thread, the
// scheduler's, calls everything, leases' destructors included. The cache must outlive its leases.
// Exported arrays are immutable and may be read by any thread. Source: technical report,
// section 5.4.1; eviction after Marconi (arXiv 2411.19379).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/prefix_hash.h"
#include "cache/sequence_state.h"
#include "config/model_config.h"

namespace k3::cache {

class PrefixTree;
struct CachedSnapshot;

struct PrefixCacheOptions {
  int64_t bytes_max = 0;
  /// How long what is worth more is kept beyond its last use, see eviction_score.h; 0: age alone.
  double work_weight = 4.0;
  /// Snapshots and hits only at multiples of this multiple of 16. To compare policies with.
  int64_t alignment = kHashBlockTokens;
  /// What names a block; tests put a bad one here.
  PrefixHash (*extend_hash)(const PrefixHash& before, std::span<const int32_t> tokens) = ExtendHash;
};

/// kPeriodic: an insurance while a long prompt is computed, dropped once the request is past it.
enum class SnapshotKind { kTurn, kSystem, kBranch, kPeriodic };

/// kNoSnapshot: some of the latents are there, but no KDA state within them.
enum class MissReason { kNone, kNoPages, kNoSnapshot };

struct PrefixCacheStats {
  int64_t bytes = 0;
  int64_t bytes_max = 0;
  int64_t pages = 0;
  int64_t snapshots = 0;
  int64_t pinned = 0;  // snapshots that leases hold
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t misses_no_pages = 0;
  int64_t misses_no_snapshot = 0;
  int64_t hit_tokens = 0;
  int64_t evicted_pages = 0;
  int64_t evicted_snapshots = 0;  // transient ones included, dropped ones not
  int64_t declined = 0;           // pages and snapshots for which no room could be made
};

/// The latents of at most 256 tokens, for every MLA layer. Rows [0, tokens) are valid.
struct PageRows {
  int64_t begin = 0;               // position of the first token, a multiple of 256
  PrefixHash before;               // of tokens [0, begin)
  PrefixHash end;                  // of tokens [0, begin + tokens.size())
  std::vector<int32_t> tokens;     // a multiple of 16
  std::vector<SharedRows> layers;  // [MLA layers], each [256, row_width]
};

/// What a look-up found, kept from eviction until this is destroyed or Release is called.
class PrefixLease {
 public:
  PrefixLease() = default;
  PrefixLease(PrefixLease&& other) noexcept { *this = std::move(other); }
  PrefixLease& operator=(PrefixLease&& other) noexcept;
  ~PrefixLease() { Release(); }

  /// Tokens that need not be computed: a multiple of 16, 0 for a miss.
  int64_t length() const { return length_; }
  /// Tokens whose latents are there, a multiple of 16 and at least length().
  int64_t pages_length() const { return pages_length_; }
  MissReason reason() const { return reason_; }
  /// Where this prompt leaves others that it shared at least 64 tokens behind length() with: the
  /// second sighting of this beginning, worth a snapshot (SnapshotKind::kBranch).
  std::optional<int64_t> branch_point() const { return branch_point_; }

  void Release();

 private:
  friend class PrefixCache;

  PrefixTree* tree_ = nullptr;
  CachedSnapshot* snapshot_ = nullptr;
  int64_t length_ = 0;
  int64_t pages_length_ = 0;
  MissReason reason_ = MissReason::kNone;
  std::optional<int64_t> branch_point_;
};

class PrefixCache {
 public:
  PrefixCache(const ModelConfig& config, const PrefixCacheOptions& options);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  /// The longest boundary of `tokens`, at most `length_max`, that has latents and a snapshot.
  /// `start` is the tenant's NamespaceHash. Counts as a use of what it finds.
  PrefixLease Lookup(const PrefixHash& start, std::span<const int32_t> tokens, int64_t length_max);
  /// The same without pinning, counting, or being a use: what Lookup's length() would be.
  int64_t Peek(const PrefixHash& start, std::span<const int32_t> tokens, int64_t length_max) const;

  /// Gives the empty `state` what `lease` holds. Full pages are shared, a partial one is copied.
  void Restore(const PrefixLease& lease, SequenceState& state);

  /// Registers the latents of `tokens`, a multiple of 16 of them, all of which `state` holds in
  /// prefill form. What is there already stays. Returns how many tokens are cached afterwards:
  /// fewer than given when no room could be made.
  int64_t AddPages(const PrefixHash& start, std::span<const int32_t> tokens, SequenceState& state);
  /// The same with rows from elsewhere: `pages` are neighbours in ascending order, the last one
  /// ends with `tokens`, and those in front of the first are cached. Their hashes and tokens are
  /// ignored.
  int64_t AddLoadedPages(const PrefixHash& start, std::span<const int32_t> tokens,
                         std::span<const PageRows> pages);

  /// Registers the KDA state behind `tokens`, whose pages must have been added. Returns whether it
  /// is there afterwards: not if its pages are not, or no room could be made.
  bool AddSnapshot(const PrefixHash& start, std::span<const int32_t> tokens,
                   SharedSnapshot snapshot, SnapshotKind kind);
  /// Forgets the snapshot behind `tokens` if it is periodic and not pinned.
  void DropTransient(const PrefixHash& start, std::span<const int32_t> tokens);

  /// The cached pages of `tokens`, from page `first_page` on as far as they go; the last one may be
  /// cut. Only whole blocks of 16. For the disk tier; not a use.
  std::vector<PageRows> ExportPages(const PrefixHash& start, std::span<const int32_t> tokens,
                                    int64_t first_page = 0) const;
  /// The snapshot behind `tokens`, or null.
  SharedSnapshot ExportSnapshot(const PrefixHash& start, std::span<const int32_t> tokens) const;

  /// Empty rows for AddLoadedPages to fill: [MLA layers] arrays [256, row_width].
  // Shared: they become SharedRows once filled.
  std::vector<std::shared_ptr<FloatArray>> MakePageRows() const;
  /// Floats in a row of each MLA layer: a page payload holds `tokens` of them a layer, back to
  /// back.
  int64_t row_width() const;
  int64_t mla_layers_count() const;
  /// Bytes that a page and a snapshot count as.
  int64_t page_bytes() const;
  int64_t snapshot_bytes() const;

  /// Evicts until `bytes` more fit; false when what is pinned does not allow it.
  bool MakeRoom(int64_t bytes);
  /// Forgets everything that is not pinned.
  void Clear();

  int64_t bytes() const;
  PrefixCacheStats stats() const;

 private:
  struct Counters {
    int64_t lookups = 0, hits = 0, no_pages = 0, no_snapshot = 0, hit_tokens = 0, declined = 0;
  };

  PrefixCacheOptions options_;
  std::unique_ptr<PrefixTree> tree_;
  Counters counters_;
};

}  // namespace k3::cache
