// Compiled once for each SIMD target; the scalar one is the fallback. Highway is used here and not
// through the kernels because sampling stands beside the network, not on top of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sample/vector_passes.cc"
// clang-format off
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "sample/exponential.h"
#include "sample/vector_passes.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3 {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DD = hn::ScalableTag<double>;
using DU = hn::ScalableTag<uint64_t>;
// As many floats as there are lanes of double.
using DF = hn::Rebind<float, DD>;
using DU32 = hn::Rebind<uint32_t, DD>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DD()));

#if HWY_TARGET != HWY_SCALAR

using V = hn::Vec<DD>;

// So many vectors go through the polynomial side by side, because each step waits for the one
// before it.
constexpr int kVectors = 8;
constexpr int64_t kGroup = kVectors * kLanes;

HWY_INLINE void ExpGroup(const float* HWY_RESTRICT x, double x_max, double scale,
                         double* HWY_RESTRICT out) {
  using E = ExpConstants;
  const DD d;
  V shifted[kVectors];
  V r[kVectors];
  V p[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    const V wide = hn::PromoteTo(d, hn::LoadU(DF(), x + j * kLanes));
    const V difference = hn::Mul(hn::Sub(wide, hn::Set(d, x_max)), hn::Set(d, scale));
    const V inside = hn::Max(difference, hn::Set(d, E::kLeast));
    shifted[j] = hn::Add(hn::Mul(inside, hn::Set(d, E::kLog2E)), hn::Set(d, E::kRound));
    const V n = hn::Sub(shifted[j], hn::Set(d, E::kRound));
    r[j] = hn::Sub(hn::Sub(inside, hn::Mul(n, hn::Set(d, E::kLn2High))),
                   hn::Mul(n, hn::Set(d, E::kLn2Low)));
    p[j] = hn::Set(d, E::kTaylor[0]);
  }
  for (size_t term = 1; term < E::kTaylor.size(); ++term) {
    const V coefficient = hn::Set(d, E::kTaylor[term]);
    for (int j = 0; j < kVectors; ++j) p[j] = hn::Add(hn::Mul(p[j], r[j]), coefficient);
  }
  for (int j = 0; j < kVectors; ++j) {
    const auto power =
        hn::ShiftLeft<52>(hn::Add(hn::BitCast(DU(), shifted[j]), hn::Set(DU(), 1023)));
    hn::StoreU(hn::Mul(p[j], hn::BitCast(d, power)), d, out + j * kLanes);
  }
}

#else  // the compiler makes vectors of this

constexpr int64_t kGroup = 16;

HWY_INLINE void ExpGroup(const float* HWY_RESTRICT x, double x_max, double scale,
                         double* HWY_RESTRICT out) {
  for (int64_t j = 0; j < kGroup; ++j) {
    out[j] = ExpNonPositive((static_cast<double>(x[j]) - x_max) * scale);
  }
}

#endif

static_assert(kSumBlock % kGroup == 0);

double ExpDifferences(std::span<const float> x, float x_max, double scale, double* weights,
                      double* sums) {
  const int64_t count = std::ssize(x);
  double sum = 0.0;
  for (int64_t start = 0; start < count; start += kSumBlock) {
    const int64_t end = std::min(start + kSumBlock, count);
    sums[start / kSumBlock] = sum;
    int64_t i = start;
    for (; i + kGroup <= end; i += kGroup) ExpGroup(x.data() + i, x_max, scale, weights + i);
    for (; i < end; ++i) weights[i] = ExpNonPositive((static_cast<double>(x[i]) - x_max) * scale);
    // The additions wait for each other, but the next block's exponentials do not wait for them.
    for (i = start; i < end; ++i) sum += weights[i];
  }
  return sum;
}

float Greatest(std::span<const float> x) {
  const hn::ScalableTag<float> d;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto infinity = hn::Set(d, kInfinity);
  auto greatest_lanes = hn::Set(d, -kInfinity);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= std::ssize(x); i += lanes) {
    const auto values = hn::LoadU(d, x.data() + i);
    if (!hn::AllTrue(d, hn::Lt(values, infinity))) return kInfinity;
    greatest_lanes = hn::Max(greatest_lanes, values);
  }
  float greatest = hn::GetLane(hn::MaxOfLanes(d, greatest_lanes));
  for (; i < std::ssize(x); ++i) {
    if (!(x[i] < kInfinity)) return kInfinity;
    greatest = std::max(greatest, x[i]);
  }
  return greatest;
}

// Stores the lanes that are kept one after the other, and returns how many they are. Instructions
// that do this are slow on some processors; here nothing depends on `kept` but where the next lane
// goes, so no branch is guessed wrong. A list never gets longer than what was read for it, so this
// stays within its room, and a list that is made in place does not run into what is to be read.
HWY_INLINE int64_t StoreKept(hn::Vec<DU> key, hn::Mask<DU> kept, uint64_t* keys) {
  if (hn::AllFalse(DU(), kept)) return 0;
  uint64_t lanes[kLanes];
  hn::StoreU(key, DU(), lanes);
  uint8_t bits[8] = {};
  hn::StoreMaskBits(DU(), kept, bits);
  int64_t count = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    keys[count] = lanes[lane];
    count += bits[0] >> lane & 1;
  }
  return count;
}

int64_t ListHeavy(std::span<const float> logits, const double* weights, double least,
                  uint64_t* keys) {
  const hn::Rebind<int32_t, DD> di;
  const auto least_lanes = hn::Set(DD(), least);
  const auto sign = hn::Set(di, INT32_MIN);
  auto ids = hn::Iota(DU(), 0);
  int64_t kept = 0;
  int64_t i = 0;
  for (; i + kLanes <= std::ssize(logits); i += kLanes) {
    // OrderKey, lane by lane.
    const auto bits = hn::BitCast(di, hn::Add(hn::LoadU(DF(), logits.data() + i), hn::Zero(DF())));
    const auto rising = hn::Xor(bits, hn::Or(hn::ShiftRight<31>(bits), sign));
    const auto high = hn::PromoteTo(DU(), hn::BitCast(DU32(), hn::Not(rising)));
    const auto key = hn::Or(hn::ShiftLeft<32>(high), ids);
    ids = hn::Add(ids, hn::Set(DU(), static_cast<uint64_t>(kLanes)));
    const auto heavy = hn::RebindMask(DU(), hn::Ge(hn::LoadU(DD(), weights + i), least_lanes));
    kept += StoreKept(key, heavy, keys + kept);
  }
  for (; i < std::ssize(logits); ++i) {
    if (weights[i] >= least) keys[kept++] = OrderKey(logits[i], i);
  }
  return kept;
}

std::pair<uint64_t, uint64_t> MinMax(std::span<const uint64_t> keys) {
  auto min_lanes = hn::Set(DU(), keys[0]);
  auto max_lanes = min_lanes;
  int64_t i = 0;
  for (; i + kLanes <= std::ssize(keys); i += kLanes) {
    const auto key = hn::LoadU(DU(), keys.data() + i);
    min_lanes = hn::Min(min_lanes, key);
    max_lanes = hn::Max(max_lanes, key);
  }
  uint64_t mins[kLanes];
  uint64_t maxs[kLanes];
  hn::StoreU(min_lanes, DU(), mins);
  hn::StoreU(max_lanes, DU(), maxs);
  uint64_t min = *std::min_element(mins, mins + kLanes);
  uint64_t max = *std::max_element(maxs, maxs + kLanes);
  for (; i < std::ssize(keys); ++i) {
    min = std::min(min, keys[i]);
    max = std::max(max, keys[i]);
  }
  return {min, max};
}

int64_t KeepBucket(std::span<uint64_t> keys, uint64_t least, int shift, uint64_t bucket) {
  const auto least_lanes = hn::Set(DU(), least);
  const auto bucket_lanes = hn::Set(DU(), bucket);
  int64_t kept = 0;
  int64_t i = 0;
  for (; i + kLanes <= std::ssize(keys); i += kLanes) {
    const auto key = hn::LoadU(DU(), keys.data() + i);
    const auto its_bucket = hn::ShiftRightSame(hn::Sub(key, least_lanes), shift);
    kept += StoreKept(key, hn::Eq(its_bucket, bucket_lanes), keys.data() + kept);
  }
  for (; i < std::ssize(keys); ++i) {
    if ((keys[i] - least) >> shift == bucket) keys[kept++] = keys[i];
  }
  return kept;
}

bool ZeroBelow(std::span<const float> x, float least, double least_weight, double* weights) {
  const auto least_lanes = hn::Set(DD(), static_cast<double>(least));
  const auto least_weight_lanes = hn::Set(DD(), least_weight);
  bool any = false;
  int64_t i = 0;
  for (; i + kLanes <= std::ssize(x); i += kLanes) {
    const auto wide = hn::PromoteTo(DD(), hn::LoadU(DF(), x.data() + i));
    const auto weight = hn::LoadU(DD(), weights + i);
    const auto kept = hn::And(hn::Ge(wide, least_lanes), hn::Ge(weight, least_weight_lanes));
    hn::StoreU(hn::IfThenElseZero(kept, weight), DD(), weights + i);
    any |= !hn::AllFalse(DD(), kept);
  }
  for (; i < std::ssize(x); ++i) {
    const bool kept = x[i] >= least && weights[i] >= least_weight;
    if (!kept) weights[i] = 0.0;
    any |= kept;
  }
  return any;
}

}  // namespace

VectorPasses PassesTable() {
  return {.exp_differences = ExpDifferences,
          .greatest = Greatest,
          .list_heavy = ListHeavy,
          .min_max = MinMax,
          .keep_bucket = KeepBucket,
          .zero_below = ZeroBelow};
}

}  // namespace HWY_NAMESPACE
}  // namespace k3
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <bit>

namespace k3 {

uint64_t OrderKey(float logit, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 and +0 are one value.
  const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{~rising} << 32 | static_cast<uint64_t>(id);
}

std::vector<VectorPasses> VectorPassesTargets() {
  const int64_t supported = hwy::SupportedTargets();
  std::vector<VectorPasses> targets;
  if (supported & HWY_AVX3) targets.push_back(N_AVX3::PassesTable());
  if (supported & HWY_AVX2) targets.push_back(N_AVX2::PassesTable());
  targets.push_back(N_SCALAR::PassesTable());
  return targets;
}

const VectorPasses& BestVectorPasses() {
  // Asking the processor what it has takes longer than a thousand exponentials.
  static const VectorPasses best = VectorPassesTargets().front();
  return best;
}

}  // namespace k3
#endif  // HWY_ONCE
