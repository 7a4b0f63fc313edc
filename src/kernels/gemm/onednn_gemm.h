#pragma once
// oneDNN's float32 GEMM, the yardstick that `k3 bench` measures our own kernels against. Never used
// for inference: its sums have no fixed order. A build without oneDNN has a stub that says so.

#include <cstdint>

#include "base/status.h"

namespace k3::kernels {

/// c = a b, all [size, size] row-major float32, on this thread alone. Unimplemented without oneDNN.
Status OnednnSgemm(int64_t size, const float* a, const float* b, float* c);

}  // namespace k3::kernels
