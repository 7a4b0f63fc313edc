#include "base/random.h"

#include <cmath>
#include <numbers>

namespace k3 {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0];
    const uint64_t p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint32_t Random::NextUint32() {
  const uint64_t block = index_ / 4;
  if (block != block_at_) {
    block_ = Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    block_at_ = block;
  }
  return block_[index_++ % 4];
}

uint64_t Random::NextUint64() {
  const uint64_t high = NextUint32();
  return high << 32 | NextUint32();
}

float Random::NextFloat() { return static_cast<float>(NextUint32() >> 8) * 0x1p-24f; }

double Random::NextDouble() { return static_cast<double>(NextUint64() >> 11) * 0x1p-53; }

float Random::NextNormal() {
  const double u = 1.0 - NextFloat();
  const double v = NextFloat();
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

uint64_t Random::NextBelow(uint64_t bound) {
  // Rejects the short last interval, so that every value is equally likely.
  const uint64_t limit = ~uint64_t{0} - ~uint64_t{0} % bound;
  uint64_t value = NextUint64();
  while (value >= limit) value = NextUint64();
  return value % bound;
}

}  // namespace k3
