#include "cache/sequence_state.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/fake_sequence.h"

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

std::vector<int32_t> Ids(int64_t count, int32_t first) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// Reads `rows` of page `index` as whoever shares the page would.
std::vector<float> Rows(const MlaLatents& latents, const SharedRows& page, int64_t rows) {
  return {page->data(), page->data() + rows * latents.row_width()};
}

TEST(SequenceStateTest, TheWriterOfASharedPageGoesOnInIt) {
  FakeSequence sequence(FakeConfig());
  const std::vector<int32_t> ids = Ids(300, 5);
  sequence.Run(std::span(ids).first(100));
  MlaLatents& latents = *sequence.state().MlaLayers()[0];
  const SharedRows page = latents.SharePage(0);
  const std::vector<float> before = Rows(latents, page, 100);
  sequence.Run(ids);
  EXPECT_EQ(latents.Page(0), page->data());
  EXPECT_EQ(Rows(latents, page, 100), before);
  EXPECT_TRUE(sequence.Holds(ids));
}

TEST(SequenceStateTest, RewindLeavesSharedPagesAlone) {
  for (const int64_t length : {16, 240, 256, 272, 496, 512, 528}) {
    for (const int64_t back : {1, 15, 16, 255, 256, 257}) {
      if (back > length) continue;
      const std::vector<int32_t> ids = Ids(length, 5);
      std::vector<int32_t> other = ids;
      FakeSequence sequence(FakeConfig(2, 1));
      sequence.Run(std::span(ids).first(static_cast<size_t>(length - back)));
      const SequenceMark mark = sequence.state().Mark();
      sequence.Run(ids);
      const std::vector<MlaLatents*> layers = sequence.state().MlaLayers();
      std::vector<std::vector<SharedRows>> pages(layers.size());
      std::vector<std::vector<std::vector<float>>> before(layers.size());
      for (size_t l = 0; l < layers.size(); ++l) {
        for (int64_t i = 0; i < layers[l]->pages_count(); ++i) {
          pages[l].push_back(layers[l]->SharePage(i));
          before[l].push_back(Rows(*layers[l], pages[l].back(), kPageTokens));
        }
      }
      sequence.state().Rewind(mark);
      EXPECT_TRUE(sequence.Holds(std::span(ids).first(static_cast<size_t>(length - back))));
      for (int64_t t = length - back; t < length; ++t) other[static_cast<size_t>(t)] = 7777;
      sequence.Run(other);
      EXPECT_TRUE(sequence.Holds(other)) << length << " " << back;
      for (size_t l = 0; l < layers.size(); ++l) {
        for (size_t i = 0; i < pages[l].size(); ++i) {
          EXPECT_EQ(Rows(*layers[l], pages[l][i], kPageTokens), before[l][i]) << length << " " << i;
        }
      }
    }
  }
}

TEST(SequenceStateTest, CloneSharesNothing) {
  FakeSequence sequence(FakeConfig());
  const std::vector<int32_t> ids = Ids(300, 5);
  sequence.Run(ids);
  MlaLatents& latents = *sequence.state().MlaLayers()[0];
  const SharedRows page = latents.SharePage(0);
  const MlaLatents copy = latents.Clone();
  EXPECT_NE(copy.Page(0), latents.Page(0));
  EXPECT_EQ(latents.Page(0), page->data());
}

TEST(FloatArrayTest, APartKeepsItsBlockAndACopyDoesNot) {
  SharedBytes block = AllocateAligned(64 * sizeof(float));
  float* floats = reinterpret_cast<float*>(block.get());
  std::iota(floats, floats + 64, 0.0f);
  const FloatArray part = FloatArray::PartOf(block, floats + 16, 32);
  const std::weak_ptr<std::byte[]> alive = block;
  block.reset();
  EXPECT_EQ(part.data(), floats + 16);
  FloatArray copy = part.Clone();
  ASSERT_EQ(copy.count(), 32);
  EXPECT_EQ(copy.data()[31], 47.0f);
  copy.data()[0] = -1.0f;
  EXPECT_EQ(part.data()[0], 16.0f);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(SequenceStateTest, ASnapshotHoldsWhatGoesOverABoundary) {
  const ModelConfig config = FakeConfig(1, 3);
  FakeSequence sequence(config);
  const std::vector<int32_t> ids = Ids(272, 5);
  sequence.Run(ids);
  const SharedSnapshot snapshot = sequence.state().TakeSnapshot();
  EXPECT_EQ(snapshot->bytes(), KdaSnapshot::FloatsCount(config) * int64_t{sizeof(float)});
  const SharedRows full = sequence.state().MlaLayers()[0]->SharePage(0);
  const SharedRows part = sequence.state().MlaLayers()[0]->SharePage(1);
  sequence.Run(Ids(400, 5));

  FakeSequence restored(config);
  MlaLatents& latents = *restored.state().MlaLayers()[0];
  latents.AdoptPage(full);
  latents.CopyPage(*part, 16);
  restored.state().RestoreSnapshot(*snapshot, 272);
  EXPECT_TRUE(restored.Holds(ids));
  EXPECT_EQ(latents.Page(0), full->data());
  EXPECT_NE(latents.Page(1), part->data());
}

TEST(SequenceStateDeathTest, SnapshotsStandOnTheGrid) {
  FakeSequence sequence(FakeConfig());
  sequence.Run(Ids(17, 5));
  EXPECT_DEATH((void)sequence.state().TakeSnapshot(), "grid");
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
