#pragma once
// The kernels, as tables of plain functions for one SIMD target: pointers and counts, no shape
// checks, threads, allocation or failure. The `ops` room checks and threads them.
//
//   const kernels::KernelTable& k = kernels::Kernels(BestSimdTarget());
//   k.elementwise.rms_norm(x, w, n, eps, y);
//
// Promise of all of them: every output element depends on its own inputs alone, summed in one fixed
// order, whatever the target, the alignment, or what is computed beside it. Arrays are float32
// row-major unless said; outputs must not overlap inputs unless said "in place".

#include <cstdint>

#include "kernels/kda_backward.h"
#include "kernels/target.h"
#include "tensor/weight_matrix.h"

namespace k3::kernels {

/// Row operations. n counts floats. Sums: lane l takes elements l mod 16 in order, then one tree.
struct ElementwiseKernels {
  /// y[i] = f(x[i]); x may be y.
  void (*exp)(const float* x, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*tanh)(const float* x, int64_t n, float* y);
  void (*softplus)(const float* x, int64_t n, float* y);

  float (*dot)(const float* x, const float* y, int64_t n);
  /// y = w x / sqrt(mean(x^2) + eps); x may be y.
  void (*rms_norm)(const float* x, const float* w, int64_t n, float eps, float* y);
  /// y = w x / sqrt(mean(x^2) + eps) * sigmoid(gate); x may be y. KDA's output norm and gate.
  void (*gated_rms_norm)(const float* x, const float* w, const float* gate, int64_t n, float eps,
                         float* y);
  /// y = scale x / sqrt(sum(x^2) + eps); x may be y.
  void (*l2_norm)(const float* x, int64_t n, float eps, float scale, float* y);
  /// y = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta); a linear_beta
  /// of 0 leaves `up` as it is. y may be gate or up.
  void (*situ)(const float* gate, const float* up, int64_t n, float beta, float linear_beta,
               float* y);
  /// y = x sigmoid(gate); x may be y.
  void (*sigmoid_gate)(const float* x, const float* gate, int64_t n, float* y);
  /// y += x; y = a x + y.
  void (*add)(const float* x, int64_t n, float* y);
  void (*scaled_add)(float a, const float* x, int64_t n, float* y);
  /// y = a x; x may be y.
  void (*scale)(float a, const float* x, int64_t n, float* y);
  /// y[c] = SiLU(sum_j w[j][c] u[j][c]), taps in order; `taps` rows of u, each at its own address.
  /// w [taps, n] at stride ldw.
  void (*conv_silu)(const float* const* u, const float* w, int64_t ldw, int64_t taps, int64_t n,
                    float* y);
  /// Decay of KDA's bounded gate: y = exp(lower_bound sigmoid(rate (raw + bias))). In (0, 1).
  void (*bounded_decay)(const float* raw, const float* bias, float rate, float lower_bound,
                        int64_t n, float* y);
  /// Decay of the unbounded gate: y = exp(-rate softplus(raw + bias)).
  void (*unbounded_decay)(const float* raw, const float* bias, float rate, int64_t n, float* y);
  /// In place: x = exp(scale x - max), returns the largest scale x in *max and the sum of the
  /// exponentials in *sum. n >= 1. With every x at -infinity, x = 0, *sum = 0.
  void (*exp_block)(float* x, int64_t n, float scale, float* max, float* sum);
  /// One query of an attention-residual mix: the score of a source, w . x / sqrt(mean(x^2) + eps).
  float (*mix_score)(const float* x, const float* w, int64_t n, float eps);
  /// y = sum_i p[i] source[i], sources in order.
  void (*weighted_sum)(const float* const* sources, const float* p, int64_t count, int64_t n,
                       float* y);
  /// One stored row of any format as float32, y [w.cols]; exact.
  void (*widen)(const WeightMatrix& w, int64_t row, float* y);
};

/// Rows prepared for the linear kernels: every block of 32 elements as its 16 even ones and then
/// its 16 odd ones, zero-padded to whole blocks. So bf16 pairs and MXFP4 nibbles meet their
/// activations without a shuffle.
inline constexpr int64_t kSplitBlock = 32;
/// The tile of the panel kernel: activation rows and weight rows.
inline constexpr int64_t kTileRows = 6;
inline constexpr int64_t kTileCols = 4;

/// y[t][r] = sum_k x[t][k] w[r][k]. Lane l takes elements 2l and 2l+1 of every block of 32, in
/// order, then one tree: `direct` and `tile` give the same bits.
struct LinearKernels {
  /// x [k] -> out [RoundUp(k, 32)], split.
  void (*split_row)(const float* x, int64_t k, float* out);
  /// Straight from the stored rows. x: `rows` (1 to 6) split rows; w: `w.rows` weight rows;
  /// y[t * ldy + r].
  void (*direct)(const float* const* x, int64_t rows, const WeightMatrix& w, float* y, int64_t ldy);
  /// y[t] [RoundUp(w.cols, 32)], split: sum_r x[t][r] w[r][c], one chain over w's rows in ascending
  /// order for each c. Straight from the stored rows. x: any number of rows of w.rows floats; y at
  /// stride ldy.
  void (*weighted_rows)(const float* const* x, int64_t rows, const WeightMatrix& w, float* y,
                        int64_t ldy);
  /// The sums of `direct` with float32 "weights" that are already split rows: y[t * ldy + r] = x[t]
  /// . b[r], b [n, k_padded] at stride ldb, any number of rows on both sides.
  void (*dot_rows)(const float* x, int64_t ldx, int64_t rows, const float* b, int64_t ldb,
                   int64_t n, int64_t k_padded, float* y, int64_t ldy);
  /// `rows` (1 to 6) split rows of k_padded floats, at x[i], into a panel [k_padded/16][rows][16].
  void (*pack_rows)(const float* const* x, int64_t rows, int64_t k_padded, float* panel);
  /// Four weight rows from row `first` on into a float32 panel [k_padded/16][4][16]; rows beyond
  /// the matrix are zero.
  void (*pack_weights)(const WeightMatrix& w, int64_t first, float* panel);
  /// One tile of panels, `steps` = k_padded / 16. y[t * ldy + r * incy] for `rows` by `cols`.
  void (*tile)(const float* x_panel, const float* w_panel, int64_t steps, int64_t rows,
               int64_t cols, float* y, int64_t ldy, int64_t incy);
};

/// c (+)= a b with b's rows contiguous: every c[i][j] is one chain of fused multiply-adds over k in
/// ascending order, started from 0 or from the old c.
struct MatMulKernels {
  /// a [m, k] at stride lda, b [k, n] at stride ldb, c [m, n] at stride ldc.
  void (*f32)(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
              int64_t n, bool accumulate, float* c, int64_t ldc);
  /// f32 without accumulating, which asks the memory for `ahead_floats` from `ahead` on while it
  /// computes. Nothing is read there.
  void (*f32_ahead)(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
                    int64_t n, float* c, int64_t ldc, const float* ahead, int64_t ahead_floats);
  /// f32 with a transposed: a [k, m] at stride lda.
  void (*f32_tn)(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t k,
                 int64_t n, bool accumulate, float* c, int64_t ldc);
};

/// Gradients of the row operations above, for training; dy is the gradient of their result. Sums as
/// there. "+=" adds to what stands there, everything else is overwritten.
struct BackwardKernels {
  /// Of rms_norm: dx, dw += . dx may be dy.
  void (*rms_norm)(const float* x, const float* w, const float* dy, int64_t n, float eps, float* dx,
                   float* dw);
  /// Of situ: its result y once more, and both gradients. dgate may be gate, dup may be up, y may
  /// be dy.
  void (*situ)(const float* gate, const float* up, const float* dy, int64_t n, float beta,
               float linear_beta, float* y, float* dgate, float* dup);
  /// Of sigmoid_gate: its result y once more, and both gradients. dgate may be gate, y may be x, dx
  /// may be dy.
  void (*sigmoid_gate)(const float* x, const float* gate, const float* dy, int64_t n, float* y,
                       float* dx, float* dgate);
  /// Of one source of a mix with weight p and score gradient ds: dx += p dy + ds d(score)/dx,
  /// dw += ds d(score)/dw.
  void (*mix_source)(const float* x, const float* w, const float* dy, int64_t n, float eps, float p,
                     float ds, float* dx, float* dw);
};

/// One head's open chunk of KDA (kda.cc). dv is padded to value_stride, a multiple of 16.
struct KdaHead {
  int64_t key_dim = 0;    // dk
  int64_t value_dim = 0;  // dv
  int64_t value_stride = 0;
  const float* state = nullptr;  // S [dk, value_stride], as it was at the start of the chunk
  float* decay = nullptr;        // [16, dk] cumulative decay of every open row
  float* keys = nullptr;         // bounded: k / decay, transposed [dk, 16]; unbounded: k [16, dk]
  float* alpha = nullptr;        // unbounded only: the decay of every open row, [16, dk]
  float* u = nullptr;            // [16, value_stride]
};

struct KdaRows {
  int64_t first = 0;  // row of the chunk, 0 to 15
  int64_t count = 0;  // first + count <= 16
  // Rows of the new tokens: q (scaled), k [count, dk] at stride key_ld, alpha likewise;
  // v and o [count, dv] at stride value_ld; beta [count] at stride beta_ld.
  const float* q = nullptr;
  const float* k = nullptr;
  const float* alpha = nullptr;
  int64_t key_ld = 0;
  int64_t alpha_ld = 0;
  const float* v = nullptr;
  int64_t v_ld = 0;
  const float* beta = nullptr;
  int64_t beta_ld = 0;
  float* o = nullptr;
  int64_t o_ld = 0;
};

struct KdaKernels {
  /// Appends rows to the open chunk and computes their outputs. `scratch` holds KdaScratchFloats;
  /// what a call of 16 rows leaves in it, the backward kernel reads (kda_backward.h).
  void (*append)(const KdaHead& head, const KdaRows& rows, float* scratch);
  /// Folds a full chunk of 16 rows into the state.
  void (*fold)(const KdaHead& head, float* state, float* scratch);
};
inline constexpr int64_t kKdaChunk = 16;
/// Floats of scratch for one head at a time.
constexpr int64_t KdaScratchFloats(int64_t key_dim, int64_t value_stride) {
  return 2 * kKdaChunk * (key_dim + value_stride + kKdaChunk) + 2 * kKdaChunk * key_dim;
}

struct KernelTable {
  SimdTarget target = SimdTarget::kScalar;
  ElementwiseKernels elementwise;
  LinearKernels linear;
  MatMulKernels matmul;
  KdaKernels kda;
  BackwardKernels backward;
  KdaBackwardKernels kda_backward;
};

/// The kernels of a target. `target` must be supported by this processor.
KernelTable Kernels(SimdTarget target);

}  // namespace k3::kernels
