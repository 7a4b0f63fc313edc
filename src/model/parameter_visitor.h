#pragma once
// The one list of what the network's parameters are called and where they go. A visitor is shown
// each of them with its relative name (weights/inventory.h), its shape and its place in a
// ParametersOf; BindParameters fills the places from a checkpoint, training from its own arrays.
//
// Visiting makes room for the layers and experts and nothing else. The first failure ends it and is
// returned. One thread; nothing is kept.

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "config/model_config.h"
#include "model/parameters.h"
#include "tensor/tensor_view.h"

namespace k3::model {

/// How the values of a parameter vector follow from stored tensors.
enum class VectorForm : uint8_t {
  kPlain,        // as they are
  kConvolution,  // stored [C, 1, taps], here [taps, C]
  kRate,         // exp(A_log) of the real heads, zeros are stored behind them
  kMix,          // "name_norm.weight" times "name_proj.weight"
};

template <typename Matrix>
class ParameterVisitor {
 public:
  virtual ~ParameterVisitor() = default;

  /// The tensor "name.weight" [rows, cols]; `expert` when it is of a routed expert.
  virtual Status VisitMatrix(std::string_view name, int64_t rows, int64_t cols, bool expert,
                             Matrix* matrix) = 0;
  /// `shape` is the stored one ([heads] for a rate, [D] for both factors of a mix).
  virtual Status VisitVector(std::string_view name, VectorForm form, const Shape& shape,
                             Vector* vector) = 0;
};

/// Shows `visitor` every parameter that `config` asks for.
template <typename Matrix>
Status VisitParameters(const ModelConfig& config, ParameterVisitor<Matrix>& visitor,
                       ParametersOf<Matrix>* parameters);

extern template Status VisitParameters(const ModelConfig& config,
                                       ParameterVisitor<WeightMatrix>& visitor,
                                       ParametersOf<WeightMatrix>* parameters);
extern template Status VisitParameters(const ModelConfig& config,
                                       ParameterVisitor<GradientMatrix>& visitor,
                                       ParametersOf<GradientMatrix>* parameters);

// From stored values to those of a form, the same everywhere.

/// [C, taps] -> [taps, C].
Vector TransposedConvolution(const Vector& stored, int64_t taps);
/// exp of each, by the kernels' exp.
void ToRate(Vector* a_log);
/// norm *= query, of the same length.
void ToMix(const Vector& query, Vector* norm);

}  // namespace k3::model
