#pragma once
// Byte-pair merging of one piece, as tiktoken does it: a piece that is a token is that token; any
// other starts as single bytes, and the adjacent pair whose joined bytes have the lowest rank is
// merged, leftmost first among equals, until no pair is a token. For a vocabulary that training
// made, the first rule only saves time; where the two differ, the release's encoder has the rule.
//
// Short pieces are scanned, long ones use a heap: O(n log n) lookups whatever the bytes. The table
// holds every single byte and its numbers are the ranks. Pure, any thread. Source: tiktoken.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace k3 {

/// Appends the ids of `piece` (not empty, less than 2 GiB) to `ids`.
void EncodePiece(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);

/// Encodes the pieces of one text. The ids of a piece follow from its bytes alone, so that a piece
/// which was merged before is copied from where its ids stand. What it remembers is bounded (the
/// latest of at most 16,384 places) and freed with it. One thread at a time.
class PieceEncoder {
 public:
  /// The pieces' bytes must stay as long as the encoder; `text_bytes` is how many to expect.
  PieceEncoder(const TokenTable& ranks, int64_t text_bytes);

  /// EncodePiece for each piece of `segment`, which end at `ends` (SplitSegment). `ids` is the same
  /// vector, not shortened, in every call; fewer than 2^32 ids.
  void Append(std::string_view segment, std::span<const uint32_t> ends, std::vector<int32_t>* ids);

 private:
  struct Piece {
    std::string_view bytes;
    TokenKey key;
    int32_t whole;  // its id, if the piece is a token
  };
  struct Merged {
    uint64_t head;  // of the key
    uint32_t tail;
    uint32_t ids_count;  // 0: nothing remembered
    const char* bytes;
    uint32_t bytes_count;
    uint32_t ids_begin;
  };

  Merged& PlaceOf(const TokenKey& key) {
    // The table takes its place from the low half of the hash.
    return merged_[key.Hash() >> 32 & (merged_.size() - 1)];
  }
  void AppendMerged(const Piece& piece, std::vector<int32_t>* ids);

  const TokenTable& ranks_;
  std::vector<Merged> merged_;  // a power of two, placed by the key's hash
};

namespace internal {

/// The two ways to merge, without the whole-piece rule, for the test that they agree.
inline constexpr int64_t kScanBytesMax = 96;
void MergeByScan(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);
void MergeByHeap(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);

}  // namespace internal
}  // namespace k3
