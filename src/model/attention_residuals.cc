#include "model/attention_residuals.h"

#include <cstring>

#include "base/arithmetic.h"
#include "ops/rows.h"

namespace k3::model {

AttentionResiduals::AttentionResiduals(const ops::ExecContext& exec, const Options& options)
    : exec_(exec), options_(options) {
  const int64_t floats = options.tokens * options.width;
  const int64_t blocks = options.block > 0 ? CeilDivide(options.layers, options.block) : 0;
  Arena& sums = options.keep != nullptr ? *options.keep : *exec.arena;
  prefix_ = sums.Allocate<float>(floats);
  mixed_ = exec.arena->Allocate<float>(floats);
  // Kept, every sublayer leaves a sum of its own; else each block has one.
  const int64_t spare = options.keep != nullptr ? 2 * options.layers : blocks;
  spare_ = sums.Allocate<float>(spare * floats);
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
  restart_ = true;
}

void AttentionResiduals::Add(const float* output) {
  const int64_t floats = options_.tokens * options_.width;
  const float* from = prefix_;
  if (restart_ || options_.keep != nullptr) {
    prefix_ = spare_;
    spare_ += floats;
  }
  if (restart_) {
    std::memcpy(prefix_, output, static_cast<size_t>(floats) * sizeof(float));
    restart_ = false;
    return;
  }
  if (prefix_ != from) std::memcpy(prefix_, from, static_cast<size_t>(floats) * sizeof(float));
  ops::AddRows(exec_, output, options_.tokens, options_.width, prefix_);
}

AttentionResidualsBackward::AttentionResidualsBackward(const ops::ExecContext& exec,
                                                       const AttentionResiduals::Options& options,
                                                       std::span<const float* const> bank)
    : exec_(exec), options_(options), sources_(bank.begin(), bank.end()) {
  const int64_t floats = options.tokens * options.width;
  const auto zeroed = [&] {
    float* sum = exec.arena->Allocate<float>(floats);
    std::memset(sum, 0, static_cast<size_t>(floats) * sizeof(float));
    return sum;
  };
  prefix_ = zeroed();
  for (size_t i = 0; i < bank.size(); ++i) gradients_.push_back(zeroed());
}

void AttentionResidualsBackward::Input(const float* prefix, std::span<const float> mix,
                                       std::span<const float> norm, float* x) {
  const float* h = prefix;
  if (!sources_.empty()) {
    sources_.push_back(prefix);
    ops::MixSources(exec_, sources_, mix, options_.eps, options_.tokens, x);
    sources_.pop_back();
    h = x;
  }
  exec_.pool->ParallelFor(options_.tokens, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = t * options_.width;
      exec_.kernels->elementwise.rms_norm(h + at, norm.data(), options_.width, options_.eps,
                                          x + at);
    }
  });
}

void AttentionResidualsBackward::Mix(const float* prefix, std::span<const float> mix,
                                     std::span<const float> norm, const float* dx,
                                     std::span<float> dmix, std::span<float> dnorm) {
  const bool alone = sources_.empty();
  sources_.push_back(prefix);
  gradients_.push_back(prefix_);
  ops::MixNormBackward(exec_,
                       {.sources = sources_,
                        .mix = alone ? std::span<const float>() : mix,
                        .norm = norm,
                        .eps = options_.eps},
                       options_.tokens, dx, {.sources = gradients_, .mix = dmix, .norm = dnorm});
  sources_.pop_back();
  gradients_.pop_back();
}

void AttentionResidualsBackward::CloseBlock(int64_t layer) {
  if (options_.block == 0 || layer % options_.block != 0) return;
  // The running sum before this layer went into the bank and nowhere else.
  prefix_ = gradients_.back();
  gradients_.pop_back();
  sources_.pop_back();
}

}  // namespace k3::model
