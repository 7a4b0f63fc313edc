#include "kernels/gemm/onednn_gemm.h"

#include <dnnl.h>

extern "C" void omp_set_num_threads(int);  // of the OpenMP runtime that oneDNN is built on

namespace k3::kernels {

Status OnednnSgemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
  omp_set_num_threads(1);
  const dnnl_status_t status = dnnl_sgemm('N', 'N', m, n, k, 1.0f, a, k, b, n, 0.0f, c, n);
  if (status != dnnl_success) return Internal("oneDNN sgemm failed");
  return OkStatus();
}

}  // namespace k3::kernels
