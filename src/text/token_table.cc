#include "text/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace k3 {
namespace {

constexpr size_t kSlotsMin = 16;

uint64_t Mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

}  // namespace

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

void TokenTable::Reserve(int64_t tokens, int64_t bytes) {
  arena_.reserve(static_cast<size_t>(bytes));
  begins_.reserve(static_cast<size_t>(tokens) + 1);
  const size_t slots = std::max(kSlotsMin, std::bit_ceil(static_cast<size_t>(tokens) * 2));
  if (slots > slots_.size()) Grow(slots);
}

int32_t TokenTable::Append(std::string_view bytes) {
  if (slots_.size() < 2 * begins_.size()) Grow(std::max(kSlotsMin, 2 * slots_.size()));
  const TokenKey key(bytes);
  const size_t slot = FindSlot(bytes, key);
  if (slots_[slot].number_and_one != 0) return kNotFound;
  const auto number = static_cast<int32_t>(size());
  Fill(slot, key, number);
  arena_ += bytes;
  begins_.push_back(static_cast<int64_t>(arena_.size()));
  longest_bytes_ = std::max(longest_bytes_, static_cast<int64_t>(bytes.size()));
  if (bytes.size() == 1) byte_numbers_[static_cast<uint8_t>(bytes[0])] = number;
  if (bytes.size() == 2) {
    if (pair_numbers_.empty()) pair_numbers_.resize(size_t{1} << 16, kNotFound);
    pair_numbers_[PairIndex(static_cast<uint8_t>(bytes[0]), static_cast<uint8_t>(bytes[1]))] =
        number;
  }
  return number;
}

void TokenTable::Fill(size_t slot, const TokenKey& key, int32_t number) {
  slots_[slot] = {key.head, key.tail, number + 1};
  const FilterBit bit = FilterBitOf(key);
  filter_[bit.word] |= bit.mask;
}

void TokenTable::Grow(size_t slots) {
  slots_.assign(slots, Slot{});
  filter_.assign(slots / 16, 0);
  for (int32_t number = 0; number < size(); ++number) {
    const TokenKey key(Bytes(number));
    Fill(FindSlot(Bytes(number), key), key, number);
  }
}

}  // namespace k3
