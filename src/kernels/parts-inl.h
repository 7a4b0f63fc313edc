// Up to sixteen floats, loaded and stored whole where there are sixteen: what a masked store wrote,
// a load soon after waits for, while a whole vector is forwarded. Same values as LoadN and StoreN.

#if defined(K3_KERNELS_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef K3_KERNELS_PARTS_INL_H_
#undef K3_KERNELS_PARTS_INL_H_
#else
#define K3_KERNELS_PARTS_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE V LoadPart(const float* x, int64_t n) {
  return HWY_LIKELY(n == kLanes) ? LoadU(x) : LoadN(x, n);
}
HWY_INLINE void StorePart(V v, float* x, int64_t n) {
  if (HWY_LIKELY(n == kLanes)) {
    StoreU(v, x);
  } else {
    StoreN(v, x, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
