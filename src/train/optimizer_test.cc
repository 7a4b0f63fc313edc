#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "train/qk_clip.h"
#include "train/state_test_util.h"

namespace k3::train {
namespace {

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

class OptimizerTest : public ::testing::Test {
 protected:
  ThreadPool pool_{1};
  kernels::KernelTable kernels_ = kernels::Kernels(BestSimdTarget());
};

/// How each tensor of the tiny configurations is stepped: Muon's blocks ({0}: the whole matrix), or
/// AdamW with or without decay.
struct Rule {
  bool is_muon = false;
  std::vector<int64_t> blocks;
  bool decays = false;
};

Rule RuleOf(const std::string& name, bool is_mla) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  const std::vector<std::pair<const char*, std::vector<int64_t>>> kda = {
      {"q_proj.weight", {16}},   {"k_proj.weight", {16}}, {"v_proj.weight", {16}},
      {"f_b_proj.weight", {16}}, {"g_proj.weight", {16}}, {"g_b_proj.weight", {16}}};
  const std::vector<std::pair<const char*, std::vector<int64_t>>> mla = {
      {"q_proj.weight", {12}},
      {"q_b_proj.weight", {12}},
      {"kv_b_proj.weight", {8, 12}},
      {"g_proj.weight", {12}}};
  for (const auto& [suffix, blocks] : is_mla ? mla : kda) {
    if (ends(std::string("self_attn.") + suffix)) return {true, blocks, true};
  }
  if (ends("embed_tokens.weight")) return {};
  if (ends("lm_head.weight") || ends(".b_proj.weight")) return {false, {}, true};
  if (ends("norm.weight") || ends("A_log") || ends("dt_bias") || ends("conv1d.weight") ||
      ends("res_proj.weight") || ends("res_norm.weight") || ends("attn_res_norm.weight")) {
    return {};
  }
  return {true, {}, true};
}

TEST_F(OptimizerTest, StepsEachTensorByItsRule) {
  for (const std::string& json : {FullConfigJson(), PlainConfigJson()}) {
    for (const auto& [per_head, job_work_max] : {std::pair(true, 1e9), {true, 0.0}, {false, 1e5}}) {
      const ModelConfig config = ParsedConfig(json);
      ParameterSet set(config), alone(config);
      set.Initialise(&pool_, 1);
      alone.Initialise(&pool_, 1);
      Optimizer optimizer(&pool_, &kernels_,
                          {.per_head = per_head,
                           .muon_lr_scale = 0.5f,
                           .adamw_lr_scale = 2,
                           .clip_norm = 0,
                           .job_work_max = job_work_max},
                          &set);
      FillGradients(&set, 4);
      FillGradients(&alone, 4);
      const OptimizerReport report = optimizer.Step(1e-2f, {});
      EXPECT_FALSE(report.skipped);
      EXPECT_EQ(report.clipped_heads, 0);
      Muon muon(&pool_, &kernels_, {});
      for (const TrainedTensor& tensor : alone.tensors()) {
        SCOPED_TRACE(tensor.spec.name);
        const std::span<float> weights = alone.Master(tensor);
        const std::span<const float> gradient = alone.FlatGradient(tensor);
        const bool is_mla = tensor.spec.layer >= 0 && config.is_mla[size_t(tensor.spec.layer)];
        const Rule rule = RuleOf(tensor.spec.name, is_mla);
        if (tensor.spec.role == TensorRole::kCorrectionBias) {
          EXPECT_TRUE(optimizer.MomentsOf(tensor).first.empty());
        } else if (rule.is_muon) {
          std::vector<float> momentum(weights.size());
          MuonShape shape{tensor.spec.shape[0], tensor.spec.shape[1], {}};
          if (per_head) shape.block_rows = rule.blocks;
          muon.Step(shape, gradient, 0.5f * 1e-2f, momentum, weights);
          EXPECT_TRUE(SameBits(optimizer.MomentsOf(tensor).first, momentum));
          EXPECT_TRUE(optimizer.MomentsOf(tensor).second.empty());
        } else {
          AdamWState state(tensor.count);
          AdamWStep(&pool_, {.weight_decay = rule.decays ? 0.1f : 0.0f}, 2 * 1e-2f, gradient,
                    weights, &state);
          EXPECT_TRUE(SameBits(optimizer.MomentsOf(tensor).first, state.m));
          EXPECT_TRUE(SameBits(optimizer.MomentsOf(tensor).second, state.v));
        }
        EXPECT_TRUE(SameBits(set.Master(tensor), weights));
      }
    }
  }
}

TEST_F(OptimizerTest, TheBitsDoNotDependOnTheThreads) {
  const ModelConfig config = ParsedConfig(FullConfigJson());
  std::vector<float> expected;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    ParameterSet set(config);
    set.Initialise(&pool, 1);
    Optimizer optimizer(&pool, &kernels_, {.job_work_max = 5e4}, &set);
    double norms = 0;
    for (uint64_t i = 0; i < 3; ++i) {
      FillGradients(&set, i);
      norms += optimizer.Step(1e-2f, std::vector<float>{90, 250, 120, 3}).gradient_norm;
    }
    std::vector<float> found = Copy(set.masters());
    found.push_back(static_cast<float>(norms));
    if (expected.empty()) expected = found;
    EXPECT_TRUE(SameBits(expected, found)) << threads;
  }
}

TEST_F(OptimizerTest, GradientsAreClippedToTheNorm) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 1);
  Optimizer optimizer(&pool_, &kernels_, {.clip_norm = 2.0f}, &set);
  FillGradients(&set, 4);
  const std::vector<float> before = Copy(set.flat_gradients());
  double squares = 0;
  for (const float value : before) squares += double{value} * value;
  const double norm = std::sqrt(squares);
  // Two orders of one sum in float64.
  EXPECT_NEAR(optimizer.Step(1e-2f, {}).gradient_norm, norm, 1e-12 * norm);
  const auto factor = static_cast<float>(2.0 / norm);
  for (size_t i = 0; i < before.size(); ++i) {
    // The factor may differ in its last place with the norm's.
    ASSERT_NEAR(set.flat_gradients()[i], before[i] * factor, 2e-7 * std::fabs(before[i] * factor));
  }
  // Below the norm nothing is scaled.
  for (float& value : set.flat_gradients()) value *= 0.5f;
  const std::vector<float> small = Copy(set.flat_gradients());
  EXPECT_NEAR(optimizer.Step(1e-2f, {}).gradient_norm, 1.0, 1e-5);
  EXPECT_TRUE(SameBits(small, set.flat_gradients()));
}

TEST_F(OptimizerTest, AGradientThatIsNotFiniteChangesNothing) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 1);
  Optimizer optimizer(&pool_, &kernels_, {}, &set);
  FillGradients(&set, 4);
  optimizer.Step(1e-2f, {});
  const std::vector<float> masters = Copy(set.masters());
  const TrainedTensor& tensor = *set.Lookup("layers.2.self_attn.kv_b_proj.weight");
  const std::vector<float> momentum = Copy(optimizer.MomentsOf(tensor).first);
  for (const float bad : {NAN, INFINITY}) {
    FillGradients(&set, 5);
    set.FlatGradient(tensor)[17] = bad;
    EXPECT_TRUE(optimizer.Step(1e-2f, {}).skipped);
    EXPECT_TRUE(SameBits(masters, set.masters()));
    EXPECT_TRUE(SameBits(momentum, optimizer.MomentsOf(tensor).first));
    EXPECT_EQ(optimizer.steps(), 1);
  }
}

TEST_F(OptimizerTest, WithoutGradientsOnlyMatricesDecay) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  std::ranges::fill(set.masters(), 1.0f);
  Optimizer optimizer(&pool_, &kernels_, {.weight_decay = 0.5f}, &set);
  set.ZeroGradients();
  optimizer.Step(0.25f, {});
  for (const TrainedTensor& tensor : set.tensors()) {
    const bool matrix =
        tensor.spec.shape.rank() == 2 && tensor.spec.role != TensorRole::kResidualQuery;
    const bool decays = matrix && tensor.spec.role != TensorRole::kEmbedding;
    for (const float value : set.Master(tensor)) {
      ASSERT_EQ(value, decays ? 0.875f : 1.0f) << tensor.spec.name;
    }
  }
}

TEST_F(OptimizerTest, LargeLogitsAreClippedAfterTheStep) {
  for (const std::string& json : {FullConfigJson(), PlainConfigJson()}) {
    const ModelConfig config = ParsedConfig(json);
    ParameterSet plain(config), clipped(config);
    OptimizerReport report;
    const std::vector<float> logits = {50, 400, 100, 200};  // [2 layers, 2 heads]
    for (ParameterSet* set : {&plain, &clipped}) {
      set->Initialise(&pool_, 1);
      FillGradients(set, 4);
      Optimizer optimizer(&pool_, &kernels_, {.qk_clip_tau = set == &plain ? 0.0f : 100.0f}, set);
      report = optimizer.Step(1e-2f, logits);
    }
    EXPECT_EQ(report.clipped_heads, 2);
    const std::string query = config.mla.q_lora_rank > 0 ? "q_b_proj" : "q_proj";
    const int64_t q_rank = config.mla.q_lora_rank > 0 ? 24 : 32;
    for (const int layer : {2, 4}) {
      const std::string prefix = "layers." + std::to_string(layer) + ".self_attn.";
      const TrainedTensor& q = *plain.Lookup(prefix + query + ".weight");
      const TrainedTensor& kv = *plain.Lookup(prefix + "kv_b_proj.weight");
      const QkClipShape shape{2, 8, 4, 12, q_rank, 16};
      QkClip(shape, std::span(logits).subspan(layer == 2 ? 0 : 2, 2), 100, plain.Master(q),
             plain.Master(kv));
    }
    EXPECT_TRUE(SameBits(plain.masters(), clipped.masters()));
  }
}

TEST_F(OptimizerTest, ReportsTheSizeOfUpdates) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 1);
  Optimizer optimizer(&pool_, &kernels_, {.weight_decay = 0}, &set);
  FillGradients(&set, 4);
  const std::vector<float> before = Copy(set.masters());
  const OptimizerReport report = optimizer.Step(0.5f, {});
  // Muon's scale makes an orthogonal update's root mean square 0.2; five Newton-Schulz steps leave
  // singular values between about 0.7 and 1.2.
  for (const OptimizerGroup group :
       {OptimizerGroup::kPerHead, OptimizerGroup::kMatrix, OptimizerGroup::kExpert}) {
    EXPECT_GT(report.update_rms[size_t(group)], 0.14);
    EXPECT_LT(report.update_rms[size_t(group)], 0.24);
  }
  // Adam's first step is the gradient's sign.
  EXPECT_NEAR(report.update_rms[size_t(OptimizerGroup::kTable)], 1, 1e-3);
  double squares = 0;
  int64_t count = 0;
  for (const TrainedTensor& tensor : set.tensors()) {
    if (tensor.spec.role != TensorRole::kExpert) continue;
    count += tensor.count;
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      const double change = double{set.masters()[size_t(i)]} - before[size_t(i)];
      squares += change * change;
    }
  }
  const double expected = std::sqrt(squares / static_cast<double>(count)) / 0.5;
  // The same sum in another order.
  EXPECT_NEAR(report.update_rms[size_t(OptimizerGroup::kExpert)], expected, 1e-12);
}

/// The two figures from the masters before and after a step, by the rules of the test's own table.
std::pair<double, double> HeadFigures(const ParameterSet& set, std::span<const float> before) {
  double spreads = 0, ratios = 0, entries = 0;
  for (const TrainedTensor& tensor : set.tensors()) {
    const int64_t layer = tensor.spec.layer;
    const Rule rule = RuleOf(tensor.spec.name, layer >= 0 && set.config().is_mla[size_t(layer)]);
    if (rule.blocks.empty()) continue;
    const int64_t cols = tensor.spec.shape[1];
    std::vector<std::vector<double>> sizes(rule.blocks.size());
    auto at = static_cast<size_t>(tensor.offset);
    const size_t end = at + static_cast<size_t>(tensor.count);
    for (size_t block = 0; at < end; ++block) {
      const size_t kind = block % rule.blocks.size();
      const auto count = static_cast<size_t>(rule.blocks[kind] * cols);
      double squares = 0;
      for (size_t i = at; i < at + count; ++i) {
        squares += std::pow(double{set.masters()[i]} - before[i], 2);
      }
      sizes[kind].push_back(std::sqrt(squares / static_cast<double>(count)));
      at += count;
    }
    for (const std::vector<double>& x : sizes) {
      const auto n = static_cast<double>(x.size());
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
      double variance = 0;
      for (const double value : x) variance += (value - mean) * (value - mean) / n;
      spreads += std::sqrt(variance) / mean;
      ratios += *std::ranges::max_element(x) / *std::ranges::min_element(x);
      ++entries;
    }
  }
  return {spreads / entries, ratios / entries};
}

/// Makes the first head's gradient larger in every tensor that heads share.
void EnlargeFirstHead(ParameterSet* set, float factor) {
  for (const TrainedTensor& tensor : set->tensors()) {
    const int64_t layer = tensor.spec.layer;
    const Rule rule = RuleOf(tensor.spec.name, layer >= 0 && set->config().is_mla[size_t(layer)]);
    const int64_t rows = std::accumulate(rule.blocks.begin(), rule.blocks.end(), int64_t{0});
    if (rows == 0) continue;
    const auto count = static_cast<size_t>(rows * tensor.spec.shape[1]);
    for (float& value : set->FlatGradient(tensor).first(count)) value *= factor;
  }
}

TEST_F(OptimizerTest, ReportsHowUnequalTheHeadsUpdatesAre) {
  for (const std::string& json : {FullConfigJson(), PlainConfigJson()}) {
    for (const OptimizerOptions& options : {OptimizerOptions{}, OptimizerOptions{.job_work_max = 0},
                                            OptimizerOptions{.per_head = false},
                                            OptimizerOptions{.per_head = false, .job_work_max = 0},
                                            OptimizerOptions{.kind = OptimizerKind::kAdamW}}) {
      double spread = -1, ratio = -1;
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        ParameterSet set(ParsedConfig(json));
        set.Initialise(&pool, 1);
        Optimizer optimizer(&pool, &kernels_, options, &set);
        for (uint64_t step = 0; step < 2; ++step) {
          FillGradients(&set, step);
          EnlargeFirstHead(&set, 5);
          const std::vector<float> before = Copy(set.masters());
          const OptimizerReport report = optimizer.Step(1e-2f, {});
          const auto [expected_spread, expected_ratio] = HeadFigures(set, before);
          // The same sums in float64 in another order.
          EXPECT_NEAR(report.head_update_spread, expected_spread, 1e-12 * expected_spread);
          EXPECT_NEAR(report.head_update_ratio, expected_ratio, 1e-12 * expected_ratio);
          if (step == 0) continue;
          if (threads == 1) {
            spread = report.head_update_spread;
            ratio = report.head_update_ratio;
          }
          EXPECT_EQ(report.head_update_spread, spread) << threads;
          EXPECT_EQ(report.head_update_ratio, ratio) << threads;
        }
      }
    }
  }
}

TEST_F(OptimizerTest, MuonByHeadMakesTheHeadsUpdatesEqual) {
  OptimizerReport by_head, whole;
  for (const bool per_head : {true, false}) {
    ParameterSet set(ParsedConfig(FullConfigJson()));
    set.Initialise(&pool_, 1);
    Optimizer optimizer(&pool_, &kernels_, {.per_head = per_head, .weight_decay = 0}, &set);
    FillGradients(&set, 4);
    EnlargeFirstHead(&set, 100);
    (per_head ? by_head : whole) = optimizer.Step(1e-2f, {});
  }
  // Measured 0.019 and 1.04 by head, where only the Newton-Schulz steps' inexact singular values
  // differ, and 0.40 and 10.8 whole: in a matrix with more rows than columns the large head takes
  // the others' share. The limits are between them with room for other seeds.
  EXPECT_LT(by_head.head_update_spread, 0.09);
  EXPECT_GT(whole.head_update_spread, 0.09);
  EXPECT_GT(whole.head_update_spread, 8 * by_head.head_update_spread);
  EXPECT_LT(by_head.head_update_ratio, 1.3);
  EXPECT_GT(whole.head_update_ratio, 3.4);
}

TEST_F(OptimizerTest, HeadsWithoutAChangeAreNoRatio) {
  ParameterSet set(ParsedConfig(FullConfigJson()));
  set.Initialise(&pool_, 1);
  Optimizer optimizer(&pool_, &kernels_, {.weight_decay = 0}, &set);
  set.ZeroGradients();
  OptimizerReport report = optimizer.Step(1e-2f, {});
  EXPECT_EQ(report.head_update_spread, 0);
  EXPECT_EQ(report.head_update_ratio, 0);
  // One of two heads moves: sizes x and 0 have the mean x / 2 and the standard deviation x / 2.
  const TrainedTensor& tensor = *set.Lookup("layers.2.self_attn.q_b_proj.weight");
  set.FlatGradient(tensor)[0] = 1;
  report = optimizer.Step(1e-2f, {});
  EXPECT_EQ(report.head_update_spread, 1);
  EXPECT_EQ(report.head_update_ratio, 0);
}

}  // namespace
}  // namespace k3::train
