#pragma once
// A counter-based random generator: the n-th number of a stream depends on (seed, stream, n) alone,
// so any part of a random checkpoint or a sampled answer can be made again, in any order and on
// any thread. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

#include <array>
#include <cstdint>

namespace k3 {

/// Four independent 32-bit words for one counter value.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A position in one stream. Copy it to replay; two streams of one seed never overlap.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint32_t NextUint32();
  uint64_t NextUint64();
  /// Uniform in [0, 1), 24 bits.
  float NextFloat();
  /// Uniform in [0, 1), 53 bits.
  double NextDouble();
  /// Standard normal (Box-Muller, two uniforms a value).
  float NextNormal();
  /// Uniform in [0, bound). bound > 0.
  uint64_t NextBelow(uint64_t bound);
  /// Jumps so that the next 32-bit word is number `index` of the stream.
  void Seek(uint64_t index) { index_ = index; }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_ = 0;
  uint64_t block_at_ = ~uint64_t{0};
  std::array<uint32_t, 4> block_{};
};

}  // namespace k3
