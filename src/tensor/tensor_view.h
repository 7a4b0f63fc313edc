#pragma once
// Shape, TensorView and Tensor. A view is trivially copyable and owns nothing: whoever mapped or
// allocated the bytes keeps them alive. Sizes are int64 and products of untrusted dimensions are
// checked. Data of a view into a file may have any alignment; a Tensor's is 64 bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "base/check.h"
#include "base/limits.h"
#include "sys/arena.h"
#include "tensor/dtype.h"

namespace k3 {

/// Up to five dimensions, row-major, outermost first. A scalar has rank 0 and one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  /// The number of elements; nothing when it does not fit int64 or a dimension is negative.
  std::optional<int64_t> CheckedElements() const;
  /// The number of elements of a shape known to be valid.
  int64_t Elements() const;
  /// "[16, 512]".
  std::string ToString() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, limits::kTensorRankMax> dims_{};
  int rank_ = 0;
};

struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t bytes() const { return shape.Elements() * DTypeBytes(dtype); }
};

/// Owns a row-major, zeroed, 64-byte-aligned array. Move-only; Clone() copies.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);

  TensorView view() const { return {data_.get(), dtype_, shape_}; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::byte* data() { return data_.get(); }
  /// The elements as float32. dtype() must be kF32.
  std::span<float> f32() {
    K3_CHECK(dtype_ == DType::kF32, "not float32");
    return {reinterpret_cast<float*>(data_.get()), static_cast<size_t>(shape_.Elements())};
  }
  Tensor Clone() const;

 private:
  AlignedBytes data_;
  DType dtype_ = DType::kF32;
  Shape shape_{0};
};

}  // namespace k3
