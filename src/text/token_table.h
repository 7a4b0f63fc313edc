#pragma once
// TokenTable: byte strings numbered from 0 in the order they were added, found again by content.
// Owns all bytes in one arena and a flat hash table (32 to 64 bytes a token) whose slots hold short
// strings themselves, so that finding one reads one cache line. Views from Bytes() live until the
// next Append or the table's end. Not synchronised: build it on one thread, then any thread may
// read.

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

/// What a table compares before any bytes: a string of up to kInlineBytes is its key.
struct TokenKey {
  static constexpr size_t kInlineBytes = 11;

  TokenKey() = default;
  explicit TokenKey(std::string_view bytes);
  bool operator==(const TokenKey&) const = default;

  /// True if equal keys mean equal bytes.
  bool is_exact() const { return tail >> 24 <= kInlineBytes; }
  /// Spread over all bits.
  uint64_t Hash() const {
    uint64_t hash = (head ^ 0x243F6A8885A308D3u) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ tail) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
  }

  uint64_t head = 0;  // the first eight bytes padded with zeros, or a hash of a longer string
  uint32_t tail = 0;  // three more bytes below the size, or 255 as the size of a longer one
};

class TokenTable {
 public:
  static constexpr int32_t kNotFound = -1;

  TokenTable() { byte_numbers_.fill(kNotFound); }

  /// Makes room, so that appending this much does not grow anything.
  void Reserve(int64_t tokens, int64_t bytes);

  /// Adds a string and returns its number, or kNotFound if it is there already.
  int32_t Append(std::string_view bytes);

  /// The number of a string, or kNotFound.
  int32_t Find(std::string_view bytes) const {
    return static_cast<int64_t>(bytes.size()) > longest_bytes_ ? kNotFound
                                                               : Find(bytes, TokenKey(bytes));
  }
  /// The same for a caller that has the key.
  int32_t Find(std::string_view bytes, const TokenKey& key) const {
    return slots_.empty() ? kNotFound : slots_[FindSlot(bytes, key)].number_and_one - 1;
  }
  /// The same for strings of which few are in the table: asks a small filter before the slots.
  int32_t FindRare(std::string_view bytes) const {
    if (static_cast<int64_t>(bytes.size()) > longest_bytes_ || slots_.empty()) return kNotFound;
    const TokenKey key(bytes);
    const FilterBit bit = FilterBitOf(key);
    return (filter_[bit.word] & bit.mask) == 0 ? kNotFound : Find(bytes, key);
  }
  /// Asks the processor for what Find with this key reads first.
  void Prefetch(const TokenKey& key) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[key.Hash() & (slots_.size() - 1)]);
  }
  /// Find of a string of one byte.
  int32_t FindByte(uint8_t byte) const { return byte_numbers_[byte]; }

  /// Find of a string of two bytes.
  int32_t FindPair(uint8_t first, uint8_t second) const {
    return pair_numbers_.empty() ? kNotFound : pair_numbers_[PairIndex(first, second)];
  }

  /// The string of a number in [0, size()).
  std::string_view Bytes(int32_t number) const {
    return std::string_view(arena_).substr(begins_[number], begins_[number + 1] - begins_[number]);
  }

  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Slot {
    uint64_t head = 0;  // of the key
    uint32_t tail = 0;
    int32_t number_and_one = 0;  // 0: free
  };

  struct FilterBit {
    size_t word;
    uint64_t mask;
  };

  // The slot's place is the low half of the hash, the filter's the high one.
  FilterBit FilterBitOf(const TokenKey& key) const {
    const uint64_t hash = key.Hash();
    return {hash >> 32 & (filter_.size() - 1), uint64_t{1} << (hash >> 58)};
  }
  static size_t PairIndex(uint8_t first, uint8_t second) { return size_t{first} << 8 | second; }

  // The slot that holds `bytes`, else the free slot where it belongs. Half of the slots are free.
  size_t FindSlot(std::string_view bytes, const TokenKey& key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = key.Hash() & mask;
    while (slots_[at].number_and_one != 0) {
      const Slot& slot = slots_[at];
      if (slot.head == key.head && slot.tail == key.tail &&
          (key.is_exact() || Bytes(slot.number_and_one - 1) == bytes)) {
        break;
      }
      at = (at + 1) & mask;
    }
    return at;
  }
  void Fill(size_t slot, const TokenKey& key, int32_t number);
  void Grow(size_t slots);

  std::string arena_;
  std::vector<int64_t> begins_ = {0};  // [size() + 1] offsets in the arena
  std::vector<Slot> slots_;            // a power of two, at least twice size()
  std::vector<uint64_t> filter_;       // four bits a slot; those of all keys are set
  std::array<int32_t, 256> byte_numbers_;
  std::vector<int32_t> pair_numbers_;  // [65,536], none before there is a string of two bytes
  int64_t longest_bytes_ = 0;
};

/// The first eight bytes as a number, padded with zeros.
inline uint64_t LoadHead(std::string_view bytes) {
  const char* p = bytes.data();
  const size_t size = bytes.size();
  if (size >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    return word;
  }
  if (size >= 4) {  // Two loads that overlap; the bytes in both are the same.
    uint32_t first = 0, last = 0;
    std::memcpy(&first, p, 4);
    std::memcpy(&last, p + size - 4, 4);
    return first | uint64_t{last} << (8 * (size - 4));
  }
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i) word |= uint64_t{static_cast<uint8_t>(p[i])} << (8 * i);
  return word;
}

/// A hash of any string.
uint64_t HashBytes(std::string_view bytes);

inline TokenKey::TokenKey(std::string_view bytes) {
  const size_t size = bytes.size();
  if (size > kInlineBytes) {
    head = HashBytes(bytes);
    tail = 0xFF000000;
    return;
  }
  head = LoadHead(bytes);
  tail = static_cast<uint32_t>(size << 24);
  if (size > 8)
    tail |= static_cast<uint32_t>(LoadHead(bytes.substr(size - 8)) >> (8 * (16 - size)));
}

}  // namespace k3
