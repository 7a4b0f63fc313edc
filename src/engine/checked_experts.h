#pragma once
// CheckedExperts: routed experts in mapped memory, whose MXFP4 scales are checked before first use.
//
// A scale byte of 255 is NaN; the checkpoint is refused. Scales are 1/17 of an expert's bytes. Up
// to kEagerScaleBytes of them are checked at load, on all threads; beyond that (the released model
// has 85 GB) an expert is checked when a token first chooses it. One pass at a time.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/batch.h"
#include "model/parameters.h"
#include "sys/thread_pool.h"
#include "weights/weights.h"

namespace k3 {

class CheckedExperts : public model::ExpertSource {
 public:
  static constexpr int64_t kEagerScaleBytes = int64_t{1} << 30;

  /// `parameters` were bound from `weights`; they and its checkpoint must outlive this.
  CheckedExperts(const WeightStore& weights, const model::Parameters& parameters);

  /// Checks everything now if it is not too much. Corruption names the expert's tensor and row.
  Status CheckAtLoad(ThreadPool& pool);

  Status Prepare(int64_t layer, std::span<const int32_t> experts) override;

 private:
  Status Check(int64_t layer, int64_t expert) const;

  const WeightStore weights_;  // a view of the checkpoint, for names and places
  const model::Parameters& parameters_;
  std::vector<std::vector<bool>> checked_;  // [layers][experts]
};

}  // namespace k3
