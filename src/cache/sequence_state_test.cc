#include "cache/sequence_state.h"

#include <gtest/gtest.h>

namespace k3::cache {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.kda = {.heads = 3, .head_dim = 24, .conv_kernel = 4, .gate_lower_bound = -5.0f};
  config.mla = {.heads = 2, .kv_lora_rank = 40, .qk_rope_dim = 8};
  config.is_mla = {false, true, false};
  return config;
}

TEST(SequenceStateTest, SizesAgreeWithThePlan) {
  const ModelConfig config = SmallConfig();
  SequenceState state(config);
  EXPECT_EQ(state.bytes(), SequenceStateBytes(config, 0));
  state.mla(1).Reserve(257);
  EXPECT_EQ(state.bytes(), SequenceStateBytes(config, 257));
  EXPECT_EQ(state.mla(1).latent_width(), 64);
  EXPECT_EQ(state.mla(1).row_width(), 80);
  EXPECT_EQ(state.kda(0).value_stride, 32);
}

TEST(SequenceStateTest, CloneIsIndependent) {
  SequenceState state(SmallConfig());
  state.mla(1).Reserve(300);
  state.mla(1).Row(299)[3] = 5;
  state.kda(2).u.data()[1] = 7;
  state.Advance(300);
  SequenceState copy = state.Clone();
  state.mla(1).Row(299)[3] = 0;
  state.kda(2).u.data()[1] = 0;
  EXPECT_EQ(copy.length(), 300);
  EXPECT_EQ(copy.mla(1).Row(299)[3], 5);
  EXPECT_EQ(copy.kda(2).u.data()[1], 7);
}

TEST(SequenceStateTest, OnlyATightBoundIsAnchored) {
  KdaConfig kda;
  EXPECT_FALSE(HasAnchoredDecay(kda));
  kda.gate_lower_bound = -5.0f;
  EXPECT_TRUE(HasAnchoredDecay(kda));
  kda.gate_lower_bound = -8.0f;
  EXPECT_FALSE(HasAnchoredDecay(kda));
}

}  // namespace
}  // namespace k3::cache
