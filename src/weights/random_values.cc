#include "weights/random_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "base/fnv1a.h"
#include "base/random.h"
#include "tensor/number_formats.h"

namespace k3 {
namespace {

constexpr int64_t kQuantiles = 65'536;
constexpr int64_t kCodeQuantiles = 256;
constexpr int64_t kBlockCodeBytes = kMxfp4BlockSize / 2;
/// MXFP4 blocks that share one seeding: those of one chunk of codes.
constexpr int64_t kUnitBlocks = kRandomChunkBytes / kBlockCodeBytes;

/// xoshiro256++ (Blackman and Vigna, 2019): 64 bits in about a nanosecond.
class ChunkGenerator {
 public:
  ChunkGenerator(uint64_t seed, uint64_t stream, int64_t chunk) {
    Random random(seed, stream);
    random.Seek(static_cast<uint64_t>(chunk) * 2 * state_.size());
    for (uint64_t& word : state_) word = random.NextUint64();
  }
  uint64_t Next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

 private:
  std::array<uint64_t, 4> state_;
};

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// The values x_i with CDF(x_i) = (i + 1/2) / 65536.
std::vector<float> NormalQuantiles() {
  std::vector<float> quantiles(kQuantiles);
  double x = 0;
  for (size_t i = kQuantiles / 2; i < kQuantiles; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
    // The CDF is concave here, so Newton's steps from the last, smaller quantile never overshoot.
    for (int step = 0; step < 6; ++step) {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
      x += (p - NormalCdf(x)) / density;
    }
    quantiles[i] = static_cast<float>(x);
    quantiles[kQuantiles - 1 - i] = -static_cast<float>(x);
  }
  return quantiles;
}

/// Magnitude code that packing gives `x`, counted in units of the block's scale.
uint8_t MagnitudeCode(double x) {
  constexpr std::array<double, 7> kMidpoints = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
  return static_cast<uint8_t>(std::upper_bound(kMidpoints.begin(), kMidpoints.end(), x) -
                              kMidpoints.begin());
}

/// Codes of values N(0, sigma^2) below the block's largest magnitude, 8 scale units: one byte
/// for 16 random bits.
std::vector<uint8_t> CodePairs(double sigma_in_units, std::span<const float> normal) {
  std::array<uint8_t, kCodeQuantiles> codes{};
  const double inside = 2 * NormalCdf(8 / sigma_in_units) - 1;
  for (size_t i = 0; i < kCodeQuantiles / 2; ++i) {
    const double p = 2 * (static_cast<double>(i) + 0.5) / kCodeQuantiles;
    const size_t at = static_cast<size_t>((0.5 + 0.5 * inside * p) * kQuantiles);
    const uint8_t code = MagnitudeCode(static_cast<double>(normal[at]) * sigma_in_units);
    codes[i] = code;
    codes[i + kCodeQuantiles / 2] = code | 8;
  }
  std::vector<uint8_t> pairs(kQuantiles);
  for (size_t bits = 0; bits < pairs.size(); ++bits) {
    pairs[bits] =
        static_cast<uint8_t>(codes[bits % kCodeQuantiles] | codes[bits / kCodeQuantiles] << 4);
  }
  return pairs;
}

void FillScales(const Mxfp4Law& law, ChunkGenerator random, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); i += 4) {
    uint64_t bits = random.Next();
    for (size_t j = i; j < std::min(i + 4, out.size()); ++j, bits >>= 16) {
      out[j] = law.scales[bits & 0xFFFF];
    }
  }
}

void FillCodes(const RandomSpec& spec, int64_t chunk, std::span<std::byte> out) {
  std::array<uint8_t, kUnitBlocks> scales;
  const size_t blocks = out.size() / kBlockCodeBytes;
  FillScales(*spec.mxfp4, ChunkGenerator(spec.seed, spec.scale_stream, chunk),
             std::span(scales).first(blocks));
  ChunkGenerator random(spec.seed, spec.stream, chunk);
  std::byte* at = out.data();
  for (size_t block = 0; block < blocks; ++block) {
    const Mxfp4Law::Codes& codes = spec.mxfp4->codes[scales[block] - spec.mxfp4->scale_min];
    for (int word = 0; word < 4; ++word) {
      uint64_t bits = random.Next();
      for (int i = 0; i < 4; ++i, bits >>= 16) {
        *at++ = std::byte{codes.pairs[bits & 0xFFFF]};
      }
    }
    // The scale says that the largest magnitude is 4 to 8 units: put one there, or the tails of
    // the normal law would be missing.
    const uint64_t bits = random.Next();
    const uint32_t code = (bits & 0xFFFF) < codes.six_below ? 6u : 7u;
    const uint32_t nibble = code | (bits >> 16 & 8);
    std::byte& pair = *(at - kBlockCodeBytes + static_cast<ptrdiff_t>(bits >> 20 & 15));
    const bool high = (bits >> 24 & 1) != 0;
    pair = (pair & std::byte{high ? uint8_t{0x0F} : uint8_t{0xF0}}) |
           static_cast<std::byte>(high ? nibble << 4 : nibble);
  }
}

}  // namespace

uint64_t StreamOfName(std::string_view name) {
  Fnv1a hash;
  hash.AddText(name);
  return hash.hash();
}

RandomFiller::RandomFiller() : normal_(NormalQuantiles()) {}

const Mxfp4Law* RandomFiller::PrepareMxfp4(float sigma) {
  std::unique_ptr<Mxfp4Law>& slot = laws_[sigma];
  if (slot != nullptr) return slot.get();
  slot = std::make_unique<Mxfp4Law>();
  // The largest of 32 magnitudes lies below t with probability erf(t / (sigma sqrt 2))^32; its
  // power of two is the scale's plus 2.
  const auto below = [&](int exponent) {
    return std::pow(2 * NormalCdf(std::ldexp(1.0, exponent + 3) / sigma) - 1, kMxfp4BlockSize);
  };
  slot->scales.resize(kQuantiles);
  int exponent = -127;
  for (size_t i = 0; i < slot->scales.size(); ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
    while (exponent < 126 && below(exponent) < p) ++exponent;
    slot->scales[i] = static_cast<uint8_t>(exponent + 127);
  }
  slot->scale_min = slot->scales.front();
  for (int scale = slot->scale_min; scale <= slot->scales.back(); ++scale) {
    const double in_units = std::ldexp(double{sigma}, 127 - scale);
    const auto tail = [&](double x) { return NormalCdf(-x / in_units); };
    // 5 units are the midpoint between the two largest codes, 4 and 6.
    const double six = (tail(4) - tail(5)) / (tail(4) - tail(8));
    slot->codes.push_back({CodePairs(in_units, normal_), static_cast<uint32_t>(six * 65'536)});
  }
  return slot.get();
}

void RandomFiller::FillFloats(const RandomSpec& spec, int64_t chunk,
                              std::span<std::byte> out) const {
  ChunkGenerator random(spec.seed, spec.stream, chunk);
  const bool normal = spec.law == RandomSpec::Law::kNormal;
  const int64_t element_bytes = DTypeBytes(spec.dtype);
  const int64_t count = std::ssize(out) / element_bytes;
  const int64_t live =
      std::clamp<int64_t>(spec.live_count - chunk * (kRandomChunkBytes / element_bytes), 0, count);
  std::byte* at = out.data();
  // Drawn in small batches, so that the loop over one type vectorises.
  constexpr int64_t kBatch = 256;
  std::array<float, kBatch> values;
  for (int64_t done = 0; done < live; done += kBatch) {
    for (size_t i = 0; i < values.size(); i += 4) {
      uint64_t bits = random.Next();
      for (size_t j = i; j < i + 4; ++j, bits >>= 16) {
        const uint64_t index = bits & 0xFFFF;
        values[j] = normal ? normal_[index] : (static_cast<float>(index) + 0.5f) * 0x1p-16f;
      }
    }
    const size_t batch = static_cast<size_t>(std::min(kBatch, live - done));
    for (size_t i = 0; i < batch; ++i) values[i] = spec.center + spec.spread * values[i];
    if (spec.dtype == DType::kBF16) {
      std::array<uint16_t, kBatch> rounded;
      for (size_t i = 0; i < values.size(); ++i) rounded[i] = FloatToBf16(values[i]);
      std::memcpy(at, rounded.data(), batch * sizeof(uint16_t));
    } else {
      std::memcpy(at, values.data(), batch * sizeof(float));
    }
    at += static_cast<int64_t>(batch) * element_bytes;
  }
  std::fill(at, out.data() + out.size(), std::byte{0});
}

void RandomFiller::Fill(const RandomSpec& spec, int64_t chunk, std::span<std::byte> out) const {
  K3_CHECK(std::ssize(out) <= kRandomChunkBytes, "larger than a chunk");
  switch (spec.law) {
    case RandomSpec::Law::kNormal:
    case RandomSpec::Law::kUniform:
      FillFloats(spec, chunk, out);
      return;
    case RandomSpec::Law::kMxfp4Codes:
      FillCodes(spec, chunk, out);
      return;
    case RandomSpec::Law::kMxfp4Scales: {
      // Scales are drawn unit by unit, as the chunks of codes draw them again.
      const int64_t first_unit = chunk * (kRandomChunkBytes / kUnitBlocks);
      uint8_t* bytes = reinterpret_cast<uint8_t*>(out.data());
      for (int64_t done = 0, unit = first_unit; done < std::ssize(out);
           done += kUnitBlocks, ++unit) {
        const int64_t count = std::min(kUnitBlocks, std::ssize(out) - done);
        FillScales(*spec.mxfp4, ChunkGenerator(spec.seed, spec.stream, unit),
                   {bytes + done, static_cast<size_t>(count)});
      }
      return;
    }
  }
}

}  // namespace k3
