#pragma once
// What this machine can do, measured in the same process as the benchmark: reading memory and
// multiplying float32 matrices, on the threads that the engine uses. The shares that `k3 bench`
// prints are parts of these.

#include <cstdint>

#include "engine/engine.h"

namespace k3::eval {

/// Bytes per second, the best of five reads of a 2 GiB buffer by all threads: larger than any
/// cache. Allocates the buffer.
double MeasureReadBandwidth(ThreadPool& pool);

struct GemmPeak {
  double own_flops = 0;     // per second, our kernel
  double onednn_flops = 0;  // 0 when the build has no oneDNN
  double best() const { return own_flops > onednn_flops ? own_flops : onednn_flops; }
};

/// The best of several float32 products of 2048 x 2048 matrices.
GemmPeak MeasureGemmPeak(ThreadPool& pool, const kernels::KernelTable& kernels);

}  // namespace k3::eval
