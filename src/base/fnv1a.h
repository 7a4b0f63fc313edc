#pragma once
// Fnv1a: the 64-bit FNV-1a hash over little-endian bytes, so that a number that goes into files or
// decides what is held out is the same on every machine. Not against someone who forges data. A
// value; any thread. Source: Fowler, Noll and Vo, IETF draft-eastlake-fnv.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace k3 {

class Fnv1a {
 public:
  template <typename T>
  void Add(T value) {
    uint64_t bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) {
      hash_ = (hash_ ^ (bits & 0xFF)) * 0x100000001B3u;
    }
  }
  void AddText(std::string_view text) {
    for (const char c : text) Add(static_cast<unsigned char>(c));
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

}  // namespace k3
