// One stored weight row, read in blocks of 32 as two vectors: the even elements and the odd ones.

#if defined(K3_KERNELS_ROW_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef K3_KERNELS_ROW_READER_INL_H_
#undef K3_KERNELS_ROW_READER_INL_H_
#else
#define K3_KERNELS_ROW_READER_INL_H_
#endif

#include "kernels/kernels.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

/// One stored row, read block by block. The last block may be short for all but MXFP4.
template <WeightFormat kFormat>
struct RowReader {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;  // MXFP4 only
  float scale[kFormat == WeightFormat::kMxfp4 ? kLanes : 1] = {};

  static RowReader At(const WeightMatrix& w, int64_t row) {
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + row * w.ElementBytes(w.cols);
    return {data,
            kFormat == WeightFormat::kMxfp4 ? w.scales + row * (w.cols / kSplitBlock) : nullptr};
  }

  /// Widens the scales of the next sixteen blocks; call before every sixteenth of `blocks`.
  HWY_INLINE void LoadScales(int64_t block, int64_t blocks) {
    if constexpr (kFormat == WeightFormat::kMxfp4) {
      uint8_t bytes[kLanes] = {};
      if (HWY_LIKELY(blocks - block >= kLanes)) {
        StoreU(LoadE8m0(scales + block), scale);
        return;
      }
      std::memcpy(bytes, scales + block, static_cast<size_t>(blocks - block));
      StoreU(LoadE8m0(bytes), scale);
    }
  }

  HWY_INLINE void Block(int64_t block, V& even, V& odd) const {
    if constexpr (kFormat == WeightFormat::kBf16) {
      LoadBf16Pairs(data + block * 64, even, odd);
    } else if constexpr (kFormat == WeightFormat::kMxfp4) {
      LoadMxfp4Block(data + block * 16, scale[block % kLanes], even, odd);
    } else if constexpr (kFormat == WeightFormat::kF16) {
      Deinterleave(LoadHalf(data + block * 64), LoadHalf(data + block * 64 + 32), even, odd);
    } else {
      float lanes[kSplitBlock];
      std::memcpy(lanes, data + block * 128, sizeof(lanes));
      Deinterleave(LoadU(lanes), LoadU(lanes + kLanes), even, odd);
    }
  }

  /// The last `count` (fewer than 32) elements, zero-padded; reads no byte beyond them. MXFP4 rows
  /// are whole blocks and never come here.
  HWY_NOINLINE void Tail(int64_t block, int64_t count, V& even, V& odd) const {
    constexpr int64_t kBytes = kFormat == WeightFormat::kF32 ? 4 : 2;
    uint8_t padded[kSplitBlock * kBytes] = {};
    std::memcpy(padded, data + block * kSplitBlock * kBytes, static_cast<size_t>(count * kBytes));
    RowReader{padded, nullptr}.Block(0, even, odd);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
