#pragma once
// PackedBatches: an endless, reproducible series of training sequences of equal length.
//
//   K3_TRY(PackedBatches batches, PackedBatches::Create(corpus, {.sequence_length = 256}));
//   const PackedSequence sequence = batches.Next();
//   const PackingState state = batches.state();   // into the checkpoint
//   K3_RETURN_IF_ERROR(batches.Seek(state));      // goes on exactly there
//
// For each epoch the documents are put in a random order, one behind the other, and that ring of N
// ids is opened at a random place. Sequence number k is then the L + 1 ids from place k L on: L
// inputs and, shifted by one, L targets. So in an epoch every id is a target once, but for those
// that are left when the (N - 1) / L sequences are full and the one at which the ring was opened,
// together at most L, elsewhere each time; a single long document is cut elsewhere each time; and
// an epoch always has the same number of sequences, which come in a random order. Long documents
// go over several sequences, short ones share one.
//
// Where a document begins, inside or at the start of a sequence, a segment begins: a model must
// neither attend nor carry a state across it. The first token of a document is never a supervised
// target. Sequences without any supervised target are skipped.
//
// Everything depends on the corpus, L, the seed and the position alone. The corpus belongs to the
// caller and must outlive this object unchanged. One thread. Next takes O(L) for each sequence that
// it looks at, and O(documents + N / L) once an epoch, which is also the memory.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "data/corpus.h"

namespace k3 {

struct PackingOptions {
  int64_t sequence_length = 0;  // L, at least 1
  uint64_t seed = 0;
};

struct PackedSequence {
  std::vector<int32_t> ids;             // [L + 1]: inputs are the first L, targets the last L
  std::vector<int64_t> segment_starts;  // ascending places of inputs; the first is 0
  std::vector<uint8_t> supervised;      // [L]: whether target i, ids[i + 1], is learned
  int64_t supervised_count = 0;

  bool operator==(const PackedSequence&) const = default;
};

/// A place in the series.
struct PackingState {
  uint64_t seed = 0;
  uint64_t fingerprint = 0;  // of the corpus
  int64_t sequence_length = 0;
  int64_t epoch = 0;
  int64_t sequence = 0;  // of the epoch, the skipped ones counted too

  bool operator==(const PackingState&) const = default;
};

class PackedBatches {
 public:
  /// InvalidArgument for a bad length, a corpus without tokens, with fewer than L + 1, or with
  /// nothing to learn.
  static Result<PackedBatches> Create(const Corpus& corpus, const PackingOptions& options);

  PackedSequence Next();

  /// Of the sequence that Next looks at first.
  PackingState state() const;
  /// InvalidArgument, and nothing changes, for a state of another corpus or length or one that
  /// cannot be. Its seed is taken over.
  Status Seek(const PackingState& state);

  int64_t sequences_per_epoch() const { return sequences_count_; }

 private:
  PackedBatches(const Corpus& corpus, const PackingOptions& options);
  void StartEpoch(int64_t epoch);
  PackedSequence Cut(int64_t sequence) const;

  const Corpus* corpus_;
  PackingOptions options_;
  uint64_t fingerprint_ = 0;
  int64_t sequences_count_ = 0;

  int64_t epoch_ = 0;
  int64_t next_ = 0;
  int64_t opened_at_ = 0;               // where the ring of this epoch begins
  std::vector<int64_t> documents_;      // in this epoch's order
  std::vector<int64_t> stream_starts_;  // [documents + 1]: where they begin on the ring
  std::vector<int64_t> sequences_;      // in this epoch's order
};

/// The ids of one window with their mask, as a sequence of one segment with end - begin - 1
/// targets.
PackedSequence WindowSequence(const Corpus& corpus, const TokenWindow& window);

}  // namespace k3
