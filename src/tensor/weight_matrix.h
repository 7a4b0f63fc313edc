#pragma once
// WeightMatrix: a stored matrix as kernels read it, row-major [rows, cols] = [out, in], in its
// stored format, straight from the mapped file. Does not own: the checkpoint or store behind it
// does. Pointers may have any alignment.

#include <cstdint>

namespace k3 {

enum class WeightFormat : uint8_t { kBf16, kF16, kF32, kMxfp4 };

struct WeightMatrix {
  const void* data = nullptr;       // elements, or MXFP4 codes [rows, cols / 2]
  const uint8_t* scales = nullptr;  // MXFP4 only: E8M0 [rows, cols / 32]
  int64_t rows = 0;
  int64_t cols = 0;
  WeightFormat format = WeightFormat::kBf16;

  bool empty() const { return data == nullptr; }

  /// Bytes of `count` elements of one row, scales not counted.
  int64_t ElementBytes(int64_t count) const {
    switch (format) {
      case WeightFormat::kBf16:
      case WeightFormat::kF16:
        return 2 * count;
      case WeightFormat::kF32:
        return 4 * count;
      case WeightFormat::kMxfp4:
        return count / 2;
    }
    return 0;
  }
  /// Stored bytes of the matrix, scales included.
  int64_t bytes() const {
    const int64_t scale_bytes = format == WeightFormat::kMxfp4 ? rows * (cols / 32) : 0;
    return rows * ElementBytes(cols) + scale_bytes;
  }
  /// The rows [begin, end) as a matrix of their own.
  WeightMatrix Rows(int64_t begin, int64_t end) const {
    WeightMatrix part = *this;
    part.data = static_cast<const uint8_t*>(data) + begin * ElementBytes(cols);
    if (scales != nullptr) part.scales = scales + begin * (cols / 32);
    part.rows = end - begin;
    return part;
  }
};

/// Where the gradient of a matrix is added up: float32, row-major [rows, cols]. Does not own.
struct GradientMatrix {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;

  bool empty() const { return data == nullptr; }
};

}  // namespace k3
