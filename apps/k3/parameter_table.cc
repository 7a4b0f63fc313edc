#include "parameter_table.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "tensor/number_formats.h"
#include "weights/inventory.h"

namespace k3::cli {
namespace {

/// Takes `prefix` off the front of `text` if it is there.
bool Consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int64_t> ConsumeLayer(std::string_view& name) {
  if (!Consume(name, "layers.")) return std::nullopt;
  int64_t layer = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || stop == name.data() + name.size() || *stop != '.') {
    return std::nullopt;
  }
  name.remove_prefix(static_cast<size_t>(stop - name.data()) + 1);
  return layer;
}

Component ClassifyInLayer(std::string_view name, bool is_mla) {
  if (name.starts_with("self_attn.")) return is_mla ? Component::kMla : Component::kKda;
  if (name.starts_with("mlp.")) return Component::kDense;
  if (Consume(name, "block_sparse_moe.")) {
    if (name.starts_with("gate.")) return Component::kRouter;
    if (name.starts_with("experts.")) return Component::kRoutedExperts;
    if (name.starts_with("shared_experts.")) return Component::kSharedExperts;
    if (name.starts_with("routed_expert_")) return Component::kLatentProjections;
    return Component::kOther;
  }
  for (const std::string_view norm :
       {"input_layernorm.", "post_attention_layernorm.", "self_attention_res_", "mlp_res_"}) {
    if (name.starts_with(norm)) return Component::kNorms;
  }
  return Component::kOther;
}

/// The part of the model that a tensor's full or relative name belongs to.
Component Classify(const ModelConfig& config, std::string_view name) {
  if (IsVisionTensor(name)) return Component::kVision;
  Consume(name, "language_model.");
  if (name.starts_with("lm_head.")) return Component::kHead;
  Consume(name, "model.");
  if (name.starts_with("embed_tokens.")) return Component::kEmbedding;
  if (name == "norm.weight" || name.starts_with("output_attn_res_")) return Component::kNorms;
  const std::optional<int64_t> layer = ConsumeLayer(name);
  if (!layer.has_value() || *layer >= config.layers) return Component::kOther;
  return ClassifyInLayer(name, config.is_mla[static_cast<size_t>(*layer)]);
}

/// Sums tensors, and at the end works out what one token uses of each component.
class Counter {
 public:
  explicit Counter(const ModelConfig& config) : config_(config) {}

  void Add(Component component, int64_t tensors, int64_t parameters, int64_t bytes,
           std::string_view type) {
    ComponentRow& row = table_.rows[static_cast<size_t>(component)];
    row.tensors += tensors;
    row.parameters += parameters;
    row.bytes += bytes;
    if (row.types.find(type) == row.types.end()) row.types.emplace(type);
  }

  ParameterTable Finish() {
    for (int i = 0; i < kComponentsCount; ++i) {
      ComponentRow& row = table_.rows[static_cast<size_t>(i)];
      const double share = ActiveShare(static_cast<Component>(i));
      row.active_parameters = std::llround(static_cast<double>(row.parameters) * share);
      row.active_bytes = std::llround(static_cast<double>(row.bytes) * share);
      table_.total.tensors += row.tensors;
      table_.total.parameters += row.parameters;
      table_.total.bytes += row.bytes;
      table_.total.active_parameters += row.active_parameters;
      table_.total.active_bytes += row.active_bytes;
      table_.total.types.insert(row.types.begin(), row.types.end());
    }
    return std::move(table_);
  }

 private:
  /// One row of the embedding is looked up, which counts as nothing.
  double ActiveShare(Component component) const {
    switch (component) {
      case Component::kEmbedding:
      case Component::kVision:
      case Component::kOther:
        return 0;
      case Component::kRoutedExperts:
        if (config_.moe.experts == 0) return 0;
        return static_cast<double>(config_.moe.experts_per_token) /
               static_cast<double>(config_.moe.experts);
      default:
        return 1;
    }
  }

  const ModelConfig& config_;
  ParameterTable table_;
};

}  // namespace

std::string_view ComponentName(Component component) {
  switch (component) {
    case Component::kEmbedding:
      return "embedding";
    case Component::kHead:
      return "head";
    case Component::kKda:
      return "KDA attention";
    case Component::kMla:
      return "MLA attention";
    case Component::kDense:
      return "dense MLP";
    case Component::kRouter:
      return "router";
    case Component::kLatentProjections:
      return "latent projections";
    case Component::kSharedExperts:
      return "shared experts";
    case Component::kRoutedExperts:
      return "routed experts";
    case Component::kNorms:
      return "norms, residual queries";
    case Component::kVision:
      return "vision (not read)";
    case Component::kOther:
      return "other (not read)";
  }
  return "";
}

ParameterTable CountParameters(const Checkpoint& checkpoint) {
  Counter counter(checkpoint.config());
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const Component component = Classify(checkpoint.config(), tensor.name);
    const bool packed = tensor.name.ends_with(".weight_packed");
    const bool scale = tensor.name.ends_with(".weight_scale");
    const int64_t stored = tensor.shape.Elements();
    const int64_t parameters = scale ? 0 : packed ? 2 * stored : stored;
    counter.Add(component, 1, parameters, tensor.bytes,
                packed || scale ? "MXFP4" : DTypeName(tensor.dtype));
  }
  return counter.Finish();
}

ParameterTable CountParameters(const ModelConfig& config) {
  Counter counter(config);
  VisitTensors(config, [&](const ExpectedTensor& tensor) {
    const Component component = Classify(config, tensor.name);
    const int64_t count = tensor.shape.Elements();
    switch (tensor.stored) {
      case StoredType::kBf16:
        counter.Add(component, 1, count, count * 2, "BF16");
        break;
      case StoredType::kF32:
        counter.Add(component, 1, count, count * 4, "F32");
        break;
      case StoredType::kMxfp4:
        counter.Add(component, 2, count, count / 2 + count / kMxfp4BlockSize, "MXFP4");
        break;
    }
  });
  return counter.Finish();
}

}  // namespace k3::cli
