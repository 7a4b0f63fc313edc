#include "kernels/kernels.h"

#include "base/check.h"
#include "hwy/targets.h"
#include "kernels/tables.h"

namespace k3 {

std::string_view SimdTargetName(SimdTarget target) {
  switch (target) {
    case SimdTarget::kScalar:
      return "scalar";
    case SimdTarget::kAvx2:
      return "avx2";
    case SimdTarget::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<SimdTarget> ParseSimdTarget(std::string_view name) {
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    if (SimdTargetName(target) == name) return target;
  }
  return std::nullopt;
}

bool IsSupported(SimdTarget target) {
  switch (target) {
    case SimdTarget::kScalar:
      return true;
    case SimdTarget::kAvx2:
      return (hwy::SupportedTargets() & HWY_AVX2) != 0;
    case SimdTarget::kAvx512:
      return (hwy::SupportedTargets() & HWY_AVX3) != 0;
  }
  return false;
}

SimdTarget BestSimdTarget() {
  if (IsSupported(SimdTarget::kAvx512)) return SimdTarget::kAvx512;
  return IsSupported(SimdTarget::kAvx2) ? SimdTarget::kAvx2 : SimdTarget::kScalar;
}

namespace kernels {

KernelTable Kernels(SimdTarget target) {
  K3_CHECK(IsSupported(target), "this processor does not have the SIMD target");
  return {target,
          MakeElementwiseKernels(target),
          MakeLinearKernels(target),
          MakeMatMulKernels(target),
          MakeKdaKernels(target),
          MakeBackwardKernels(target),
          MakeKdaBackwardKernels(target)};
}

}  // namespace kernels
}  // namespace k3
