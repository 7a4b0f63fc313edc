#include "model/attention_residuals.h"

#include <cstring>

#include "base/arithmetic.h"
#include "ops/rows.h"

namespace k3::model {

AttentionResiduals::AttentionResiduals(const ops::ExecContext& exec, const Options& options)
    : exec_(exec), options_(options) {
  const int64_t floats = options.tokens * options.width;
  const int64_t blocks = options.block > 0 ? CeilDivide(options.layers, options.block) : 0;
  prefix_ = exec.arena->Allocate<float>(floats);
  mixed_ = exec.arena->Allocate<float>(floats);
  spare_ = exec.arena->Allocate<float>(blocks * floats);
  sources_.reserve(static_cast<size_t>(blocks) + 1);
}

const float* AttentionResiduals::Mix(std::span<const float> mix) {
  if (sources_.empty()) return prefix_;
  sources_.push_back(prefix_);
  ops::MixSources(exec_, sources_, mix, options_.eps, options_.tokens, mixed_);
  sources_.pop_back();
  return mixed_;
}

void AttentionResiduals::OpenBlock(int64_t layer) {
  if (options_.block == 0 || layer % options_.block != 0) return;
  // The banked sum keeps its buffer; the running sum moves to a fresh one.
  sources_.push_back(prefix_);
  prefix_ = spare_;
  spare_ += options_.tokens * options_.width;
  restart_ = true;
}

void AttentionResiduals::Add(const float* output) {
  if (restart_) {
    std::memcpy(prefix_, output,
                static_cast<size_t>(options_.tokens * options_.width) * sizeof(float));
    restart_ = false;
    return;
  }
  ops::AddRows(exec_, output, options_.tokens, options_.width, prefix_);
}

}  // namespace k3::model
