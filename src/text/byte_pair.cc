#include "text/byte_pair.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>

#include "base/check.h"

namespace k3 {
namespace {

// Above every rank: no token.
constexpr uint32_t kNoRank = UINT32_MAX;

uint32_t RankOf(const TokenTable& ranks, std::string_view bytes) {
  return static_cast<uint32_t>(ranks.Find(bytes));  // kNotFound becomes kNoRank.
}
static_assert(static_cast<uint32_t>(TokenTable::kNotFound) == kNoRank);

}  // namespace

namespace internal {

void MergeByScan(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids) {
  K3_CHECK(static_cast<int64_t>(piece.size()) <= kScanBytesMax, "a long piece needs the heap");
  struct Part {
    uint32_t start;
    uint32_t id;
    uint32_t pair_rank;  // of this part joined with the next
  };
  std::array<Part, kScanBytesMax + 1> parts;
  auto count = static_cast<int64_t>(piece.size());
  // Only the start of the part behind the last is read.
  parts[count] = {static_cast<uint32_t>(count), 0, kNoRank};
  const auto pair_rank = [&](int64_t i) {
    if (i + 1 >= count) return kNoRank;
    return RankOf(ranks, piece.substr(parts[i].start, parts[i + 2].start - parts[i].start));
  };
  for (int64_t i = 0; i < count; ++i) {
    parts[i].start = static_cast<uint32_t>(i);
    parts[i].id = static_cast<uint32_t>(ranks.FindByte(static_cast<uint8_t>(piece[i])));
  }
  for (int64_t i = 0; i < count; ++i) parts[i].pair_rank = pair_rank(i);
  while (count > 1) {
    int64_t best = 0;
    for (int64_t i = 1; i + 1 < count; ++i) {
      if (parts[i].pair_rank < parts[best].pair_rank) best = i;
    }
    if (parts[best].pair_rank == kNoRank) break;
    parts[best].id = parts[best].pair_rank;
    std::copy(parts.begin() + best + 2, parts.begin() + count + 1, parts.begin() + best + 1);
    --count;
    parts[best].pair_rank = pair_rank(best);
    if (best > 0) parts[best - 1].pair_rank = pair_rank(best - 1);
  }
  for (int64_t i = 0; i < count; ++i) ids->push_back(static_cast<int32_t>(parts[i].id));
}

void MergeByHeap(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids) {
  // A linked list over the positions where parts start. `pair_rank` is what the pair at a start is
  // worth now; a heap entry that says otherwise is out of date.
  struct Part {
    uint32_t id;
    uint32_t previous, next;  // starts; next of the last part is the size
    uint32_t pair_rank;
  };
  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(size);
  const auto pair_rank = [&](uint32_t at) {
    const uint32_t next = parts[at].next;
    return next == size ? kNoRank : RankOf(ranks, piece.substr(at, parts[next].next - at));
  };
  for (uint32_t i = 0; i < size; ++i) {
    const auto id = static_cast<uint32_t>(ranks.FindByte(static_cast<uint8_t>(piece[i])));
    parts[i] = {id, i - 1, i + 1, kNoRank};
  }
  // Rank in the high half and start in the low half order the pairs as the rule does.
  std::vector<uint64_t> entries;
  for (uint32_t i = 0; i < size; ++i) {
    parts[i].pair_rank = pair_rank(i);
    if (parts[i].pair_rank != kNoRank) entries.push_back(uint64_t{parts[i].pair_rank} << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>(),
                                                                            std::move(entries));
  const auto update = [&](uint32_t at) {
    parts[at].pair_rank = pair_rank(at);
    if (parts[at].pair_rank != kNoRank) heap.push(uint64_t{parts[at].pair_rank} << 32 | at);
  };
  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    const auto at = static_cast<uint32_t>(heap.top());
    heap.pop();
    if (parts[at].pair_rank != rank) continue;
    const uint32_t gone = parts[at].next;
    parts[at].id = rank;
    parts[at].next = parts[gone].next;
    parts[gone].pair_rank = kNoRank;
    if (parts[at].next != size) parts[parts[at].next].previous = at;
    update(at);
    if (at > 0) update(parts[at].previous);
  }
  for (uint32_t at = 0; at != size; at = parts[at].next) {
    ids->push_back(static_cast<int32_t>(parts[at].id));
  }
}

}  // namespace internal

void EncodePiece(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids) {
  K3_CHECK(!piece.empty() && piece.size() < INT32_MAX, "a piece has 1 byte to 2 GiB");
  const int32_t whole = ranks.Find(piece);
  if (whole != TokenTable::kNotFound) {
    ids->push_back(whole);
  } else if (static_cast<int64_t>(piece.size()) <= internal::kScanBytesMax) {
    internal::MergeByScan(ranks, piece, ids);
  } else {
    internal::MergeByHeap(ranks, piece, ids);
  }
}

}  // namespace k3
