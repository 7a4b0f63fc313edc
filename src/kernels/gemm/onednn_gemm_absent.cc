#include "kernels/gemm/onednn_gemm.h"

namespace k3::kernels {

Status OnednnSgemm(int64_t, int64_t, int64_t, const float*, const float*, float*) {
  return Unimplemented("this build has no oneDNN; install libdnnl-dev and configure again");
}

}  // namespace k3::kernels
