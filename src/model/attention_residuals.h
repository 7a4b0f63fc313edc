#pragma once
// Attention residuals: instead of one running sum, every sublayer reads a softmax-weighted mix of
// the closed blocks' sums (the bank) and the open block's running sum.
//
//   h      = MIX(bank, prefix)                    before each sublayer; the raw prefix while the
//                                                 bank is empty
//   bank a copy of the raw prefix when layer % block == 0, after the mix; the running sum then
//   restarts from that layer's attention output alone
//   MIX: s_i = (w_norm w_query) . (V_i / rms(V_i)), p = softmax(s), result = sum p_i V_i (raw)
//
// A block size of 0 means plain residuals: h = prefix, prefix += sublayer. Source: report,
// Attention Residuals. All arrays are [T, D] in the context's arena; nothing is kept
// between tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "ops/exec_context.h"

namespace k3::model {

class AttentionResiduals {
 public:
  struct Options {
    int64_t tokens = 0;
    int64_t width = 0;
    int64_t layers = 0;
    int64_t block = 0;
    float eps = 1e-5f;
  };

  AttentionResiduals(const ops::ExecContext& exec, const Options& options);

  /// The running sum [T, D]. Starts as the embedding, which the caller writes here.
  float* prefix() { return prefix_; }

  /// The input of the next sublayer. `mix` [D] is empty for plain residuals.
  const float* Mix(std::span<const float> mix);
  /// Banks the running sum if `layer` opens a block; call between Mix and AddAttention.
  void OpenBlock(int64_t layer);
  /// Adds a sublayer's output [T, D]; the first one of a block becomes the running sum.
  void Add(const float* output);

 private:
  const ops::ExecContext& exec_;
  const Options options_;
  float* prefix_;
  float* mixed_;
  float* spare_;
  std::vector<const float*> sources_;  // the bank, oldest first
  bool restart_ = false;
};

}  // namespace k3::model
