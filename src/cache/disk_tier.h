#pragma once
// DiskTier: pages and snapshots of prefixes on disk, for longer than the process lives. A cache in
// every respect: what it gives is checked (checksum, tokens, model), what cannot be read is a miss,
// and what cannot be written is dropped and counted.
//
//   K3_TRY(std::unique_ptr<DiskTier> tier, DiskTier::Open(dir, fingerprint, options));
//   const int64_t stored = tier->StoredLength(ends);      // pages that need not be stored again
//   tier->StorePage({.parent = ends[16 * i], .begin = 256 * i, .tokens = ..., .payload = ...});
//   tier->StoreSnapshot(...);                             // after the pages in front of it
//   if (tier->Match(ends, length_max, in_memory) > best) tier->Fetch({...});
//
// `ends` is what ChainHashes gives: ends[n] names the tokens [0, 16 n). Records are stored in the
// order of the calls; one whose page in front is not there by then is dropped, as is the newest one
// when more than queue_bytes_max wait. A record that is there already is only touched, so that
// conversations share the pages of a common beginning. Of two pages that begin with the same tokens
// the fuller one is kept: it serves the boundaries of both.
//
// The files of all models in the directory stay within bytes_max together. Other models' go first,
// oldest first, then the least recently used record that nothing else needs: a snapshot, or a page
// with neither a page nor a snapshot behind it.
//
// Threads: one of the tier's own does all reading and writing after Open. Every method may be
// called from any thread; only Flush and the destructor wait (the latter for what is queued).
// Callbacks run on the tier's thread, must be quick and must not call Flush.
//
// Failures of Open: Unavailable when another process has the directory, IoError, InvalidArgument.
// After that there are none, only warnings.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/disk_record.h"
#include "cache/prefix_hash.h"
#include "sys/file.h"

namespace k3::cache {

struct DiskTierOptions {
  int64_t bytes_max = 0;
  int64_t page_floats_per_token = 0;  // a page of n tokens has n times as many
  int64_t snapshot_floats = 0;
  int64_t queue_bytes_max = int64_t{1} << 30;  // of payloads that wait to be written
  /// Told once for each damaged file and for the first of a row of failed writes.
  std::function<void(const std::string& message)> warn;
  FileSystem* files = nullptr;  // null: the machine's own; else must outlive the tier
};

/// The bytes are the caller's and stay unchanged while `keeper` lives: it is let go of when the
/// record has been written or dropped. Shared, because the memory cache holds them too.
struct RecordToStore {
  PrefixHash parent;            // of the tokens [0, begin)
  int64_t begin = 0;            // a multiple of 256
  std::vector<int32_t> tokens;  // [16 n], n from 1 to 16; a snapshot stands at their end
  std::vector<std::span<const float>> payload;  // one after the other
  std::shared_ptr<const void> keeper;
};

/// A record's floats, laid out as they were stored, and the block they lie in: it holds little else
/// (header and tokens), so that whoever goes on using the floats in place keeps no more than they
/// take.
struct FetchedFloats {
  std::span<float> values;  // begins with a cache line
  SharedBytes block;
};

struct FetchedPage {
  int64_t begin = 0;
  /// May be more than were asked for: rows behind the hit's length belong to another continuation.
  int64_t tokens = 0;
  FetchedFloats payload;  // [tokens * page_floats_per_token]
};

struct DiskHit {
  int64_t length = 0;              // 0 for a miss: then the rest is empty
  std::vector<FetchedPage> pages;  // ascending, those that reach beyond memory_pages_length
  FetchedFloats snapshot;          // [snapshot_floats]
};

struct DiskFetch {
  std::vector<PrefixHash> ends;
  std::vector<int32_t> tokens;      // at least 16 (ends.size() - 1)
  int64_t length_min = 0;           // only boundaries behind this one
  int64_t length_max = 0;           // and not behind this one
  int64_t memory_pages_length = 0;  // whole pages below are not asked for, be they there or not
  std::function<void(DiskHit hit)> done;
};

struct DiskTierStats {
  int64_t pages = 0;
  int64_t snapshots = 0;
  int64_t bytes = 0;        // of this model's records
  int64_t other_bytes = 0;  // of other models' records
  int64_t queue_bytes = 0;
  int64_t fetches = 0;
  int64_t hits = 0;
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t written_records = 0;
  int64_t dropped_full = 0;    // the queue was full, or the budget has no room
  int64_t dropped_orphan = 0;  // the page in front was not there
  int64_t failed_writes = 0;
  int64_t evicted = 0;  // records, other models' included
  int64_t corrupt = 0;
};

class DiskTier {
 public:
  /// Makes the directory if need be, takes its lock, removes what a killed writer left and reads
  /// the headers of this model's records.
  static Result<std::unique_ptr<DiskTier>> Open(const std::string& dir,
                                                const ModelFingerprintBytes& fingerprint,
                                                DiskTierOptions options);
  virtual ~DiskTier() = default;

  /// Tokens at the beginning whose pages are stored, a page's last block included: pages below need
  /// not be handed over again. From the index; what is queued does not count.
  virtual int64_t StoredLength(std::span<const PrefixHash> ends) const = 0;
  /// The longest boundary in (0, length_max] that Fetch would try, 0 when there is none.
  virtual int64_t Match(std::span<const PrefixHash> ends, int64_t length_max,
                        int64_t memory_pages_length) const = 0;

  virtual void StorePage(RecordToStore page) = 0;
  virtual void StoreSnapshot(RecordToStore snapshot) = 0;
  /// Reads the longest boundary's records ahead of all that waits to be written and calls `done`
  /// exactly once. A record that turns out damaged is removed and the next shorter boundary tried.
  virtual void Fetch(DiskFetch fetch) = 0;
  /// Waits until everything that was asked for is done.
  virtual void Flush() = 0;

  virtual DiskTierStats stats() const = 0;
};

}  // namespace k3::cache
