#pragma once
// ParameterSet: everything that a training run learns. Every tensor of the checkpoint has a place
// in three flat float32 arrays of one layout:
//
//   masters    what the optimizer moves
//   gradients  what the backward pass adds up
//   rounded    what the model computes with: the masters rounded to what the checkpoint stores,
//              bf16, MXFP4 for routed experts under quantisation-aware training, or float32
//
//   ParameterSet set(config);
//   set.Initialise(&pool, seed);                   // or set.LoadFrom(weights)
//   set.Round(&pool, {.quantize_experts = true});  // after every change of the masters
//   ... forward on set.parameters(), backward into set.gradients() ...
//   set.FinishGradients();                         // vector gradients into the flat array
//
// The forward pass on parameters() has the bits of the forward pass on the exported checkpoint.
// Rounding is straight-through: the gradient by a rounded value counts for its master.
//
// Layout: tensors start at multiples of 32 floats, gaps are zero in every array; routed experts
// stand at the end, each layer's w1 of all experts without gaps, then its w2, then its w3.
// Correction biases have a place too, but no gradient. The set owns all of it and cannot move:
// views point into it. One thread drives it, the pool's workers compute; results do not depend on
// their number. A wrong width is a broken invariant (K3_CHECK); failures of loading are
// WeightStore's. Source: technical report, section 4.1.4 (MXFP4); the initial values are those of
// the project's reference trainer.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/model_config.h"
#include "model/parameters.h"
#include "sys/arena.h"
#include "sys/thread_pool.h"
#include "tensor/number_formats.h"
#include "weights/inventory.h"
#include "weights/weights.h"

namespace k3::train {

struct RoundingOptions {
  /// Routed experts become MXFP4 values; else bf16.
  bool quantize_experts = false;
  Mxfp4ScaleRule rule = Mxfp4ScaleRule::kCeil;
};

/// One tensor and its place in the flat arrays.
struct TrainedTensor {
  ExpectedTensor spec;
  int64_t offset = 0;
  int64_t count = 0;
};

class ParameterSet {
 public:
  explicit ParameterSet(const ModelConfig& config);
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  const ModelConfig& config() const { return config_; }
  /// In the order of VisitTensors, which is not that of the offsets.
  std::span<const TrainedTensor> tensors() const { return tensors_; }
  /// By relative name; null when there is none.
  const TrainedTensor* Lookup(std::string_view name) const;
  /// Trained values, correction biases left out.
  int64_t parameters_count() const { return parameters_count_; }

  /// The flat arrays, gaps included.
  std::span<float> masters() { return Flat(masters_); }
  std::span<const float> masters() const { return Flat(masters_); }
  std::span<float> flat_gradients() { return Flat(gradients_); }
  std::span<const float> flat_gradients() const { return Flat(gradients_); }
  std::span<const float> rounded() const { return Flat(rounded_); }
  std::span<float> Master(const TrainedTensor& tensor) { return Part(masters(), tensor); }
  std::span<float> FlatGradient(const TrainedTensor& tensor) {
    return Part(flat_gradients(), tensor);
  }
  std::span<const float> Rounded(const TrainedTensor& tensor) const {
    return Flat(rounded_).subspan(static_cast<size_t>(tensor.offset),
                                  static_cast<size_t>(tensor.count));
  }

  /// Random masters that depend on the seed and each tensor's name alone.
  void Initialise(ThreadPool* pool, uint64_t seed);
  /// Masters from any checkpoint of this configuration, widened.
  Status LoadFrom(const WeightStore& weights);

  /// InvalidArgument when the experts' widths are no whole MXFP4 blocks.
  Status CheckRounding(const RoundingOptions& options) const;
  /// Makes `rounded` and parameters() from the masters.
  void Round(ThreadPool* pool, const RoundingOptions& options);
  /// Of the last Round.
  const RoundingOptions& rounding() const { return rounding_; }
  /// Of a routed expert, when the last Round quantised: codes [rows, cols / 2] and scales
  /// [rows, cols / 32] as a checkpoint stores them.
  std::span<const uint8_t> Codes(const TrainedTensor& tensor) const;
  std::span<const uint8_t> Scales(const TrainedTensor& tensor) const;

  /// What the model computes with, float32 matrices. The reference stays valid, what it holds
  /// changes with every Round.
  const model::Parameters& parameters() const { return parameters_; }
  /// Where the backward pass adds; matrices lie in the flat array, vectors beside it.
  model::Gradients& gradients() { return gradient_views_; }
  void ZeroGradients();
  /// Writes the gradients of vectors into the flat array in the form of the stored tensors:
  /// convolutions transposed back, A_log and both factors of each mix by the chain rule.
  void FinishGradients();

 private:
  template <typename T>
  static std::span<float> Part(T flat, const TrainedTensor& tensor) {
    return flat.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count));
  }
  std::span<float> Flat(const AlignedBytes& bytes) const {
    return {reinterpret_cast<float*>(bytes.get()), static_cast<size_t>(size_)};
  }
  /// Whole rows of one tensor, the unit of parallel work.
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0;  // element of the tensor
    int64_t count = 0;
  };
  void AddTensors();
  void RoundPiece(const Piece& piece);

  ModelConfig config_;
  std::vector<TrainedTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<Piece> pieces_;
  int64_t size_ = 0;
  int64_t experts_begin_ = 0;  // the first offset of a routed expert
  int64_t parameters_count_ = 0;
  AlignedBytes masters_;
  AlignedBytes gradients_;
  AlignedBytes rounded_;
  std::vector<uint8_t> codes_;   // of the experts, from experts_begin_
  std::vector<uint8_t> scales_;  // likewise
  RoundingOptions rounding_;
  model::Parameters parameters_;
  model::Gradients gradient_views_;
};

}  // namespace k3::train
