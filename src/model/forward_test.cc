// The network against the float64 reference for every variant of the architecture, and its promise
// that bits depend on neither threads, chunks, batches nor SIMD targets.
#include "model/forward.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <list>
#include <map>

#include "base/random.h"
#include "model/reference_model.h"
#include "sys/file.h"
#include "tensor/number_formats.h"
#include "weights/random_init.h"

namespace k3::model {
namespace {

using Change = std::map<std::string, std::string>;

/// A small configuration; `change` replaces fields ("a.b" for nested ones) by JSON text.
std::string ConfigJson(const Change& change) {
  std::map<std::string, std::string> text = {{"model_type", "\"kimi_linear\""},
                                             {"vocab_size", "96"},
                                             {"hidden_size", "64"},
                                             {"intermediate_size", "80"},
                                             {"num_hidden_layers", "6"},
                                             {"num_attention_heads", "3"},
                                             {"num_key_value_heads", "3"},
                                             {"hidden_act", "\"situ\""},
                                             {"activation_situ_beta", "4.0"},
                                             {"activation_situ_linear_beta", "25.0"},
                                             {"rms_norm_eps", "1e-05"},
                                             {"tie_word_embeddings", "false"},
                                             {"max_position_embeddings", "4096"},
                                             {"q_lora_rank", "24"},
                                             {"kv_lora_rank", "40"},
                                             {"qk_nope_head_dim", "20"},
                                             {"qk_rope_head_dim", "8"},
                                             {"v_head_dim", "24"},
                                             {"mla_use_nope", "true"},
                                             {"mla_use_output_gate", "true"},
                                             {"num_experts", "12"},
                                             {"num_experts_per_token", "3"},
                                             {"num_shared_experts", "2"},
                                             {"moe_intermediate_size", "32"},
                                             {"routed_expert_hidden_size", "32"},
                                             {"latent_moe_use_norm", "true"},
                                             {"moe_renormalize", "true"},
                                             {"moe_router_activation_func", "\"sigmoid\""},
                                             {"routed_scaling_factor", "1.0"},
                                             {"first_k_dense_replace", "1"},
                                             {"moe_layer_freq", "1"},
                                             {"attn_res_block_size", "4"},
                                             {"num_nextn_predict_layers", "0"}};
  std::map<std::string, std::string> linear = {{"head_dim", "24"},
                                               {"num_heads", "5"},
                                               {"short_conv_kernel_size", "4"},
                                               {"kda_layers", "[1, 2, 3, 5]"},
                                               {"full_attn_layers", "[4, 6]"},
                                               {"use_full_rank_gate", "true"},
                                               {"gate_lower_bound", "-5.0"}};
  for (const auto& [name, value] : change) {
    auto& fields = name.rfind("kda.", 0) == 0 ? linear : text;
    const std::string field = name.rfind("kda.", 0) == 0 ? name.substr(4) : name;
    if (value.empty()) {
      fields.erase(field);
    } else {
      fields[field] = value;
    }
  }
  const auto join = [](const std::map<std::string, std::string>& fields) {
    std::string out;
    for (const auto& [name, value] : fields) {
      out += (out.empty() ? "\"" : ", \"") + name + "\": " + value;
    }
    return out;
  };
  return "{\"model_type\": \"kimi_k3\", \"text_config\": {" + join(text) +
         ", \"linear_attn_config\": {" + join(linear) +
         "}}, \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
         "\"mxfp4-pack-quantized\"}}";
}

/// A random checkpoint in a directory of its own, bound.
class Model {
 public:
  explicit Model(const Change& change) {
    // style-ok(global-state): a fresh directory for each model.
    static int count = 0;
    dir_ = ::testing::TempDir() + "k3_forward_test_" + std::to_string(getpid()) + "_" +
           std::to_string(count++);
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    RandomCheckpointOptions options;
    options.config_json = ConfigJson(change);
    options.out_dir = dir_;
    options.seed = 3;
    const auto written = WriteRandomCheckpoint(*files, options);
    K3_CHECK(written.ok(), written.status().message().c_str());
    checkpoint_.emplace(Checkpoint::Open(dir_).value());
    parameters_ = BindParameters(WeightStore::Bind(*checkpoint_, {}).value()).value();
  }
  ~Model() { std::filesystem::remove_all(dir_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return checkpoint_->config(); }
  const Parameters& parameters() const { return parameters_; }

 private:
  std::string dir_;
  std::optional<Checkpoint> checkpoint_;
  Parameters parameters_;
};

std::vector<int32_t> Tokens(int64_t count, uint64_t stream = 0) {
  Random random(11, stream);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random.NextBelow(96)));
  return tokens;
}

struct RunOptions {
  int threads = 1;
  int64_t chunk = 1'000'000;
  AttentionForm form = AttentionForm::kPrefill;
  SimdTarget target = BestSimdTarget();
  bool dirty_scratch = false;  // scratch holds NaN before it is written
};

/// Memory that an earlier pass has left in the worst state.
void FillWithNan(Arena& arena) {
  const std::span<float> floats = arena.AllocateSpan<float>(int64_t{4} << 20);
  std::ranges::fill(floats, std::numeric_limits<float>::quiet_NaN());
  arena.Reset();
}

class HiddenTap : public ForwardObserver {
 public:
  void OnHidden(int64_t layer, std::span<const float> hidden) override {
    auto& rows = layers[layer];
    rows.insert(rows.end(), hidden.begin(), hidden.end());
  }
  void OnRoute(int64_t, std::span<const int32_t>) override {}
  std::map<int64_t, std::vector<float>> layers;
};

std::vector<int32_t> AllRows(int64_t count) {
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(i));
  return rows;
}

/// Logits of every token, run in chunks.
std::vector<float> RunTokens(const Model& model, const std::vector<int32_t>& tokens,
                             const RunOptions& options, HiddenTap* tap = nullptr) {
  ThreadPool pool(options.threads);
  Arena arena;
  if (options.dirty_scratch) FillWithNan(arena);
  const kernels::KernelTable kernels = kernels::Kernels(options.target);
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels}, .observer = tap};
  cache::SequenceState state(model.config());
  std::vector<float> logits(tokens.size() * 96);
  const int64_t total = static_cast<int64_t>(tokens.size());
  for (int64_t at = 0; at < total; at += options.chunk) {
    const int64_t count = std::min(options.chunk, total - at);
    const Batch batch{{{&state, std::span(tokens).subspan(at, count), options.form}}};
    const Status status = Forward(ctx, model.config(), model.parameters(), batch, AllRows(count),
                                  logits.data() + at * 96);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Variant {
  std::string name;
  Change change;
};

std::vector<Variant> Variants() {
  return {
      {"Released", {}},
      {"UnboundedGate", {{"kda.gate_lower_bound", ""}}},
      {"WideBound", {{"kda.gate_lower_bound", "-9.0"}}},
      {"LowRankGate", {{"kda.use_full_rank_gate", "false"}}},
      {"NoQueryLora", {{"q_lora_rank", "null"}}},
      {"NoOutputGate", {{"mla_use_output_gate", "false"}}},
      {"NoLatent", {{"routed_expert_hidden_size", "null"}}},
      {"NoLatentNorm", {{"latent_moe_use_norm", "false"}}},
      {"NoShared", {{"num_shared_experts", "0"}}},
      {"RawScores", {{"moe_renormalize", "false"}, {"routed_scaling_factor", "0.7"}}},
      {"PlainResiduals", {{"attn_res_block_size", "null"}}},
      {"BlockOfOne", {{"attn_res_block_size", "1"}}},
      {"BlockDivides", {{"attn_res_block_size", "3"}}},
      {"OneBlock", {{"attn_res_block_size", "12"}}},
      {"AllDense", {{"first_k_dense_replace", "6"}}},
      {"NoneDense", {{"first_k_dense_replace", "0"}}},
      {"EverySecondDense", {{"moe_layer_freq", "2"}}},
      {"AllExperts", {{"num_experts_per_token", "12"}}},
      {"LinearUp", {{"activation_situ_linear_beta", "null"}}},
      {"NoMla", {{"kda.kda_layers", "[1, 2, 3, 4, 5, 6]"}, {"kda.full_attn_layers", "[]"}}},
      {"OnlyMla", {{"kda.kda_layers", "[]"}, {"kda.full_attn_layers", "[1, 2, 3, 4, 5, 6]"}}},
      {"OneHead",
       {{"kda.num_heads", "1"}, {"num_attention_heads", "1"}, {"num_key_value_heads", "1"}}},
      {"TwoTaps", {{"kda.short_conv_kernel_size", "2"}}},
      {"NoConvolution", {{"kda.short_conv_kernel_size", "1"}}},
  };
}

class VariantTest : public ::testing::TestWithParam<Variant> {};

TEST_P(VariantTest, EqualsTheReference) {
  const Model model(GetParam().change);
  const std::vector<int32_t> tokens = Tokens(40);
  const ReferenceResult want = RunReference(model.config(), model.parameters(), tokens);
  HiddenTap tap;
  const std::vector<float> got = RunTokens(model, tokens, {.threads = 2}, &tap);
  // Where float32 may rightly choose another expert, only the tokens before it are compared.
  size_t count = 0;
  while (count < tokens.size() && want.route_margin[count] > 2e-5) ++count;
  ASSERT_GT(count, 4u);
  const auto relative = [&](const auto& a, const std::vector<double>& b, size_t width) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < count * width; ++i) {
      error += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    return std::sqrt(error / norm);
  };
  // 5e-5 is the bar for random checkpoints of any shape.
  EXPECT_LE(relative(got, want.logits, 96), 5e-5);
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    EXPECT_LE(relative(tap.layers[layer], want.hidden[static_cast<size_t>(layer)], 64), 5e-5);
  }
}

TEST_P(VariantTest, ChunksThreadsAndTargetsGiveTheSameBits) {
  const Model model(GetParam().change);
  const std::vector<int32_t> tokens = Tokens(70);
  const std::vector<float> want = RunTokens(model, tokens, {});
  for (int64_t chunk : {1, 7, 16, 64}) {
    EXPECT_TRUE(SameBits(want, RunTokens(model, tokens, {.threads = 2, .chunk = chunk}))) << chunk;
  }
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2}) {
    if (!IsSupported(target)) continue;
    EXPECT_TRUE(
        SameBits(want, RunTokens(model, tokens, {.threads = 3, .chunk = 33, .target = target})))
        << SimdTargetName(target);
  }
}

TEST_P(VariantTest, DecodeEqualsPrefillUpToTheFirstMla) {
  const Model model(GetParam().change);
  const std::vector<int32_t> tokens = Tokens(50);
  HiddenTap prefill, decode;
  const std::vector<float> a = RunTokens(model, tokens, {}, &prefill);
  const std::vector<float> b =
      RunTokens(model, tokens, {.chunk = 1, .form = AttentionForm::kDecode}, &decode);
  bool exact = true;
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    exact = exact && !model.config().is_mla[static_cast<size_t>(layer)];
    if (exact) {
      EXPECT_TRUE(SameBits(prefill.layers[layer], decode.layers[layer])) << layer;
    }
  }
  if (exact) {
    EXPECT_TRUE(SameBits(a, b));
  }
}

TEST_P(VariantTest, WhatScratchHeldBeforeDoesNotMatter) {
  const Model model(GetParam().change);
  const std::vector<int32_t> tokens = Tokens(40);
  for (const auto& [chunk, form] :
       {std::pair{int64_t{40}, AttentionForm::kPrefill}, {1, AttentionForm::kDecode}}) {
    RunOptions options{.threads = 2, .chunk = chunk, .form = form};
    const std::vector<float> want = RunTokens(model, tokens, options);
    options.dirty_scratch = true;
    EXPECT_TRUE(SameBits(want, RunTokens(model, tokens, options))) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariantTest, ::testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST(ForwardTest, ABatchGivesEachSequenceTheBitsItHasAlone) {
  const Model model(Change{});
  const std::vector<std::vector<int32_t>> prompts = {Tokens(300, 1), Tokens(1, 2), Tokens(37, 3),
                                                     Tokens(16, 4)};
  ThreadPool pool(2);
  Arena arena;
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels}};
  std::vector<cache::SequenceState> states;
  for (size_t i = 0; i < prompts.size(); ++i) states.emplace_back(model.config());
  // Uneven cuts, so that the sequences stand at different places of their chunks and blocks; the
  // last tokens of two of them are decoded beside the others' prompts.
  const std::vector<std::vector<int64_t>> cuts = {
      {100, 190, 5, 5}, {0, 1, 0, 0}, {9, 9, 18, 1}, {3, 11, 1, 1}};
  std::vector<std::vector<float>> got(prompts.size());
  for (size_t step = 0; step < 4; ++step) {
    Batch batch;
    std::vector<size_t> owners;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int64_t count = cuts[i][step];
      if (count == 0) continue;
      const AttentionForm form =
          step == 3 && i >= 2 ? AttentionForm::kDecode : AttentionForm::kPrefill;
      batch.segments.push_back(
          {&states[i], std::span(prompts[i]).subspan(states[i].length(), count), form});
      owners.insert(owners.end(), static_cast<size_t>(count), i);
    }
    std::vector<float> logits(owners.size() * 96);
    ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), batch,
                        AllRows(static_cast<int64_t>(owners.size())), logits.data())
                    .ok());
    for (size_t row = 0; row < owners.size(); ++row) {
      auto& out = got[owners[row]];
      out.insert(out.end(), logits.begin() + row * 96, logits.begin() + (row + 1) * 96);
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<float> alone = RunTokens(model, prompts[i], {});
    if (i >= 2) {
      // The same split into prompt and one decoded token, alone.
      cache::SequenceState state(model.config());
      const size_t prompt = prompts[i].size() - 1;
      const Batch first{{{&state, std::span(prompts[i]).first(prompt), AttentionForm::kPrefill}}};
      const Batch last{{{&state, std::span(prompts[i]).subspan(prompt), AttentionForm::kDecode}}};
      ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), first, {}, nullptr).ok());
      ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), last, AllRows(1),
                          alone.data() + prompt * 96)
                      .ok());
    }
    EXPECT_TRUE(SameBits(alone, got[i])) << "sequence " << i;
  }
}

/// Every matrix of the trunk whose rows are whole blocks, packed to MXFP4. Owns the bytes.
class PackedTrunk {
 public:
  explicit PackedTrunk(const Parameters& from) : parameters_(from) {
    Pack(parameters_.embedding);
    Pack(parameters_.head);
    for (LayerParameters& p : parameters_.layers) {
      for (WeightMatrix* w :
           {&p.kda.q, &p.kda.k, &p.kda.v, &p.kda.decay_a, &p.kda.beta, &p.kda.gate, &p.mla.q_a,
            &p.mla.kv_a, &p.mla.kv_b, &p.mla.gate, &p.moe.router, &p.moe.latent_down,
            &p.moe.latent_up, &p.moe.shared.gate, &p.moe.shared.up}) {
        Pack(*w);
      }
    }
  }
  const Parameters& parameters() const { return parameters_; }

 private:
  void Pack(WeightMatrix& w) {
    if (w.empty() || w.cols % kMxfp4BlockSize != 0) return;
    std::vector<float> row(static_cast<size_t>(w.cols));
    auto& codes = bytes_.emplace_back(static_cast<size_t>(w.rows * w.cols / 2));
    auto& scales = bytes_.emplace_back(static_cast<size_t>(w.rows * w.cols / kMxfp4BlockSize));
    const kernels::KernelTable kernels = kernels::Kernels(SimdTarget::kScalar);
    for (int64_t r = 0; r < w.rows; ++r) {
      kernels.elementwise.widen(w, r, row.data());
      PackMxfp4Row(row, codes.data() + r * w.cols / 2,
                   scales.data() + r * w.cols / kMxfp4BlockSize);
    }
    w = {codes.data(), scales.data(), w.rows, w.cols, WeightFormat::kMxfp4};
  }

  Parameters parameters_;
  std::list<std::vector<uint8_t>> bytes_;
};

TEST(ForwardTest, TheTrunkMayBeMxfp4Too) {
  const Model model(Change{{"kv_lora_rank", "64"}});
  const PackedTrunk packed(model.parameters());
  const std::vector<int32_t> tokens = Tokens(30);
  const ReferenceResult want = RunReference(model.config(), packed.parameters(), tokens);
  ThreadPool pool(2);
  Arena arena;
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels}};
  for (AttentionForm form : {AttentionForm::kPrefill, AttentionForm::kDecode}) {
    cache::SequenceState state(model.config());
    std::vector<float> logits(30 * 96);
    const Batch batch{{{&state, tokens, form}}};
    ASSERT_TRUE(
        Forward(ctx, model.config(), packed.parameters(), batch, AllRows(30), logits.data()).ok());
    double error = 0, norm = 0;
    for (size_t t = 0; t < 30 && want.route_margin[t] > 2e-5; ++t) {
      for (size_t i = t * 96; i < (t + 1) * 96; ++i) {
        error += (logits[i] - want.logits[i]) * (logits[i] - want.logits[i]);
        norm += want.logits[i] * want.logits[i];
      }
    }
    // 5e-5 is the bar for random checkpoints of any shape.
    EXPECT_LE(std::sqrt(error / norm), 5e-5);
  }
}

TEST(ForwardTest, RefusesBadBatchesAndChangesNothing) {
  const Model model(Change{{"max_position_embeddings", "20"}});
  ThreadPool pool(1);
  Arena arena;
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels}};
  cache::SequenceState state(model.config());
  const auto run = [&](std::vector<int32_t> tokens) {
    const Batch batch{{{&state, tokens, AttentionForm::kPrefill}}};
    return Forward(ctx, model.config(), model.parameters(), batch, {}, nullptr);
  };
  EXPECT_EQ(run({}).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(run({96}).message().find("96"), std::string::npos);
  EXPECT_EQ(run({-1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(Tokens(21)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state.length(), 0);
  EXPECT_TRUE(run(Tokens(20)).ok());
  EXPECT_EQ(run({1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state.length(), 20);
}

TEST(ForwardTest, AClonedStateGoesOnAlike) {
  const Model model(Change{});
  const std::vector<int32_t> tokens = Tokens(60);
  ThreadPool pool(1);
  Arena arena;
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels}};
  cache::SequenceState state(model.config());
  const Batch first{{{&state, std::span(tokens).first(35), AttentionForm::kPrefill}}};
  ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), first, {}, nullptr).ok());
  cache::SequenceState copy = state.Clone();
  std::vector<float> a(25 * 96), b(25 * 96);
  const Batch rest{{{&state, std::span(tokens).subspan(35), AttentionForm::kPrefill}}};
  const Batch again{{{&copy, std::span(tokens).subspan(35), AttentionForm::kPrefill}}};
  ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), rest, AllRows(25), a.data()).ok());
  ASSERT_TRUE(Forward(ctx, model.config(), model.parameters(), again, AllRows(25), b.data()).ok());
  EXPECT_TRUE(SameBits(a, b));
}

}  // namespace
}  // namespace k3::model
