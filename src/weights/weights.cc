#include "weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "config/json.h"
#include "tensor/number_formats.h"

namespace k3 {
namespace {

bool IsFloatType(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

WeightFormat FormatOf(DType dtype) {
  if (dtype == DType::kF32) return WeightFormat::kF32;
  return dtype == DType::kF16 ? WeightFormat::kF16 : WeightFormat::kBf16;
}

/// The dimensions that are not 1.
std::vector<int64_t> Squeeze(const Shape& shape) {
  std::vector<int64_t> dims;
  for (const int64_t dim : shape.dims()) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

}  // namespace

void WidenToFloat(const void* data, DType dtype, int64_t count, float* out) {
  if (count == 0) return;
  if (dtype == DType::kF32) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const std::byte* bytes = static_cast<const std::byte*>(data);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    out[i] = dtype == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

Status ValidateScales(const WeightMatrix& matrix, std::string_view name) {
  if (matrix.format != WeightFormat::kMxfp4) return OkStatus();
  const int64_t row_scales = matrix.cols / kMxfp4BlockSize;
  const size_t count = static_cast<size_t>(matrix.rows * row_scales);
  if (count == 0) return OkStatus();
  const void* found = std::memchr(matrix.scales, kE8m0Nan, count);
  if (found == nullptr) return OkStatus();
  const int64_t at = static_cast<const uint8_t*>(found) - matrix.scales;
  return Corruption(fmt::format(
      "tensor {}: row {}, block {}: expected a scale from 0 to 254, found 255 (not a number); the "
      "file is damaged, download the shard again",
      QuoteForMessage(name), at / row_scales, at % row_scales));
}

Result<WeightStore> WeightStore::Bind(const Checkpoint& checkpoint, WeightStoreOptions options) {
  K3_TRY(const TensorNames names, TensorNames::Detect(checkpoint));
  return WeightStore(&checkpoint, names, options);
}

Result<const TensorInfo*> WeightStore::Require(const std::string& full_name) const {
  const TensorInfo* tensor = checkpoint_->Lookup(full_name);
  if (tensor != nullptr) return tensor;
  std::string reason;
  if (checkpoint_->partial_layers().has_value()) {
    reason = fmt::format("; the checkpoint is a slice that holds layers {} to {} only",
                         checkpoint_->partial_layers()->first, checkpoint_->partial_layers()->last);
  }
  return NotFound(fmt::format(
      "{}: expected the tensor {}, which the configuration asks for, found none of that name{}",
      checkpoint_->dir(), QuoteForMessage(full_name), reason));
}

Status WeightStore::Mismatch(const TensorInfo& tensor, std::string_view expected) const {
  return InvalidArgument(
      fmt::format("{}: tensor {}: expected {}, found {} {}; config.json and the weights disagree",
                  ShardPath(tensor), QuoteForMessage(tensor.name), expected,
                  DTypeName(tensor.dtype), tensor.shape.ToString()));
}

const std::string& WeightStore::ShardPath(const TensorInfo& tensor) const {
  return checkpoint_->shards()[static_cast<size_t>(tensor.shard)].path;
}

Status WeightStore::CheckScales(const WeightMatrix& matrix, std::string_view name) const {
  if (matrix.format != WeightFormat::kMxfp4) return OkStatus();
  const std::string full_name = names_.Full(fmt::format("{}.weight_scale", name));
  const Status status = ValidateScales(matrix, full_name);
  const TensorInfo* tensor = checkpoint_->Lookup(full_name);
  return tensor == nullptr ? status : status.WithContext(ShardPath(*tensor));
}

bool WeightStore::HasMatrix(std::string_view name) const {
  const std::string base = names_.Full(fmt::format("{}.weight", name));
  return checkpoint_->Lookup(base) != nullptr || checkpoint_->Lookup(base + "_packed") != nullptr;
}

Result<WeightMatrix> WeightStore::Matrix(std::string_view name, int64_t rows, int64_t cols) const {
  const std::string base = names_.Full(fmt::format("{}.weight", name));
  const TensorInfo* plain = checkpoint_->Lookup(base);
  const TensorInfo* packed = checkpoint_->Lookup(base + "_packed");
  if (plain != nullptr && packed != nullptr) {
    return Corruption(fmt::format("{}: tensor {}: expected it plain or packed, found both",
                                  checkpoint_->dir(), QuoteForMessage(base)));
  }
  if (packed != nullptr) return PackedMatrix(*packed, base, rows, cols);
  K3_TRY(plain, Require(base));
  if (!IsFloatType(plain->dtype) || plain->shape != Shape{rows, cols}) {
    return Mismatch(*plain, fmt::format("BF16, F16 or F32 [{}, {}]", rows, cols));
  }
  WeightMatrix matrix;
  matrix.data = checkpoint_->View(*plain).data;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.format = FormatOf(plain->dtype);
  return matrix;
}

Result<WeightMatrix> WeightStore::PackedMatrix(const TensorInfo& packed, const std::string& base,
                                               int64_t rows, int64_t cols) const {
  if (cols % kMxfp4BlockSize != 0) {
    return Mismatch(packed, fmt::format("a plain matrix, because {} columns are not whole MXFP4 "
                                        "blocks of {}",
                                        cols, kMxfp4BlockSize));
  }
  if (packed.dtype != DType::kU8 || packed.shape != Shape{rows, cols / 2}) {
    return Mismatch(packed, fmt::format("U8 [{}, {}]", rows, cols / 2));
  }
  K3_TRY(const TensorInfo* scale, Require(base + "_scale"));
  if (scale->dtype != DType::kU8 || scale->shape != Shape{rows, cols / kMxfp4BlockSize}) {
    return Mismatch(*scale, fmt::format("U8 [{}, {}]", rows, cols / kMxfp4BlockSize));
  }
  WeightMatrix matrix;
  matrix.data = checkpoint_->View(packed).data;
  matrix.scales = reinterpret_cast<const uint8_t*>(checkpoint_->View(*scale).data);
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.format = WeightFormat::kMxfp4;
  if (options_.validate_scales) {
    K3_RETURN_IF_ERROR(ValidateScales(matrix, scale->name).WithContext(ShardPath(*scale)));
  }
  return matrix;
}

Result<std::vector<float>> WeightStore::Array(std::string_view name, const Shape& shape) const {
  K3_TRY(const TensorInfo* tensor, Require(names_.Full(name)));
  if (!IsFloatType(tensor->dtype) || Squeeze(tensor->shape) != Squeeze(shape)) {
    return Mismatch(*tensor, fmt::format("BF16, F16 or F32 {}", shape.ToString()));
  }
  std::vector<float> values(static_cast<size_t>(shape.Elements()));
  WidenToFloat(checkpoint_->View(*tensor).data, tensor->dtype, std::ssize(values), values.data());
  return values;
}

Result<std::vector<float>> WeightStore::Vector(std::string_view name, int64_t count) const {
  return Array(name, Shape{count});
}

Result<std::vector<float>> WeightStore::ALog(std::string_view name, int64_t heads) const {
  K3_TRY(const TensorInfo* tensor, Require(names_.Full(name)));
  const std::vector<int64_t> dims = Squeeze(tensor->shape);
  const int64_t stored = tensor->shape.Elements();
  if (!IsFloatType(tensor->dtype) || dims.size() > 1 || stored < heads) {
    return Mismatch(*tensor, fmt::format("F32, BF16 or F16 [at least {}]", heads));
  }
  std::vector<float> values(static_cast<size_t>(stored));
  WidenToFloat(checkpoint_->View(*tensor).data, tensor->dtype, stored, values.data());
  for (int64_t i = heads; i < stored; ++i) {
    if (values[static_cast<size_t>(i)] != 0) {
      return Corruption(fmt::format(
          "{}: tensor {}: expected zeros behind the {} heads, found {} at {}; the file is damaged "
          "or of another model",
          ShardPath(*tensor), QuoteForMessage(tensor->name), heads, values[static_cast<size_t>(i)],
          i));
    }
  }
  values.resize(static_cast<size_t>(heads));
  return values;
}

}  // namespace k3
