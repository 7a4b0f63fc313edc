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
    /// Where every running sum is kept for the backward pass; null in inference, which adds in
    /// place.
    Arena* keep = nullptr;
  };

  AttentionResiduals(const ops::ExecContext& exec, const Options& options);

  /// The running sum [T, D]. Starts as the embedding, which the caller writes here.
  float* prefix() { return prefix_; }
  /// The bank, oldest first.
  std::span<const float* const> bank() const { return sources_; }

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

/// The way back through the same sums: gradients by the running sum and by every banked one. Calls
/// mirror the forward's in reverse order: Mix, then for each layer from the last Mix (of the MLP),
/// CloseBlock and Mix (of the attention).
class AttentionResidualsBackward {
 public:
  AttentionResidualsBackward(const ops::ExecContext& exec,
                             const AttentionResiduals::Options& options,
                             std::span<const float* const> bank);

  /// Gradient by the running sum [T, D], which is also that by the last sublayer's output.
  float* prefix() { return prefix_; }
  /// RMSNorm(MIX(bank, prefix)) once more, into x [T, D].
  void Input(const float* prefix, std::span<const float> mix, std::span<const float> norm,
             float* x);
  /// Adds the gradient of RMSNorm(MIX(bank, prefix)) by its input rows, from dx [T, D].
  /// `prefix` [T, D] is the running sum as the mix saw it. `mix` and `dmix` as AttentionResiduals.
  void Mix(const float* prefix, std::span<const float> mix, std::span<const float> norm,
           const float* dx, std::span<float> dmix, std::span<float> dnorm);
  /// Call before the attention's Input and Mix. prefix() is then another array; the one before
  /// holds the gradient by the attention's output.
  void CloseBlock(int64_t layer);

 private:
  const ops::ExecContext& exec_;
  const AttentionResiduals::Options options_;
  std::vector<const float*> sources_;
  std::vector<float*> gradients_;  // of the bank
  float* prefix_;
};

}  // namespace k3::model
