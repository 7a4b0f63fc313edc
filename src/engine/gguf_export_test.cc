#include "engine/gguf_export.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/gguf_rows.h"
#include "engine/engine.h"
#include "sys/faulty_files.h"
#include "tensor/number_formats.h"
#include "weights/random_init.h"

namespace k3 {
namespace {

const std::string kKjv = std::string(K3_SOURCE_DIR) + "/models/kjv";

/// A reader of its own: every key as text or numbers, every tensor as float32.
class Gguf {
 public:
  struct Tensor {
    uint32_t type = 0;
    std::vector<uint64_t> dims;
    uint64_t offset = 0;
  };
  explicit Gguf(std::string content) : content_(std::move(content)) {
    EXPECT_EQ(content_.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(Take<uint32_t>(), 3u);
    const uint64_t tensor_count = Take<uint64_t>();
    for (uint64_t left = Take<uint64_t>(); left > 0; --left) {
      const std::string key = TakeString();
      TakeValue(key, Take<uint32_t>());
    }
    for (uint64_t i = 0; i < tensor_count; ++i) {
      const std::string name = TakeString();
      Tensor tensor;
      tensor.dims.resize(Take<uint32_t>());
      for (uint64_t& dim : tensor.dims) dim = Take<uint64_t>();
      tensor.type = Take<uint32_t>();
      tensor.offset = Take<uint64_t>();
      EXPECT_EQ(tensor.offset % 32, 0u) << name;
      EXPECT_TRUE(tensors.emplace(name, tensor).second) << name;
    }
    data_ = (at_ + 31) / 32 * 32;
  }

  std::string Bytes(const std::string& name, size_t count) const {
    return content_.substr(data_ + tensors.at(name).offset, count);
  }
  std::vector<float> Values(const std::string& name) const {
    const Tensor& tensor = tensors.at(name);
    size_t count = 1;
    for (const uint64_t dim : tensor.dims) count *= dim;
    const char* from = content_.data() + data_ + tensor.offset;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      uint16_t half = 0;
      switch (tensor.type) {
        case 0:
          std::memcpy(&values[i], from + 4 * i, 4);
          break;
        case 30:
          std::memcpy(&half, from + 2 * i, 2);
          values[i] = Bf16ToFloat(half);
          break;
        case 8:
          std::memcpy(&half, from + i / 32 * 34, 2);
          values[i] = HalfToFloat(half) * static_cast<int8_t>(from[i / 32 * 34 + 2 + i % 32]);
          break;
        case 39: {
          const auto* block = reinterpret_cast<const uint8_t*>(from + i / 32 * 17);
          const uint8_t pair = block[1 + i % 16];
          values[i] = kE2m1Values[i % 32 < 16 ? pair & 15 : pair >> 4] * E8m0ToFloat(block[0]);
          break;
        }
        default:
          ADD_FAILURE() << name << " has type " << tensor.type;
      }
    }
    return values;
  }

  std::map<std::string, double> numbers;
  std::map<std::string, std::vector<std::string>> strings;
  std::map<std::string, std::vector<int32_t>> arrays;
  std::map<std::string, Tensor> tensors;

 private:
  template <typename T>
  T Take() {
    T value{};
    std::memcpy(&value, content_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  std::string TakeString() {
    const uint64_t size = Take<uint64_t>();
    at_ += size;
    return content_.substr(at_ - size, size);
  }
  void TakeValue(const std::string& key, uint32_t type) {
    if (type == 4) numbers[key] = Take<uint32_t>();
    if (type == 6) numbers[key] = Take<float>();
    if (type == 7) numbers[key] = Take<uint8_t>();
    if (type == 8) strings[key] = {TakeString()};
    if (type != 9) return;
    const uint32_t items = Take<uint32_t>();
    for (uint64_t left = Take<uint64_t>(); left > 0; --left) {
      if (items == 8) {
        strings[key].push_back(TakeString());
      } else {
        arrays[key].push_back(Take<int32_t>());
      }
    }
  }

  std::string content_;
  size_t at_ = 0;
  size_t data_ = 0;
};

class GgufExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "k3_gguf_test_" + std::to_string(getpid());
    ASSERT_TRUE(files_->MakeDirectories(dir_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  Gguf Export(const Checkpoint& checkpoint, const GgufTypes& types,
              const Tokenizer* tokenizer = nullptr) {
    GgufExport exported{.checkpoint = &checkpoint,
                        .tokenizer = tokenizer,
                        .out_path = dir_ + "/out.gguf",
                        .name = "test",
                        .types = types,
                        .progress = {}};
    Result<GgufExportSummary> summary = ExportGguf(*files_, exported);
    EXPECT_TRUE(summary.ok()) << summary.status().ToString();
    if (summary.ok()) summary_ = *summary;
    std::string content = *ReadWholeFile(*files_, exported.out_path, int64_t{1} << 30);
    EXPECT_EQ(std::ssize(content), summary_.file_bytes);
    return Gguf(std::move(content));
  }

  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string dir_;
  GgufExportSummary summary_;
};

std::vector<float> Stored(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView view = *checkpoint.Find("language_model.model." + name);
  std::vector<float> values(static_cast<size_t>(view.shape.Elements()));
  WidenToFloat(view.data, view.dtype, std::ssize(values), values.data());
  return values;
}

std::vector<float> StoredExpert(const WeightStore& weights, const std::string& name, int64_t rows,
                                int64_t cols) {
  const WeightMatrix matrix = *weights.Matrix(name, rows, cols);
  std::vector<float> values;
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    UnpackMxfp4Row(static_cast<const uint8_t*>(matrix.data) + r * cols / 2,
                   matrix.scales + r * cols / 32, row);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

TEST_F(GgufExportTest, HoldsTheCheckpointsValues) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  const WeightStore weights = *WeightStore::Bind(checkpoint, {});
  for (const GgufTypes types : {GgufTypes{}, GgufTypes{GgufTrunk::kF32, GgufExperts::kF32},
                                GgufTypes{GgufTrunk::kF32, GgufExperts::kBf16}}) {
    const Gguf gguf = Export(checkpoint, types);
    EXPECT_EQ(gguf.Values("token_embd.weight"), Stored(checkpoint, "embed_tokens.weight"));
    EXPECT_EQ(gguf.Values("blk.0.attn_q.weight"),
              Stored(checkpoint, "layers.0.self_attn.q_proj.weight"));
    EXPECT_EQ(gguf.Values("blk.3.attn_gate.weight"),
              Stored(checkpoint, "layers.3.self_attn.g_proj.weight"));
    EXPECT_EQ(gguf.Values("blk.1.ffn_gate_inp.weight"),
              Stored(checkpoint, "layers.1.block_sparse_moe.gate.weight"));
    EXPECT_EQ(gguf.Values("blk.0.ssm_conv1d_k.weight"),
              Stored(checkpoint, "layers.0.self_attn.k_conv1d.weight"));
    std::vector<float> experts;
    for (int expert = 0; expert < 16; ++expert) {
      const std::vector<float> one = StoredExpert(
          weights, "layers.2.block_sparse_moe.experts." + std::to_string(expert) + ".w2", 96, 96);
      experts.insert(experts.end(), one.begin(), one.end());
    }
    EXPECT_EQ(gguf.Values("blk.2.ffn_down_exps.weight"), experts);
    EXPECT_EQ(gguf.tensors.at("blk.2.ffn_down_exps.weight").dims,
              (std::vector<uint64_t>{96, 96, 16}));
  }
}

TEST_F(GgufExportTest, DerivedTensorsFollowTheirFormulas) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  const Gguf gguf = Export(checkpoint, {});
  const std::vector<float> a_log = Stored(checkpoint, "layers.1.self_attn.A_log");
  const std::vector<float> a = gguf.Values("blk.1.ssm_a");
  ASSERT_EQ(a.size(), 4u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], -std::exp(a_log[i]));
  const std::vector<float> norm = Stored(checkpoint, "layers.1.mlp_res_norm.weight");
  const std::vector<float> query = Stored(checkpoint, "layers.1.mlp_res_proj.weight");
  const std::vector<float> score = gguf.Values("blk.1.ffn_res_score.weight");
  for (size_t i = 0; i < score.size(); ++i) EXPECT_EQ(score[i], norm[i] * query[i]);
  // Four heads of 48 key rows and 48 value rows, latents of 64.
  const std::vector<float> kv = Stored(checkpoint, "layers.3.self_attn.kv_b_proj.weight");
  const std::vector<float> keys = gguf.Values("blk.3.attn_k_b.weight");
  const std::vector<float> values = gguf.Values("blk.3.attn_v_b.weight");
  for (size_t head = 0; head < 4; ++head) {
    for (size_t row = 0; row < 48; ++row) {
      for (size_t l = 0; l < 64; ++l) {
        ASSERT_EQ(keys[(head * 64 + l) * 48 + row], kv[(head * 96 + row) * 64 + l]);
        ASSERT_EQ(values[(head * 48 + row) * 64 + l], kv[(head * 96 + 48 + row) * 64 + l]);
      }
    }
  }
}

TEST_F(GgufExportTest, Q8IsWithinHalfAStepAndLeavesShortRowsBf16) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  const Gguf gguf = Export(checkpoint, {GgufTrunk::kQ8, GgufExperts::kMxfp4});
  EXPECT_EQ(summary_.unblocked_count, 3);  // attn_k_b of three MLA layers has rows of 48
  EXPECT_EQ(gguf.tensors.at("blk.3.attn_k_b.weight").type, 30u);
  const std::string name = "blk.0.attn_output.weight";
  ASSERT_EQ(gguf.tensors.at(name).type, 8u);
  const std::vector<float> exact = Stored(checkpoint, "layers.0.self_attn.o_proj.weight");
  const std::vector<float> found = gguf.Values(name);
  const std::string bytes = gguf.Bytes(name, exact.size() / 32 * 34);
  for (size_t i = 0; i < exact.size(); i += 32) {
    float largest = 0;
    for (size_t j = 0; j < 32; ++j) largest = std::max(largest, std::abs(exact[i + j]));
    const float step = largest / 127.0f;
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i / 32 * 34, 2);
    ASSERT_EQ(half, FloatToHalf(step));
    // Half a step, and what rounding the step to half adds: 127 of its 2^-11, 2^-25 below 2^-14.
    const float limit = 0.5001f * step + 127 * std::max(step / 2048, std::ldexp(1.0f, -25));
    for (size_t j = 0; j < 32; ++j) ASSERT_LE(std::abs(found[i + j] - exact[i + j]), limit);
  }
}

TEST_F(GgufExportTest, MetadataSaysWhatTheConfigurationSays) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  const Tokenizer tokenizer = *LoadTokenizer(kKjv, checkpoint.config().vocab_size);
  Gguf gguf = Export(checkpoint, {}, &tokenizer);
  EXPECT_EQ(gguf.strings["general.architecture"][0], "kimi-k3");
  const std::pair<const char*, double> expected[] = {{"embedding_length", 192},
                                                     {"block_count", 9},
                                                     {"attention.key_length", 80},
                                                     {"attention.value_length", 64},
                                                     {"attention.key_length_mla", 64},
                                                     {"attention.value_length_mla", 48},
                                                     {"rope.dimension_count", 16},
                                                     {"attention.q_lora_rank", 96},
                                                     {"kda.gate_lower_bound", -5},
                                                     {"kda.head_dim", 64},
                                                     {"expert_count", 16},
                                                     {"expert_used_count", 4},
                                                     {"expert_latent_length", 96},
                                                     {"expert_gating_func", 2},
                                                     {"activation.situ_linear_beta", 25},
                                                     {"attn_res.block_size", 4},
                                                     {"leading_dense_block_count", 1},
                                                     {"expert_weights_norm", 1}};
  for (const auto& [key, value] : expected) {
    EXPECT_EQ(gguf.numbers.at(std::string("kimi-k3.") + key), value) << key;
  }
  EXPECT_EQ(gguf.arrays["kimi-k3.attention.head_count_kv"],
            (std::vector<int32_t>{0, 0, 0, 1, 0, 0, 0, 1, 1}));
  EXPECT_EQ(gguf.numbers["tokenizer.ggml.eos_token_id"], 1954);
  ASSERT_EQ(gguf.strings["tokenizer.ggml.tokens"].size(), 2048u);
  EXPECT_EQ(gguf.strings["tokenizer.ggml.tokens"][1954], "<|end_of_msg|>");
  EXPECT_EQ(gguf.arrays["tokenizer.ggml.token_type"][1954], 3);
  EXPECT_EQ(gguf.arrays["tokenizer.ggml.token_type"][1951], 1);
  EXPECT_EQ(std::ssize(gguf.strings["tokenizer.ggml.merges"]), summary_.vocabulary.merges_count);
  EXPECT_EQ(summary_.vocabulary.merges_count + 256 + summary_.vocabulary.unmerged_count, 1952);
  // Every merge makes the token that stands at its rank.
  for (size_t i = 0; i < gguf.strings["tokenizer.ggml.merges"].size(); ++i) {
    std::string merge = gguf.strings["tokenizer.ggml.merges"][i];
    merge.erase(merge.find(' '), 1);
    ASSERT_EQ(merge, gguf.strings["tokenizer.ggml.tokens"][256 + i]);
  }
  EXPECT_EQ(SpellBytes(" \n~\xAD"), "ĠĊ~Ń");
}

TEST_F(GgufExportTest, RefusesWhatTheFormatCannotExpress) {
  const auto json =
      nlohmann::json::parse(*ReadWholeFile(*files_, kKjv + "/config.json", int64_t{1} << 20));
  const std::pair<const char*, nlohmann::json> cases[] = {
      {"use_full_rank_gate", {{"linear_attn_config", {{"use_full_rank_gate", false}}}}},
      {"linear_attn_config.num_heads", {{"linear_attn_config", {{"num_heads", 2}}}}},
      {"moe_layer_freq", {{"moe_layer_freq", 2}}},
      {"num_experts", {{"num_experts", 1025}}}};
  for (const auto& [says, patch] : cases) {
    nlohmann::json changed = json;
    changed["text_config"].merge_patch(patch);
    const Status status = CheckGgufCanExpress(*ParseModelConfig(changed.dump(), "config.json"));
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << says;
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  }
  EXPECT_TRUE(CheckGgufCanExpress(*ParseModelConfig(json.dump(), "config.json")).ok());
}

TEST_F(GgufExportTest, AFullDiskLeavesNothingBehind) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  const GgufExport exported{.checkpoint = &checkpoint,
                            .tokenizer = nullptr,
                            .out_path = dir_ + "/out.gguf",
                            .name = "test",
                            .types = {},
                            .progress = {},
                            .should_stop = {}};
  for (const int64_t allowed : {0, 1, 2, 50, 200}) {
    FaultyFiles files(FaultyFiles::Fault::kShortWrite, allowed);
    const Result<GgufExportSummary> summary = ExportGguf(files, exported);
    EXPECT_EQ(summary.status().code(), StatusCode::kResourceExhausted) << allowed;
    EXPECT_TRUE(files_->List(dir_)->empty()) << allowed;
  }
}

TEST_F(GgufExportTest, WhatIsStoppedLeavesTheOldFile) {
  const Checkpoint checkpoint = *Checkpoint::Open(kKjv);
  Export(checkpoint, {});
  const int64_t whole = summary_.file_bytes;
  const std::vector<std::string> before = *files_->List(dir_);
  GgufExport exported{.checkpoint = &checkpoint,
                      .tokenizer = nullptr,
                      .out_path = dir_ + "/" + before[0],
                      .name = "test",
                      .types = {},
                      .progress = {},
                      .should_stop = {}};
  for (const int stop_at : {0, 1, 7}) {
    int asked = 0;
    exported.should_stop = [&] { return asked++ == stop_at; };
    EXPECT_EQ(ExportGguf(*files_, exported).status().code(), StatusCode::kCancelled) << stop_at;
    EXPECT_EQ(*files_->List(dir_), before);
    EXPECT_EQ((*files_->OpenReadable(exported.out_path))->size(), whole);
  }
}

TEST(GgufRowsTest, HalvesRoundTripAndRoundToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToHalf(value), bits);
    // Halfway to the next magnitude goes to the even one.
    const float next = HalfToFloat(static_cast<uint16_t>(bits + 1));
    if (std::isfinite(value) && std::isfinite(next) && (bits & 0x7FFF) != 0x7FFF) {
      ASSERT_EQ(FloatToHalf(value + (next - value) / 2), bits + (bits & 1)) << bits;
    }
  }
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7BFF);
}

}  // namespace
}  // namespace k3
