#include "tensor/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/arithmetic.h"

namespace k3 {

Shape::Shape(std::span<const int64_t> dims) {
  K3_CHECK(dims.size() <= dims_.size(), "more than five dimensions");
  for (int64_t dim : dims) dims_[static_cast<size_t>(rank_++)] = dim;
}

std::optional<int64_t> Shape::CheckedElements() const {
  int64_t count = 1;
  for (int64_t dim : dims()) {
    if (dim < 0 || !CheckedMultiply(count, dim, &count)) return std::nullopt;
  }
  return count;
}

int64_t Shape::Elements() const {
  const std::optional<int64_t> count = CheckedElements();
  K3_CHECK(count.has_value(), "shape overflows");
  return *count;
}

std::string Shape::ToString() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

Tensor::Tensor(DType dtype, const Shape& shape) : dtype_(dtype), shape_(shape) {
  const int64_t bytes = view().bytes();
  data_ = AllocateAligned(bytes);
  std::memset(data_.get(), 0, static_cast<size_t>(bytes));
}

Tensor Tensor::Clone() const {
  Tensor copy(dtype_, shape_);
  std::memcpy(copy.data(), data_.get(), static_cast<size_t>(view().bytes()));
  return copy;
}

}  // namespace k3
