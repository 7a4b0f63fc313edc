#pragma once
// Backward kernels of Kimi Delta Attention: plain functions for one SIMD target, as in kernels.h,
// with its promises. A head's channels are padded to a multiple of 16 here, a chunk to 16 rows:
// padding has q = k = v = beta = 0 and a decay of 1, which leaves state and gradients as they are.
// Source: technical report, Kimi Delta Attention; the formulas stand in kda_backward.cc.

#include <cstdint>

namespace k3::kernels {

/// One whole chunk of one head as the forward kernel left it (KdaHead), and its gradients.
/// dk = key_dim and dv = value_dim are multiples of 16, value_stride = dv.
struct KdaChunkBackward {
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  const float* state = nullptr;  // S at the start of the chunk [dk, dv]
  const float* decay = nullptr;  // [16, dk] cumulative
  const float* keys = nullptr;   // bounded: k / decay, transposed [dk, 16]; unbounded: k [16, dk]
  const float* alpha = nullptr;  // unbounded only, [16, dk]
  const float* q = nullptr;      // unbounded only, [16, dk]
  const float* u = nullptr;      // [16, dv]
  const float* beta = nullptr;   // [16]
  const float* appended = nullptr;  // the scratch of the `append` of these 16 rows
  float* dstate = nullptr;  // [dk, dv]: in by the state at the end, out by the one at the start
  float* dy = nullptr;      // [32, dv]: the lower half is the gradient of o; the upper is scratch
  float* dq = nullptr;      // [16, dk]
  float* dk = nullptr;      // [16, dk]
  float* dg = nullptr;      // [16, dk], by the logarithm of alpha
  float* dv = nullptr;      // [16, dv]
  float* dbeta = nullptr;   // [16]
};

struct KdaBackwardKernels {
  /// Of `append` and `fold` over a chunk. `scratch` holds KdaBackwardScratchFloats.
  void (*chunk)(const KdaChunkBackward& chunk, float* scratch);
  /// Of gated_rms_norm: its result y once more, dx, dgate, dw +=. dgate may be dy.
  void (*gated_rms_norm)(const float* x, const float* w, const float* gate, const float* dy,
                         int64_t n, float eps, float* y, float* dx, float* dgate, float* dw);
  /// Of l2_norm (with `scale`; none where scale is 0) after conv_silu, up to the convolution's sum:
  /// dsum. Arguments as there; dy is the gradient of the normed row. `scratch` holds n floats.
  void (*silu_norm)(const float* const* u, const float* w, int64_t ldw, int64_t taps, int64_t n,
                    float eps, float scale, const float* dy, float* dsum, float* scratch);
  /// Of the causal convolution over `rows` tokens. dsum [rows + taps - 1, ldsum]: these tokens'
  /// and those behind them; u [taps - 1 + rows]: rows from taps - 1 tokens before the first on.
  /// du [rows, n] at stride ldu; dw [taps, n] at stride lddw, += .
  void (*convolution)(const float* dsum, int64_t ldsum, const float* const* u, int64_t rows,
                      const float* w, int64_t ldw, int64_t taps, int64_t n, float* du, int64_t ldu,
                      float* dw, int64_t lddw);
  /// Of the logarithm of bounded_decay: draw, dbias += , drate [16 lanes] += from dg.
  void (*bounded_decay)(const float* raw, const float* bias, float rate, float lower_bound,
                        const float* dg, int64_t n, float* draw, float* dbias, float* drate);
  /// Likewise of unbounded_decay.
  void (*unbounded_decay)(const float* raw, const float* bias, float rate, const float* dg,
                          int64_t n, float* draw, float* dbias, float* drate);
};

/// Both dimensions are multiples of 16.
constexpr int64_t KdaBackwardScratchFloats(int64_t key_dim, int64_t value_dim) {
  return (7 * 16 + 1) * key_dim + 4 * 16 * value_dim + 5 * 16 * 16;
}

}  // namespace k3::kernels
