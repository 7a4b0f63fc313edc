// A sequence that a prefix cache gave back goes on with the bits of the one that it was taken of.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/random.h"
#include "cache/prefix_cache.h"
#include "model/forward.h"
#include "sys/file.h"
#include "weights/random_init.h"

namespace k3::model {
namespace {

constexpr int64_t kVocabulary = 96;

/// `gate` is the field of the decay's lower bound, with its comma, or nothing.
std::string ConfigJson(const std::string& gate) {
  return R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear",
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 4,
    "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_act": "situ",
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "max_position_embeddings": 4096, "q_lora_rank": 24,
    "kv_lora_rank": 40, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 24,
    "mla_use_nope": true, "mla_use_output_gate": true, "num_experts": 12,
    "num_experts_per_token": 3, "num_shared_experts": 1, "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 32, "latent_moe_use_norm": true, "moe_renormalize": true,
    "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "attn_res_block_size": 4,
    "num_nextn_predict_layers": 0, "linear_attn_config": {"head_dim": 24, "num_heads": 5,)" +
         gate + R"("short_conv_kernel_size": 4, "kda_layers": [1, 3, 4],
    "full_attn_layers": [2], "use_full_rank_gate": true}},
    "quantization_config": {"quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized"}})";
}

class PrefixRestoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  PrefixRestoreTest() : pool_(2), kernels_(kernels::Kernels(BestSimdTarget())) {
    dir_ = ::testing::TempDir() + "k3_prefix_restore_test_" + std::to_string(getpid());
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    RandomCheckpointOptions options;
    options.config_json = ConfigJson(GetParam());
    options.out_dir = dir_;
    options.seed = 4;
    const auto written = WriteRandomCheckpoint(*files, options);
    K3_CHECK(written.ok(), written.status().message().c_str());
    checkpoint_.emplace(Checkpoint::Open(dir_).value());
    parameters_ = BindParameters(WeightStore::Bind(*checkpoint_, {}).value()).value();
    Random random(11, 0);
    tokens_.resize(600);
    for (int32_t& id : tokens_) id = static_cast<int32_t>(random.NextBelow(kVocabulary));
  }
  ~PrefixRestoreTest() override { std::filesystem::remove_all(dir_); }

  const ModelConfig& config() const { return checkpoint_->config(); }
  std::span<const int32_t> First(int64_t count) const {
    return std::span(tokens_).first(static_cast<size_t>(count));
  }

  /// Runs tokens [state.length(), end); returns the logits of every one.
  std::vector<float> Run(cache::SequenceState& state, int64_t end,
                         AttentionForm form = AttentionForm::kPrefill,
                         std::span<const SnapshotPoint> snapshots = {}) {
    const auto part = First(end).subspan(static_cast<size_t>(state.length()));
    std::vector<int32_t> rows(part.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> logits(part.size() * kVocabulary);
    const Batch batch{{{&state, part, form, snapshots}}};
    const ForwardContext ctx{.exec = {&pool_, &arena_, &kernels_}};
    const Status status = Forward(ctx, config(), parameters_, batch, rows, logits.data());
    EXPECT_TRUE(status.ok()) << status.ToString();
    return logits;
  }

  ThreadPool pool_;
  Arena arena_;
  kernels::KernelTable kernels_;
  std::string dir_;
  std::optional<Checkpoint> checkpoint_;
  Parameters parameters_;
  std::vector<int32_t> tokens_;
};

bool EndsWithBits(const std::vector<float>& whole, const std::vector<float>& end) {
  return whole.size() >= end.size() && std::memcmp(whole.data() + (whole.size() - end.size()),
                                                   end.data(), end.size() * sizeof(float)) == 0;
}

TEST_P(PrefixRestoreTest, GoesOnWithTheSameBits) {
  const cache::PrefixHash start = cache::NamespaceHash("");
  for (const int64_t boundary : {16, 48, 240, 256, 272, 512}) {
    cache::PrefixCache prefixes(config(), {.bytes_max = int64_t{1} << 30});
    cache::SequenceState writer(config());
    Run(writer, boundary);
    ASSERT_EQ(prefixes.AddPages(start, First(boundary), writer), boundary);
    ASSERT_TRUE(prefixes.AddSnapshot(start, First(boundary), writer.TakeSnapshot(),
                                     cache::SnapshotKind::kTurn));
    // The writer goes on behind the rows that it shares, here with generated tokens.
    const std::vector<float> decoded = Run(writer, boundary + 20, AttentionForm::kDecode);
    for (const int64_t tail : {1, 2, 3, 4, 5, 15, 16, 17, 40}) {
      cache::SequenceState cold(config());
      const std::vector<float> want = Run(cold, boundary + tail);
      const cache::PrefixLease lease = prefixes.Lookup(start, tokens_, boundary + tail - 1);
      ASSERT_EQ(lease.length(), boundary);
      cache::SequenceState state(config());
      prefixes.Restore(lease, state);
      EXPECT_TRUE(EndsWithBits(want, Run(state, boundary + tail))) << boundary << " " << tail;
      cache::SequenceState again(config());
      prefixes.Restore(lease, again);
      const std::vector<float> more = Run(again, boundary + 20, AttentionForm::kDecode);
      EXPECT_TRUE(EndsWithBits(decoded, more)) << boundary << " " << tail;
    }
  }
}

bool SameBits(const cache::FloatArray& a, const cache::FloatArray& b) {
  return a.count() == b.count() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.count()) * sizeof(float)) == 0;
}

// A snapshot taken on the way is the one of a sequence that ended there, and taking it changes
// nothing.
TEST_P(PrefixRestoreTest, SnapshotsOnTheWayAreThoseOfAnEnd) {
  struct Case {
    int64_t start, end;
    std::vector<int64_t> points;
  };
  // On the grid and off it, also so soon behind the start that the convolution looks back over it.
  for (const Case& c : std::vector<Case>{{0, 40, {16, 32}},
                                         {0, 16, {16}},
                                         {15, 17, {16}},
                                         {14, 48, {16, 48}},
                                         {16, 300, {32, 256, 288}},
                                         {37, 300, {48, 64, 272}}}) {
    cache::SequenceState state(config()), plain(config());
    if (c.start > 0) Run(state, c.start);
    if (c.start > 0) Run(plain, c.start);
    std::vector<cache::KdaSnapshot> snapshots;
    std::vector<SnapshotPoint> points;
    snapshots.reserve(c.points.size());
    for (const int64_t at : c.points) {
      snapshots.push_back(cache::KdaSnapshot::Unfilled(config()));
      points.push_back({at, &snapshots.back()});
    }
    EXPECT_EQ(Run(state, c.end, AttentionForm::kPrefill, points), Run(plain, c.end));
    EXPECT_EQ(Run(state, c.end + 20), Run(plain, c.end + 20));
    for (size_t i = 0; i < points.size(); ++i) {
      cache::SequenceState ended(config());
      Run(ended, c.points[i]);
      const cache::SharedSnapshot want = ended.TakeSnapshot();
      ASSERT_EQ(snapshots[i].layers.size(), want->layers.size());
      for (size_t layer = 0; layer < want->layers.size(); ++layer) {
        EXPECT_TRUE(SameBits(snapshots[i].layers[layer].state, want->layers[layer].state))
            << c.start << " to " << c.end << " at " << c.points[i] << ", layer " << layer;
        EXPECT_TRUE(SameBits(snapshots[i].layers[layer].conv, want->layers[layer].conv))
            << c.start << " to " << c.end << " at " << c.points[i] << ", layer " << layer;
      }
    }
  }
}

std::string GateName(const ::testing::TestParamInfo<const char*>& test) {
  return std::array<const char*, 3>{"Anchored", "Wide", "Unbounded"}[test.index];
}

INSTANTIATE_TEST_SUITE_P(Gates, PrefixRestoreTest,
                         ::testing::Values(R"("gate_lower_bound": -5.0,)",
                                           R"("gate_lower_bound": -9.0,)", ""),
                         GateName);

}  // namespace
}  // namespace k3::model
