#pragma once
// Byte-pair merging of one piece, as tiktoken does it: a piece that is a token is that token; any
// other starts as single bytes, and the adjacent pair whose joined bytes have the lowest rank is
// merged, leftmost first among equals, until no pair is a token. For a vocabulary that training
// made, the first rule only saves time; where the two differ, the release's encoder has the rule.
//
// Short pieces are scanned, long ones use a heap: O(n log n) lookups whatever the bytes. The table
// holds every single byte and its numbers are the ranks. Pure, any thread. Source: tiktoken.

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace k3 {

/// Appends the ids of `piece` (not empty, less than 2 GiB) to `ids`.
void EncodePiece(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);

namespace internal {

/// The two ways to merge, without the whole-piece rule, for the test that they agree.
inline constexpr int64_t kScanBytesMax = 96;
void MergeByScan(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);
void MergeByHeap(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids);

}  // namespace internal
}  // namespace k3
