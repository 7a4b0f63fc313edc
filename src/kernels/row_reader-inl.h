// One stored weight row, read in blocks of 32 as two vectors: the even elements and the odd ones.

#if defined(K3_KERNELS_ROW_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef K3_KERNELS_ROW_READER_INL_H_
#undef K3_KERNELS_ROW_READER_INL_H_
#else
#define K3_KERNELS_ROW_READER_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/kernels.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

/// One stored row, read block by block. The last block may be short for all but MXFP4. Nothing in
/// it is initialised before it is needed: readers are made for every few rows, and a copy of a
/// struct just written waits for the stores.
template <WeightFormat kFormat>
struct RowReader {
  const uint8_t* data;
  const uint8_t* scales;                                      // MXFP4 only
  float scale[kFormat == WeightFormat::kMxfp4 ? kLanes : 1];  // of sixteen blocks, by LoadScales

  HWY_INLINE void Open(const WeightMatrix& w, int64_t row, int64_t row_bytes) {
    data = static_cast<const uint8_t*>(w.data) + row * row_bytes;
    if constexpr (kFormat == WeightFormat::kMxfp4) {
      scales = w.scales + row * (w.cols / kSplitBlock);
    }
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

  /// Asks for what Block(block) would read `bytes_ahead` further on, a line of the cache at a time.
  /// Rows are short streams, which the processor's own prefetching finds late.
  HWY_INLINE void PrefetchBlock(int64_t block, int64_t bytes_ahead) const {
    constexpr int64_t kLine = 64;
    constexpr int64_t kBytes =
        kFormat == WeightFormat::kMxfp4 ? 16 : (kFormat == WeightFormat::kF32 ? 128 : 64);
    if (block * kBytes % kLine != 0) return;
    for (int64_t i = 0; i < kBytes; i += kLine) {
      hwy::Prefetch(data + block * kBytes + bytes_ahead + i);
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
    if constexpr (kFormat == WeightFormat::kMxfp4) return;
    constexpr int64_t kBytes = kFormat == WeightFormat::kF32 ? 4 : 2;
    uint8_t padded[kSplitBlock * kBytes] = {};
    std::memcpy(padded, data + block * kSplitBlock * kBytes, static_cast<size_t>(count * kBytes));
    RowReader{padded, nullptr, {}}.Block(0, even, odd);
  }
};

/// Calls f with the format as a constant, std::integral_constant<WeightFormat, ...>.
template <typename F>
HWY_INLINE HWY_ATTR void WithFormat(WeightFormat format, const F& f) {
  switch (format) {
    case WeightFormat::kBf16:
      return f(std::integral_constant<WeightFormat, WeightFormat::kBf16>{});
    case WeightFormat::kF16:
      return f(std::integral_constant<WeightFormat, WeightFormat::kF16>{});
    case WeightFormat::kF32:
      return f(std::integral_constant<WeightFormat, WeightFormat::kF32>{});
    case WeightFormat::kMxfp4:
      return f(std::integral_constant<WeightFormat, WeightFormat::kMxfp4>{});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
