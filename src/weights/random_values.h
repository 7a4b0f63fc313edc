#pragma once
// Random bytes of stored tensors, fast: a chunk of a tensor is filled from a generator of its own,
// seeded by k3::Random(seed, stream of the tensor) at the chunk's place, so that the bytes depend
// on neither order, threads nor shards. Normal values come from a table of 65,536 quantiles
// (bfloat16 has no more values than that), MXFP4 codes from tables of the law that packing normal
// values has.
//
// Filling is const and may run on any threads; preparing tables is for one. Nothing fails.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace k3 {

/// Chunks of every stored tensor have this size; the last may be shorter.
inline constexpr int64_t kRandomChunkBytes = int64_t{256} << 10;

/// How MXFP4 blocks of 32 values N(0, sigma^2) are distributed, as tables to look up random bits.
struct Mxfp4Law {
  struct Codes {
    std::vector<uint8_t> pairs;  // [65536] two codes, the first in the low nibble, for 16 bits
    uint32_t six_below = 0;      // 16 bits below this make the block's largest code 6, else 7
  };
  std::vector<uint8_t> scales;  // [65536] scale byte for 16 random bits
  uint8_t scale_min = 0;
  std::vector<Codes> codes;  // [scale - scale_min]
};

/// One stored tensor's law. A plain value; `mxfp4` is owned by RandomFiller.
struct RandomSpec {
  enum class Law : uint8_t { kNormal, kUniform, kMxfp4Codes, kMxfp4Scales };

  Law law = Law::kNormal;
  DType dtype = DType::kBF16;      // kBF16 or kF32; MXFP4 laws write bytes
  float center = 0;                // kNormal: mean; kUniform: low end
  float spread = 1;                // kNormal: standard deviation; kUniform: width
  int64_t live_count = INT64_MAX;  // elements from here on are zero
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t scale_stream = 0;  // kMxfp4Codes: the stream of its scales
  const Mxfp4Law* mxfp4 = nullptr;
};

/// The stream of a tensor: FNV-1a of its full name.
uint64_t StreamOfName(std::string_view name);

class RandomFiller {
 public:
  RandomFiller();

  /// The tables for one standard deviation; built once, valid while the filler lives.
  const Mxfp4Law* PrepareMxfp4(float sigma);

  /// Writes chunk number `chunk` of the tensor.
  void Fill(const RandomSpec& spec, int64_t chunk, std::span<std::byte> out) const;

 private:
  void FillFloats(const RandomSpec& spec, int64_t chunk, std::span<std::byte> out) const;

  std::vector<float> normal_;  // [65536] quantiles of N(0, 1)
  std::map<float, std::unique_ptr<Mxfp4Law>> laws_;
};

}  // namespace k3
