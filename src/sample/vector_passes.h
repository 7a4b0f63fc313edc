#pragma once
// The passes over a whole vocabulary that a draw is made of, as SIMD code for each target. The
// exponentials are the operations of ExpNonPositive on every lane, none of them fused, sums are in
// order, and everything else compares and moves: all targets give the same bits. Pure, any thread;
// arrays are the caller's and do not overlap.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace k3 {

/// A sum over many weights also notes where it stands before each block of so many, so that a draw
/// finds its place without adding all again.
inline constexpr int64_t kSumBlock = 64;
constexpr int64_t SumBlocksCount(int64_t count) { return (count + kSumBlock - 1) / kSumBlock; }

/// A token's place in the order of the filters: smaller is better. The high half falls as the logit
/// rises, the low half is the id.
uint64_t OrderKey(float logit, int64_t id);

struct VectorPasses {
  /// weights[i] = exp((x[i] - x_max) * scale) for x [n], weights [n], scale >= 0 and no x above
  /// x_max; -infinity gives 0. Returns the sum in order of i; sums[b], [SumBlocksCount(n)], is that
  /// of all before block b.
  double (*exp_differences)(std::span<const float> x, float x_max, double scale, double* weights,
                            double* sums);
  /// The greatest x, or +infinity when one of them is not below it (NaN).
  float (*greatest)(std::span<const float> x);
  /// keys becomes the order keys of the tokens with weights[i] >= least, by rising id; there is
  /// room for n. Returns how many they are.
  int64_t (*list_heavy)(std::span<const float> logits, const double* weights, double least,
                        uint64_t* keys);
  /// The least and the greatest of the keys, of which there is at least one.
  std::pair<uint64_t, uint64_t> (*min_max)(std::span<const uint64_t> keys);
  /// Leaves the keys with (key - least) >> shift == bucket, in their order, and returns how many.
  int64_t (*keep_bucket)(std::span<uint64_t> keys, uint64_t least, int shift, uint64_t bucket);
  /// weights[i] becomes 0 unless x[i] >= least and weights[i] >= least_weight. Returns whether any
  /// remains as it was.
  bool (*zero_below)(std::span<const float> x, float least, double least_weight, double* weights);
};

/// One table for each SIMD target that this processor has, the widest first.
std::vector<VectorPasses> VectorPassesTargets();
/// The first of them.
const VectorPasses& BestVectorPasses();

}  // namespace k3
