#pragma once
// Muon: momentum whose update is made orthogonal by Newton-Schulz steps, for weight matrices; "per
// head" when a matrix is given as blocks of rows that are orthogonalised each by itself, so that a
// head with large gradients does not take the others' share.
//
//   Muon muon(&pool, &kernels, options);           // keeps scratch between calls
//   muon.Step({.rows = q_rows, .cols = rank, .block_rows = {192}}, gradient, lr, momentum,
//   weights);
//
//   M <- mu M + G;  U = M, or with Nesterov G + mu M
//   O = NewtonSchulz(U) * 0.2 sqrt(max(block rows, cols));  W <- W - lr (O + wd W)
//   NewtonSchulz: X = U / (||U|| + eps); five times A = X X^T, X <- a X + (b A + c A A) X
//
// A block with more rows than columns is transposed, so that A has the smaller side. The factor
// 0.2 sqrt(max) gives the update of a block of full rank a root mean square of about 0.2.
//
// float32, row-major. Every element is one sum in an order that depends on its block's shape alone:
// the same bits for any number of threads, and for a block inside a matrix or alone. The caller
// owns the arrays; one thread calls, the pool's workers compute; the pool outlives this.
// Scratch is three times the largest matrix and two squares of each block's smaller side. A wrong
// size is a broken invariant (K3_CHECK). A gradient that is not finite spoils its whole block: the
// caller looks for that first. Sources: technical report, section 2.5 (per head); Jordan et al.,
// "Muon" (2024; coefficients); Liu et al., "Muon is scalable for LLM training" (2025; the scale and
// the decay). The coefficients and mu of K3 itself are not published.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "sys/thread_pool.h"

namespace k3::train {

struct MuonOptions {
  float momentum = 0.95f;
  bool nesterov = true;
  float weight_decay = 0.1f;
  float update_rms = 0.2f;
  int iterations = 5;
};

/// A matrix and its blocks of rows. The pattern repeats down the matrix and has to end with it:
/// {192} for query heads, {128, 128} for keys and values in turn; empty for one whole matrix.
struct MuonShape {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int64_t> block_rows;
};

class Muon {
 public:
  Muon(ThreadPool* pool, const kernels::KernelTable* kernels, const MuonOptions& options);
  ~Muon();
  Muon(const Muon&) = delete;
  Muon& operator=(const Muon&) = delete;

  /// One step of one matrix; gradient, momentum, weights [rows, cols], momentum zero at first.
  void Step(const MuonShape& shape, std::span<const float> gradient, float lr,
            std::span<float> momentum, std::span<float> weights);

  /// NewtonSchulz alone, unscaled: from `matrix` [rows, cols] into `out` [rows, cols].
  void Orthogonalise(const MuonShape& shape, std::span<const float> matrix, std::span<float> out);

 private:
  struct Work;

  /// From U in the scratch to its orthogonal form there.
  void NewtonSchulz();
  template <typename Fn>
  void EachRow(const Fn& fn);

  ThreadPool* pool_;
  MuonOptions options_;
  std::unique_ptr<Work> work_;
};

}  // namespace k3::train
