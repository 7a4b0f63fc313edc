#pragma once
// oneDNN's float32 GEMM, the yardstick that `k3 bench` measures our own kernels against. Never used
// for inference: its sums have no fixed order. A build without oneDNN has a stub that says so.

#include <cstdint>

#include "base/status.h"

namespace k3::kernels {

/// c [m, n] = a [m, k] b [k, n], row-major float32, on the calling thread alone (oneDNN's own
/// threads are switched off for it). Unimplemented without oneDNN.
Status OnednnSgemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c);

}  // namespace k3::kernels
