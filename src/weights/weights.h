#pragma once
// WeightStore: the text model's weights by name, viewed where they lie in the mapped shards.
//
//   WeightStore weights = *WeightStore::Bind(checkpoint, {});
//   K3_TRY(WeightMatrix q, weights.Matrix("layers.3.self_attn.q_proj", rows, cols));
//   K3_TRY(std::vector<float> norm, weights.Vector("layers.3.input_layernorm.weight", width));
//
// Names are relative (weights/inventory.h): the store adds the checkpoint's prefix. A matrix is
// plain bf16, f16 or f32 in "name.weight", or MXFP4 in "name.weight_packed" and
// "name.weight_scale", decided for each by what is there. Matrices are views of the checkpoint,
// which must outlive them and the store; vectors are float32 copies. Const members may be called
// from any thread.
//
// Failures: NotFound for a missing tensor, InvalidArgument for a type or shape that does not fit
// the configuration, Corruption for a scale of NaN, non-zero padding or two forms of one matrix.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"
#include "weights/inventory.h"

namespace k3 {

struct WeightStoreOptions {
  /// Matrix() reads every MXFP4 scale of what it hands out (1/17 of its bytes). Switch it off to
  /// bind a huge bank of experts without touching it, and call ValidateScales before first use.
  bool validate_scales = true;
};

class WeightStore {
 public:
  static Result<WeightStore> Bind(const Checkpoint& checkpoint, WeightStoreOptions options);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const ModelConfig& config() const { return checkpoint_->config(); }
  const TensorNames& names() const { return names_; }

  /// The matrix "name.weight" [rows, cols], in either form.
  Result<WeightMatrix> Matrix(std::string_view name, int64_t rows, int64_t cols) const;
  /// The whole tensor `name` as float32, from bf16, f16 or f32. Dimensions of 1 are not compared:
  /// [1, D] is a vector of D, and [C, 1, taps] the array [C, taps].
  Result<std::vector<float>> Array(std::string_view name, const Shape& shape) const;
  Result<std::vector<float>> Vector(std::string_view name, int64_t count) const;
  /// The first `heads` values of a tensor that is padded with zeros.
  Result<std::vector<float>> ALog(std::string_view name, int64_t heads) const;

  /// ValidateScales of a matrix that Matrix(name) gave, naming its shard and full name.
  Status CheckScales(const WeightMatrix& matrix, std::string_view name) const;

  /// True when the matrix "name.weight" is there in either form.
  bool HasMatrix(std::string_view name) const;

 private:
  WeightStore(const Checkpoint* checkpoint, TensorNames names, WeightStoreOptions options)
      : checkpoint_(checkpoint), names_(names), options_(options) {}

  Result<const TensorInfo*> Require(const std::string& full_name) const;
  Result<WeightMatrix> PackedMatrix(const TensorInfo& packed, const std::string& base, int64_t rows,
                                    int64_t cols) const;
  Status Mismatch(const TensorInfo& tensor, std::string_view expected) const;
  const std::string& ShardPath(const TensorInfo& tensor) const;

  const Checkpoint* checkpoint_;
  TensorNames names_;
  WeightStoreOptions options_;
};

/// Corruption, naming `name` and the row, when a scale of an MXFP4 matrix is the NaN code. Other
/// formats pass. Reads all scales.
Status ValidateScales(const WeightMatrix& matrix, std::string_view name);

/// `count` elements of bf16, f16 or f32 at any alignment, widened. `dtype` is one of these.
void WidenToFloat(const void* data, DType dtype, int64_t count, float* out);

}  // namespace k3
