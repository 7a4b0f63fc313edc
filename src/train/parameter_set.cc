#include "train/parameter_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/arithmetic.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "model/parameter_visitor.h"
#include "weights/random_values.h"

namespace k3::train {
namespace {

constexpr int64_t kAlignment = kMxfp4BlockSize;  // floats
constexpr int64_t kPiece = 32768;                // elements of one piece of work, at least a row

// Initial values (see the header for their source).
constexpr float kEmbeddingSpread = 0.5f;
constexpr float kHeadGain = 0.3f;
constexpr float kBranchGain = 0.5f;
constexpr float kConvolutionSpread = 0.3f;
constexpr double kStepMin = 1e-3;
constexpr double kStepMax = 0.1;

std::string_view WithoutSuffix(std::string_view name, std::string_view suffix) {
  K3_CHECK(name.ends_with(suffix), "matrices are named *.weight");
  name.remove_suffix(suffix.size());
  return name;
}

bool IsMatrix(const ExpectedTensor& spec) {
  return spec.shape.rank() == 2 && spec.role != TensorRole::kResidualQuery;
}

int64_t RowWidth(const ExpectedTensor& spec) { return IsMatrix(spec) ? spec.shape[1] : 1; }

/// The standard deviation of a tensor that starts as normal numbers.
float Spread(const ExpectedTensor& spec) {
  switch (spec.role) {
    case TensorRole::kEmbedding:
      return kEmbeddingSpread;
    case TensorRole::kConvolution:
      return kConvolutionSpread;
    default:
      break;
  }
  float gain = spec.role == TensorRole::kHead ? kHeadGain : 1.0f;
  // What ends a branch of the residual stream, and the second half of each low-rank gate, starts
  // smaller.
  for (const std::string_view name : {".o_proj.weight", ".routed_expert_up_proj.weight",
                                      ".f_b_proj.weight", ".g_b_proj.weight"}) {
    if (spec.name.ends_with(name)) gain = kBranchGain;
  }
  return gain / std::sqrt(static_cast<float>(spec.shape[1]));
}

/// dt_bias, the inverse softplus of a step that is log-uniform.
void FillSteps(Random& random, std::span<float> out) {
  const double low = std::log(kStepMin), high = std::log(kStepMax);
  for (float& value : out) {
    const double dt = std::exp(low + (high - low) * random.NextFloat());
    value = static_cast<float>(dt + std::log(-std::expm1(-dt)));
  }
}

/// The elements [begin, begin + out.size()) of a tensor's start.
void FillInitial(const ExpectedTensor& spec, uint64_t seed, int64_t begin, std::span<float> out) {
  Random random(seed, StreamOfName(spec.name));
  switch (spec.role) {
    case TensorRole::kNorm:
      std::ranges::fill(out, 1.0f);
      return;
    case TensorRole::kResidualQuery:
    case TensorRole::kALog:
    case TensorRole::kCorrectionBias:
      std::ranges::fill(out, 0.0f);
      return;
    case TensorRole::kDtBias:
      random.Seek(static_cast<uint64_t>(begin));
      FillSteps(random, out);
      return;
    default:
      break;
  }
  const float spread = Spread(spec);
  // A normal value takes two words.
  random.Seek(static_cast<uint64_t>(2 * begin));
  for (float& value : out) value = spread * random.NextNormal();
}

void RoundToBf16(std::span<const float> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = Bf16ToFloat(FloatToBf16(from[i]));
}

/// The places of a set's tensors for the visitors below.
class Places {
 public:
  explicit Places(const ParameterSet& set) : set_(set) {}

  const TrainedTensor& Find(std::string_view name) const {
    const TrainedTensor* tensor = set_.Lookup(name);
    K3_CHECK(tensor != nullptr, "the inventory has every parameter of the model");
    return *tensor;
  }
  const TrainedTensor& Matrix(std::string_view name) const {
    return Find(fmt::format("{}.weight", name));
  }
  model::Vector Rounded(std::string_view name, int64_t count) const {
    const std::span<const float> values =
        set_.Rounded(Find(name)).first(static_cast<size_t>(count));
    return {values.begin(), values.end()};
  }
  model::Vector Norm(std::string_view mix, int64_t count) const {
    return Rounded(fmt::format("{}_norm.weight", mix), count);
  }
  model::Vector Query(std::string_view mix, int64_t count) const {
    return Rounded(fmt::format("{}_proj.weight", mix), count);
  }

 private:
  const ParameterSet& set_;
};

/// Binds the model's parameters to the rounded values.
class RoundedBinder : public model::ParameterVisitor<WeightMatrix> {
 public:
  explicit RoundedBinder(const ParameterSet& set) : set_(set), places_(set) {}

  Status VisitMatrix(std::string_view name, int64_t rows, int64_t cols, bool /*expert*/,
                     WeightMatrix* matrix) override {
    matrix->data = set_.Rounded(places_.Matrix(name)).data();
    matrix->rows = rows;
    matrix->cols = cols;
    matrix->format = WeightFormat::kF32;
    return OkStatus();
  }
  Status VisitVector(std::string_view name, model::VectorForm form, const Shape& shape,
                     model::Vector* vector) override {
    const int64_t count = shape.Elements();
    switch (form) {
      case model::VectorForm::kPlain:
        *vector = places_.Rounded(name, count);
        break;
      case model::VectorForm::kConvolution:
        *vector = model::TransposedConvolution(places_.Rounded(name, count), shape[2]);
        break;
      case model::VectorForm::kRate:
        *vector = places_.Rounded(name, count);
        model::ToRate(vector);
        break;
      case model::VectorForm::kMix:
        *vector = places_.Norm(name, count);
        model::ToMix(places_.Query(name, count), vector);
        break;
    }
    return OkStatus();
  }

 private:
  const ParameterSet& set_;
  Places places_;
};

/// Binds gradient matrices to the flat array and gives vectors their sizes.
class GradientBinder : public model::ParameterVisitor<GradientMatrix> {
 public:
  explicit GradientBinder(ParameterSet* set) : set_(set), places_(*set) {}

  Status VisitMatrix(std::string_view name, int64_t rows, int64_t cols, bool /*expert*/,
                     GradientMatrix* matrix) override {
    *matrix = {set_->FlatGradient(places_.Matrix(name)).data(), rows, cols};
    return OkStatus();
  }
  Status VisitVector(std::string_view /*name*/, model::VectorForm /*form*/, const Shape& shape,
                     model::Vector* vector) override {
    vector->assign(static_cast<size_t>(shape.Elements()), 0.0f);
    return OkStatus();
  }

 private:
  ParameterSet* set_;
  Places places_;
};

/// Carries the gradients of vectors into the flat array.
class GradientFinisher : public model::ParameterVisitor<GradientMatrix> {
 public:
  explicit GradientFinisher(ParameterSet* set) : set_(set), places_(*set) {}

  Status VisitMatrix(std::string_view /*name*/, int64_t /*rows*/, int64_t /*cols*/, bool /*expert*/,
                     GradientMatrix* /*matrix*/) override {
    return OkStatus();
  }
  Status VisitVector(std::string_view name, model::VectorForm form, const Shape& shape,
                     model::Vector* vector) override {
    const model::Vector& d = *vector;
    switch (form) {
      case model::VectorForm::kPlain:
        if (places_.Find(name).spec.role != TensorRole::kCorrectionBias) Write(name, d);
        break;
      case model::VectorForm::kConvolution:
        // [taps, C] to [C, taps] is the same turn with the other width.
        Write(name, model::TransposedConvolution(d, shape[0]));
        break;
      case model::VectorForm::kRate: {
        // d exp(a) / da = exp(a).
        model::Vector rate = places_.Rounded(name, shape[0]);
        model::ToRate(&rate);
        Write(name, Product(d, rate));
        break;
      }
      case model::VectorForm::kMix:
        Write(fmt::format("{}_norm.weight", name), Product(d, places_.Query(name, shape[0])));
        Write(fmt::format("{}_proj.weight", name), Product(d, places_.Norm(name, shape[0])));
        break;
    }
    return OkStatus();
  }

 private:
  static model::Vector Product(model::Vector a, const model::Vector& b) {
    model::ToMix(b, &a);
    return a;
  }
  void Write(std::string_view name, const model::Vector& values) {
    std::ranges::copy(values, set_->FlatGradient(places_.Find(name)).begin());
  }

  ParameterSet* set_;
  Places places_;
};

}  // namespace

ParameterSet::ParameterSet(const ModelConfig& config) : config_(config) {
  AddTensors();
  for (AlignedBytes* array : {&masters_, &gradients_, &rounded_}) {
    const int64_t bytes = size_ * static_cast<int64_t>(sizeof(float));
    *array = AllocateAligned(bytes);
    std::memset(array->get(), 0, static_cast<size_t>(bytes));
  }
  RoundedBinder rounded(*this);
  const Status bound = model::VisitParameters(config_, rounded, &parameters_);
  GradientBinder binder(this);
  const Status sized = model::VisitParameters(config_, binder, &gradient_views_);
  K3_CHECK(bound.ok() && sized.ok(), "binding to arrays of our own cannot fail");
}

void ParameterSet::AddTensors() {
  // The experts wait until everything else has its place; [layer, which of w1 w2 w3].
  std::map<std::pair<int64_t, std::string>, std::vector<size_t>> stacks;
  const auto place = [&](size_t i) {
    TrainedTensor& tensor = tensors_[i];
    tensor.offset = size_;
    size_ += tensor.count;
  };
  VisitTensors(config_, [&](const ExpectedTensor& spec) {
    const size_t i = tensors_.size();
    tensors_.push_back({spec, 0, spec.shape.Elements()});
    index_.emplace(spec.name, i);
    if (spec.role != TensorRole::kCorrectionBias) parameters_count_ += tensors_[i].count;
    if (spec.role == TensorRole::kALog) {
      parameters_count_ -= tensors_[i].count - config_.kda.heads;
    }
    if (spec.role == TensorRole::kExpert) {
      const std::string name(WithoutSuffix(spec.name, ".weight"));
      stacks[{spec.layer, name.substr(name.rfind('.') + 1)}].push_back(i);
    } else {
      place(i);
      size_ = RoundUp(size_, kAlignment);
    }
  });
  experts_begin_ = size_;
  for (const auto& [key, members] : stacks) {
    for (const size_t i : members) place(i);
    size_ = RoundUp(size_, kAlignment);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t width = RowWidth(tensors_[i].spec);
    const int64_t step = std::max(kPiece / width, int64_t{1}) * width;
    for (int64_t begin = 0; begin < tensors_[i].count; begin += step) {
      pieces_.push_back({i, begin, std::min(step, tensors_[i].count - begin)});
    }
  }
}

const TrainedTensor* ParameterSet::Lookup(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void ParameterSet::Initialise(ThreadPool* pool, uint64_t seed) {
  pool->ParallelFor(std::ssize(pieces_), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      const TrainedTensor& tensor = tensors_[piece.tensor];
      FillInitial(tensor.spec, seed, piece.begin,
                  Master(tensor).subspan(static_cast<size_t>(piece.begin),
                                         static_cast<size_t>(piece.count)));
    }
  });
}

Status ParameterSet::LoadFrom(const WeightStore& weights) {
  const auto widen = kernels::Kernels(SimdTarget::kScalar).elementwise.widen;
  for (const TrainedTensor& tensor : tensors_) {
    const ExpectedTensor& spec = tensor.spec;
    const std::span<float> master = Master(tensor);
    if (IsMatrix(spec)) {
      K3_TRY(const WeightMatrix matrix,
             weights.Matrix(WithoutSuffix(spec.name, ".weight"), spec.shape[0], spec.shape[1]));
      for (int64_t row = 0; row < matrix.rows; ++row) {
        widen(matrix, row, master.data() + row * matrix.cols);
      }
      continue;
    }
    const bool padded = spec.role == TensorRole::kALog;
    auto stored =
        padded ? weights.ALog(spec.name, config_.kda.heads) : weights.Array(spec.name, spec.shape);
    K3_RETURN_IF_ERROR(stored);
    std::ranges::fill(std::ranges::copy(*stored, master.begin()).out, master.end(), 0.0f);
  }
  return OkStatus();
}

Status ParameterSet::CheckRounding(const RoundingOptions& options) const {
  if (!options.quantize_experts) return OkStatus();
  for (const TrainedTensor& tensor : tensors_) {
    const ExpectedTensor& spec = tensor.spec;
    if (spec.role != TensorRole::kExpert || spec.shape[1] % kMxfp4BlockSize == 0) continue;
    return InvalidArgument(
        fmt::format("tensor {}: expected a multiple of {} columns for MXFP4 experts, found {}; "
                    "train bf16 experts or choose other widths",
                    spec.name, kMxfp4BlockSize, spec.shape[1]));
  }
  return OkStatus();
}

void ParameterSet::RoundPiece(const Piece& piece) {
  const TrainedTensor& tensor = tensors_[piece.tensor];
  const int64_t at = tensor.offset + piece.begin;
  const std::span<const float> from =
      masters().subspan(static_cast<size_t>(at), static_cast<size_t>(piece.count));
  float* to = Flat(rounded_).data() + at;
  if (tensor.spec.role == TensorRole::kExpert && rounding_.quantize_experts) {
    uint8_t* codes = codes_.data() + (at - experts_begin_) / 2;
    uint8_t* scales = scales_.data() + (at - experts_begin_) / kMxfp4BlockSize;
    // Rows are whole blocks, so many of them are one long row.
    QuantizeMxfp4Row(from, rounding_.rule, codes, scales);
    UnpackMxfp4Row(codes, scales, {to, from.size()});
  } else if (tensor.spec.stored == StoredType::kF32) {
    std::ranges::copy(from, to);
  } else {
    RoundToBf16(from, to);
  }
}

void ParameterSet::Round(ThreadPool* pool, const RoundingOptions& options) {
  K3_CHECK(CheckRounding(options).ok(), "whole MXFP4 blocks");
  rounding_ = options;
  const int64_t expert_values = options.quantize_experts ? size_ - experts_begin_ : 0;
  codes_.resize(static_cast<size_t>(expert_values / 2));
  scales_.resize(static_cast<size_t>(expert_values / kMxfp4BlockSize));
  pool->ParallelFor(std::ssize(pieces_), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) RoundPiece(pieces_[static_cast<size_t>(i)]);
  });
  RoundedBinder binder(*this);
  const Status bound = model::VisitParameters(config_, binder, &parameters_);
  K3_CHECK(bound.ok(), "binding to arrays of our own cannot fail");
}

std::span<const uint8_t> ParameterSet::Codes(const TrainedTensor& tensor) const {
  K3_CHECK(tensor.spec.role == TensorRole::kExpert && !codes_.empty(), "a quantised expert");
  return std::span(codes_).subspan(static_cast<size_t>((tensor.offset - experts_begin_) / 2),
                                   static_cast<size_t>(tensor.count / 2));
}

std::span<const uint8_t> ParameterSet::Scales(const TrainedTensor& tensor) const {
  K3_CHECK(tensor.spec.role == TensorRole::kExpert && !scales_.empty(), "a quantised expert");
  return std::span(scales_).subspan(
      static_cast<size_t>((tensor.offset - experts_begin_) / kMxfp4BlockSize),
      static_cast<size_t>(tensor.count / kMxfp4BlockSize));
}

void ParameterSet::ZeroGradients() {
  std::ranges::fill(flat_gradients(), 0.0f);
  GradientBinder binder(this);
  const Status zeroed = model::VisitParameters(config_, binder, &gradient_views_);
  K3_CHECK(zeroed.ok(), "binding to arrays of our own cannot fail");
}

void ParameterSet::FinishGradients() {
  GradientFinisher finisher(this);
  const Status finished = model::VisitParameters(config_, finisher, &gradient_views_);
  K3_CHECK(finished.ok(), "writing to arrays of our own cannot fail");
}

}  // namespace k3::train
