#pragma once
// What a GGUF file of a checkpoint will hold: its architecture metadata and its tensors in order,
// each with the stored matrices or the values that it is made of. Matrices are views of the
// checkpoint behind the WeightStore; only vectors are copied. Plain values; one thread.
//
// Names, shapes and keys are those that llama.cpp's `kimi-k3` reads (docs/formats.md has the
// table). Failures: Unimplemented for a configuration that it cannot run, and those of WeightStore.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_writer.h"
#include "config/model_config.h"
#include "tensor/weight_matrix.h"
#include "weights/weights.h"

namespace k3 {

/// How matrices outside the routed experts are stored.
enum class GgufTrunk : uint8_t { kBf16, kF32, kQ8 };
/// How routed experts are stored; kMxfp4 keeps stored codes and makes plain experts bf16.
enum class GgufExperts : uint8_t { kMxfp4, kBf16, kF32 };

struct GgufTypes {
  GgufTrunk trunk = GgufTrunk::kBf16;
  GgufExperts experts = GgufExperts::kMxfp4;
};

/// One tensor of the file: the rows of `parts`, one part after the other, or `values`.
struct GgufItem {
  GgufTensor tensor;
  std::vector<WeightMatrix> parts;
  std::vector<std::string> part_names;  // [parts] relative, without ".weight"
  bool transposed = false;              // each part's columns are stored as rows
  std::vector<float> values;            // when there are no parts: float32 as stored
};

struct GgufPlan {
  std::vector<GgufItem> items;
  /// Matrices that stay bf16 because their rows are not whole blocks of Q8_0.
  int64_t unblocked_count = 0;
  /// Banks of experts that were asked for as MXFP4 and are stored in another format.
  int64_t plain_banks_count = 0;
};

/// Unimplemented, saying what and why, for a model that llama.cpp's `kimi-k3` cannot run.
Status CheckGgufCanExpress(const ModelConfig& config);

/// Finds every tensor. `config` must have passed CheckGgufCanExpress. MXFP4 scales are not read.
Result<GgufPlan> PlanGguf(const WeightStore& weights, const GgufTypes& types);

/// "kimi-k3.*": what the configuration says.
void AddGgufArchitecture(const ModelConfig& config, GgufMetadata* metadata);

}  // namespace k3
