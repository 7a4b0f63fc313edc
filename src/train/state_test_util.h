#pragma once
// What tests of a run's state share: small configurations, a directory that goes away, and random
// gradients. One thread.

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "config/model_config.h"
#include "kernels/kernels.h"
#include "model/parameter_visitor.h"
#include "sys/faulty_files.h"
#include "sys/file.h"
#include "train/parameter_set.h"

namespace k3::train {

/// Five layers with KDA, MLA, a dense layer and LatentMoE; `text` and `linear` are more fields,
/// each with a comma behind it, that stand before the others and so must not repeat them.
inline std::string TinyConfigJson(const std::string& text, const std::string& linear,
                                  bool quantised) {
  return R"({"model_type": "kimi_k3", "text_config": {)" + text + R"(
      "model_type": "kimi_linear", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
      "num_hidden_layers": 5, "num_attention_heads": 2, "hidden_act": "situ",
      "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05,
      "max_position_embeddings": 4096, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
      "qk_rope_head_dim": 4, "v_head_dim": 12, "mla_use_nope": true, "num_experts": 6,
      "num_experts_per_token": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
      "linear_attn_config": {)" +
         linear + R"("head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5], "gate_lower_bound": -5.0}})" +
         (quantised ? R"(, "quantization_config": {"quant_method": "compressed-tensors",
                           "format": "mxfp4-pack-quantized"}})"
                    : "}");
}

/// The released model's shape, with every optional part.
inline std::string FullConfigJson(bool quantised = true) {
  return TinyConfigJson(
      R"("q_lora_rank": 24, "mla_use_output_gate": true, "num_shared_experts": 2,
         "routed_expert_hidden_size": 64, "latent_moe_use_norm": true, "attn_res_block_size": 2,)",
      R"("use_full_rank_gate": true,)", quantised);
}

/// Without them.
inline std::string PlainConfigJson(bool quantised = true) {
  return TinyConfigJson(R"("mla_use_output_gate": false, "num_shared_experts": 0,)",
                        R"("use_full_rank_gate": false,)", quantised);
}

inline ModelConfig ParsedConfig(const std::string& json) {
  return ParseModelConfig(json, "config.json").value();
}

/// A fresh directory, removed at the end.
class TestDirectory {
 public:
  explicit TestDirectory(const std::string& name)
      : path_((std::filesystem::temp_directory_path() / (name + "_" + std::to_string(getpid())))
                  .string()) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> Names() const { return *MakeRealFileSystem()->List(path_); }

 private:
  std::string path_;
};

/// Gradients N(0, 1) for every value that the network has, none for the zeros behind A_log.
inline void FillGradients(ParameterSet* set, uint64_t seed) {
  set->ZeroGradients();
  uint64_t stream = 0;
  for (const TrainedTensor& tensor : set->tensors()) {
    Random random(seed, ++stream);
    if (tensor.spec.role == TensorRole::kCorrectionBias) continue;
    std::span<float> gradient = set->FlatGradient(tensor);
    if (tensor.spec.role == TensorRole::kALog) {
      gradient = gradient.first(static_cast<size_t>(set->config().kda.heads));
    }
    for (float& value : gradient) value = random.NextNormal();
  }
}

/// Every parameter's values by name.
class ParameterCollector : public model::ParameterVisitor<WeightMatrix> {
 public:
  explicit ParameterCollector(const ModelConfig& config, model::Parameters parameters) {
    const Status visited = model::VisitParameters(config, *this, &parameters);
    K3_CHECK(visited.ok(), "collecting does not fail");
  }
  Status VisitMatrix(std::string_view name, int64_t rows, int64_t cols, bool /*expert*/,
                     WeightMatrix* matrix) override {
    std::vector<float>& out = values[std::string(name)];
    out.resize(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row) {
      kernels::Kernels(SimdTarget::kScalar)
          .elementwise.widen(*matrix, row, out.data() + row * cols);
    }
    return OkStatus();
  }
  Status VisitVector(std::string_view name, model::VectorForm /*form*/, const Shape& /*shape*/,
                     model::Vector* vector) override {
    values[std::string(name)] = *vector;
    return OkStatus();
  }

  std::map<std::string, std::vector<float>> values;
};

}  // namespace k3::train
