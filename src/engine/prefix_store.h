#pragma once
// PrefixStore: what is known of prompts already seen, in memory and on disk, as the scheduler uses
// it: find the longest part of a prompt that need not be run, restore a sequence to its end, and
// keep what a running sequence computed.
//
//   PrefixFinding found = store->Find(salt, prompt);
//   while (!found.ready()) ...                       // a part is being read from the disk
//   const int64_t kept = store->Restore(found, state);
//   ... run prompt [kept, n) and beyond, with a snapshot taken at n (model/batch.h) ...
//   store->Keep(salt, prompt.first(n), kept, SnapshotKind::kTurn, snapshot, state);
//
// Only state that was computed in prefill form is kept; a snapshot with a value that is no finite
// number is not. With `reuse_decoded`, whole sequences that ended in decode form are kept apart,
// and go on as their session would: what follows differs by rounding from a cold run.
//
// One thread; the disk's work is done on a thread of its own. The engine must outlive the store.
// Source: serving contract, section 2; technical report, section 5.4.1.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/disk_tier.h"
#include "cache/prefix_cache.h"
#include "cache/sequence_state.h"
#include "engine/engine.h"

namespace k3 {

struct PrefixStoreOptions {
  int64_t memory_bytes_max = 0;  // pages and snapshots together; 0 keeps nothing
  std::string disk_dir;          // empty: no disk tier
  int64_t disk_bytes_max = 0;
  bool reuse_decoded = false;
  /// Told of files that are set aside and of shared prefixes that hit nothing. Any thread.
  std::function<void(const std::string& message)> warn;
};

struct PrefixStoreStats {
  cache::PrefixCacheStats memory;
  std::optional<cache::DiskTierStats> disk;
  int64_t disk_hits = 0;
  int64_t decoded_hits = 0;
};

/// What Find found, and holds until Restore or its end.
class PrefixFinding {
 public:
  /// Whether Restore need not wait for the disk.
  bool ready() const { return fetch_ == nullptr || fetch_->done.load(std::memory_order_acquire); }
  /// Where a snapshot should be taken since other prompts went another way there.
  std::optional<int64_t> branch_point() const { return lease_.branch_point(); }
  bool from_disk() const { return from_disk_; }
  /// Of what Restore restored, tokens whose state was computed in decode form.
  int64_t decoded_tokens() const { return decoded_tokens_; }

 private:
  friend class PrefixStore;
  struct Fetch {
    std::atomic<bool> done = false;
    cache::DiskHit hit;  // the disk's thread writes it before `done`
  };

  cache::PrefixHash start_;
  cache::PrefixLease lease_;
  std::shared_ptr<Fetch> fetch_;  // shared with the disk's thread
  bool from_disk_ = false;
  int64_t decoded_tokens_ = 0;
};

class PrefixStore {
 public:
  /// Failures are those of DiskTier::Open and ModelFingerprint.
  static Result<std::unique_ptr<PrefixStore>> Open(Engine& engine, PrefixStoreOptions options);

  /// Looks for the longest known part of `prompt`, its last token left out, and pins it.
  PrefixFinding Find(std::string_view salt, std::span<const int32_t> prompt);
  /// The length that Find would find in memory.
  int64_t Peek(std::string_view salt, std::span<const int32_t> prompt) const;

  /// Makes the empty `state` the sequence of the first tokens of `prompt` that were found, which
  /// must be ready, and returns how many those are.
  int64_t Restore(PrefixFinding& found, std::span<const int32_t> prompt,
                  cache::SequenceState& state);

  /// Keeps what `state` was behind `tokens`, a multiple of 16, which it has run in prefill form and
  /// maybe others since: its latents and the snapshot taken there. The first `known` of the tokens
  /// it was given by Restore.
  void Keep(std::string_view salt, std::span<const int32_t> tokens, int64_t known,
            cache::SnapshotKind kind, cache::SharedSnapshot snapshot, cache::SequenceState& state);
  /// Whether there is room to keep anything.
  bool keeps() const { return options_.memory_bytes_max > 0; }
  /// Forgets the periodic snapshot behind `tokens`.
  void DropTransient(std::string_view salt, std::span<const int32_t> tokens);

  bool reuses_decoded() const { return options_.reuse_decoded; }
  /// Keeps a sequence of `tokens`, those behind the first `prefilled` ones in decode form.
  void KeepDecoded(std::string_view salt, std::vector<int32_t> tokens, int64_t prefilled,
                   cache::SequenceState state);

  PrefixStoreStats stats() const;
  /// Waits for what is being written to the disk.
  void Flush();
  /// Forgets what is in memory.
  void Clear();

 private:
  struct DecodedSequence {
    cache::PrefixHash start;
    std::vector<int32_t> tokens;
    int64_t prefilled = 0;
    cache::SequenceState state;
  };
  using DecodedSequences = std::list<DecodedSequence>;  // last used first

  PrefixStore(Engine& engine, PrefixStoreOptions options, std::unique_ptr<cache::DiskTier> disk);

  void StartFetch(PrefixFinding& found, std::span<const int32_t> prompt);
  bool Import(const cache::DiskHit& hit, const cache::PrefixHash& start,
              std::span<const int32_t> prompt);
  cache::PageRows ImportPage(const cache::FetchedPage& page, int64_t length) const;
  void StoreOnDisk(const cache::PrefixHash& start, std::span<const int32_t> tokens);
  DecodedSequences::iterator FindDecoded(const cache::PrefixHash& start,
                                         std::span<const int32_t> prompt);

  const ModelConfig& config_;
  PrefixStoreOptions options_;
  cache::PrefixCache memory_;
  DecodedSequences decoded_;
  int64_t decoded_bytes_ = 0;
  int64_t decoded_bytes_max_ = 0;
  int64_t disk_hits_ = 0;
  int64_t decoded_hits_ = 0;
  std::unique_ptr<cache::DiskTier> disk_;  // last: its thread may still call back
};

}  // namespace k3
