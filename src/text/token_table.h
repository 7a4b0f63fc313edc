#pragma once
// TokenTable: byte strings numbered from 0 in the order they were added, found again by content.
// Owns all bytes in one arena and a flat hash table over it (about 16 bytes a token besides the
// bytes). Views from Bytes() live until the next Append or the table's end. Not synchronised: build
// it on one thread, then any thread may read.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

class TokenTable {
 public:
  static constexpr int32_t kNotFound = -1;

  TokenTable() { byte_numbers_.fill(kNotFound); }

  /// Makes room, so that appending this much does not grow anything.
  void Reserve(int64_t tokens, int64_t bytes);

  /// Adds a string and returns its number, or kNotFound if it is there already.
  int32_t Append(std::string_view bytes);

  /// The number of a string, or kNotFound.
  int32_t Find(std::string_view bytes) const;
  /// Find of a string of one byte.
  int32_t FindByte(uint8_t byte) const { return byte_numbers_[byte]; }

  /// The string of a number in [0, size()).
  std::string_view Bytes(int32_t number) const {
    return std::string_view(arena_).substr(begins_[number], begins_[number + 1] - begins_[number]);
  }

  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Slot {
    uint32_t tag = 0;  // high half of the hash, so that most misses do not touch the arena
    int32_t number = kNotFound;
  };

  size_t FindSlot(std::string_view bytes, uint64_t hash) const;
  void Grow(size_t slots);

  std::string arena_;
  std::vector<int64_t> begins_ = {0};  // [size() + 1] offsets in the arena
  std::vector<Slot> slots_;            // a power of two, at least twice size()
  std::array<int32_t, 256> byte_numbers_;
  int64_t longest_bytes_ = 0;
};

}  // namespace k3
