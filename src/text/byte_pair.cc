#include "text/byte_pair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"

namespace k3 {
namespace {

// Above every rank: no token.
constexpr uint32_t kNoRank = UINT32_MAX;

uint32_t RankOf(const TokenTable& ranks, std::string_view bytes) {
  return static_cast<uint32_t>(ranks.FindRare(bytes));  // kNotFound becomes kNoRank.
}
static_assert(static_cast<uint32_t>(TokenTable::kNotFound) == kNoRank);

// Of the two bytes at `at`.
uint32_t RankOfBytes(const TokenTable& ranks, std::string_view piece, int64_t at) {
  return static_cast<uint32_t>(
      ranks.FindPair(static_cast<uint8_t>(piece[at]), static_cast<uint8_t>(piece[at + 1])));
}

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
  for (int64_t i = 0; i + 1 < count; ++i) parts[i].pair_rank = RankOfBytes(ranks, piece, i);
  parts[count - 1].pair_rank = kNoRank;
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
    if (i + 1 < size) parts[i].pair_rank = RankOfBytes(ranks, piece, i);
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

namespace {

void MergePiece(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids) {
  if (static_cast<int64_t>(piece.size()) <= internal::kScanBytesMax) {
    internal::MergeByScan(ranks, piece, ids);
  } else {
    internal::MergeByHeap(ranks, piece, ids);
  }
}

}  // namespace

void EncodePiece(const TokenTable& ranks, std::string_view piece, std::vector<int32_t>* ids) {
  K3_CHECK(!piece.empty() && piece.size() < INT32_MAX, "a piece has 1 byte to 2 GiB");
  const int32_t whole = ranks.Find(piece);
  if (whole != TokenTable::kNotFound) {
    ids->push_back(whole);
  } else {
    MergePiece(ranks, piece, ids);
  }
}

PieceEncoder::PieceEncoder(const TokenTable& ranks, int64_t text_bytes) : ranks_(ranks) {
  constexpr uint64_t kPlacesMax = 16'384;
  constexpr uint64_t kBytesAPlace = 16;
  const uint64_t wanted = static_cast<uint64_t>(text_bytes) / kBytesAPlace;
  merged_.resize(std::bit_ceil(std::min(std::max<uint64_t>(wanted, 1), kPlacesMax)));
}

// A large vocabulary does not fit into the caches near the core. So a group of pieces is looked up
// in steps, each of which asks for what the next one reads.
void PieceEncoder::Append(std::string_view segment, std::span<const uint32_t> ends,
                          std::vector<int32_t>* ids) {
  constexpr size_t kGroup = 32;
  std::array<Piece, kGroup> pieces;
  uint32_t start = 0;
  while (!ends.empty()) {
    const size_t count = std::min(kGroup, ends.size());
    for (size_t i = 0; i < count; ++i) {
      const std::string_view bytes = segment.substr(start, ends[i] - start);
      K3_CHECK(!bytes.empty() && bytes.size() < INT32_MAX, "a piece has 1 byte to 2 GiB");
      start = ends[i];
      pieces[i] = {bytes, TokenKey(bytes), TokenTable::kNotFound};
      ranks_.Prefetch(pieces[i].key);
    }
    for (Piece& piece : std::span(pieces).first(count)) {
      piece.whole = ranks_.Find(piece.bytes, piece.key);
      if (piece.whole == TokenTable::kNotFound) __builtin_prefetch(&PlaceOf(piece.key));
    }
    for (const Piece& piece : std::span(pieces).first(count)) {
      if (piece.whole != TokenTable::kNotFound) {
        ids->push_back(piece.whole);
      } else {
        AppendMerged(piece, ids);
      }
    }
    ends = ends.subspan(count);
  }
}

void PieceEncoder::AppendMerged(const Piece& piece, std::vector<int32_t>* ids) {
  const TokenKey& key = piece.key;
  Merged& merged = PlaceOf(key);
  const auto begin = static_cast<uint32_t>(ids->size());
  if (merged.ids_count != 0 && merged.head == key.head && merged.tail == key.tail &&
      (key.is_exact() || piece.bytes == std::string_view(merged.bytes, merged.bytes_count))) {
    ids->resize(begin + merged.ids_count);
    std::copy_n(ids->begin() + merged.ids_begin, merged.ids_count, ids->begin() + begin);
    merged.ids_begin = begin;  // The newer copy is the nearer one in the cache.
    return;
  }
  MergePiece(ranks_, piece.bytes, ids);
  merged = {.head = key.head,
            .tail = key.tail,
            .ids_count = static_cast<uint32_t>(ids->size()) - begin,
            .bytes = piece.bytes.data(),
            .bytes_count = static_cast<uint32_t>(piece.bytes.size()),
            .ids_begin = begin};
}

}  // namespace k3
