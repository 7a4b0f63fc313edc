#include "text/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace k3 {
namespace {

uint64_t Mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

// Eight bytes at a time; the last step reads the final bytes again rather than one by one.
uint64_t HashBytes(std::string_view bytes) {
  const char* p = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = Mix(left + 0x243F6A8885A308D3u);
  uint64_t word = 0;
  for (; left > 8; left -= 8, p += 8) {
    std::memcpy(&word, p, 8);
    hash = Mix(hash ^ word);
  }
  if (bytes.size() >= 8) {
    std::memcpy(&word, p + left - 8, 8);
  } else {
    word = 0;
    std::memcpy(&word, p, left);
  }
  return Mix(Mix(hash ^ word));
}

uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

void TokenTable::Reserve(int64_t tokens, int64_t bytes) {
  arena_.reserve(static_cast<size_t>(bytes));
  begins_.reserve(static_cast<size_t>(tokens) + 1);
  const size_t slots = std::bit_ceil(static_cast<size_t>(tokens) * 2);
  if (slots > slots_.size()) Grow(slots);
}

int32_t TokenTable::Append(std::string_view bytes) {
  if (slots_.size() < 2 * begins_.size()) Grow(std::max<size_t>(16, 2 * slots_.size()));
  const uint64_t hash = HashBytes(bytes);
  Slot& slot = slots_[FindSlot(bytes, hash)];
  if (slot.number != kNotFound) return kNotFound;
  slot = {TagOf(hash), static_cast<int32_t>(size())};
  arena_ += bytes;
  begins_.push_back(static_cast<int64_t>(arena_.size()));
  longest_bytes_ = std::max(longest_bytes_, static_cast<int64_t>(bytes.size()));
  if (bytes.size() == 1) byte_numbers_[static_cast<uint8_t>(bytes[0])] = slot.number;
  return slot.number;
}

int32_t TokenTable::Find(std::string_view bytes) const {
  if (static_cast<int64_t>(bytes.size()) > longest_bytes_ || slots_.empty()) return kNotFound;
  return slots_[FindSlot(bytes, HashBytes(bytes))].number;
}

// The slot that holds `bytes`, else the free slot where it belongs. Half of the slots are free.
size_t TokenTable::FindSlot(std::string_view bytes, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].number != kNotFound) {
    if (slots_[at].tag == TagOf(hash) && Bytes(slots_[at].number) == bytes) break;
    at = (at + 1) & mask;
  }
  return at;
}

void TokenTable::Grow(size_t slots) {
  slots_.assign(slots, Slot{});
  for (int32_t number = 0; number < size(); ++number) {
    const uint64_t hash = HashBytes(Bytes(number));
    slots_[FindSlot(Bytes(number), hash)] = {TagOf(hash), number};
  }
}

}  // namespace k3
