#include "kernels/gemm/onednn_gemm.h"

#include <dnnl.h>

namespace k3::kernels {

Status OnednnSgemm(int64_t size, const float* a, const float* b, float* c) {
  const dnnl_status_t status =
      dnnl_sgemm('N', 'N', size, size, size, 1.0f, a, size, b, size, 0.0f, c, size);
  if (status != dnnl_success) return Internal("oneDNN sgemm failed");
  return OkStatus();
}

}  // namespace k3::kernels
