#include "cache/sequence_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"

namespace k3::cache {
namespace {

int64_t KdaFloats(const KdaConfig& kda) {
  const int64_t stride = RoundUp(kda.head_dim, 16);
  const int64_t rows = HasAnchoredDecay(kda) ? 2 : 3;
  return kda.heads * (kda.head_dim * stride + kChunkTokens * (rows * kda.head_dim + stride)) +
         (kda.conv_kernel - 1) * 3 * kda.heads * kda.head_dim;
}

int64_t MlaRowFloats(const MlaConfig& mla) {
  return RoundUp(mla.kv_lora_rank, 32) + RoundUp(mla.qk_rope_dim, 16);
}

void CopyFloats(const float* from, int64_t count, float* to) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Of one KDA layer.
int64_t StateFloats(const KdaConfig& kda) {
  return kda.heads * kda.head_dim * RoundUp(kda.head_dim, 16);
}
int64_t ConvFloats(const KdaConfig& kda) {
  return (kda.conv_kernel - 1) * 3 * kda.heads * kda.head_dim;
}

std::unique_ptr<KdaState> MakeKdaState(const KdaConfig& kda) {
  auto state = std::make_unique<KdaState>();
  const int64_t rows = kda.heads * kChunkTokens * kda.head_dim;
  state->value_stride = RoundUp(kda.head_dim, 16);
  state->state = FloatArray(StateFloats(kda));
  state->decay = FloatArray(rows);
  state->keys = FloatArray(rows);
  if (!HasAnchoredDecay(kda)) state->alpha = FloatArray(rows);
  state->u = FloatArray(kda.heads * kChunkTokens * state->value_stride);
  state->conv = FloatArray(ConvFloats(kda));
  return state;
}

using KdaLayers = std::vector<std::unique_ptr<KdaState>>;

KdaLayers CloneLayers(const KdaLayers& layers) {
  KdaLayers copy;
  for (const auto& layer : layers) {
    copy.push_back(layer == nullptr ? nullptr : std::make_unique<KdaState>(layer->Clone()));
  }
  return copy;
}

int64_t LayersBytes(const KdaLayers& layers) {
  int64_t total = 0;
  for (const auto& layer : layers) {
    if (layer == nullptr) continue;
    for (const FloatArray* array :
         {&layer->state, &layer->decay, &layer->keys, &layer->alpha, &layer->u, &layer->conv}) {
      total += array->count() * static_cast<int64_t>(sizeof(float));
    }
  }
  return total;
}

}  // namespace

bool HasAnchoredDecay(const KdaConfig& kda) {
  constexpr float kNatsMax = 80.0f;
  return kda.gate_lower_bound.has_value() && *kda.gate_lower_bound * -16.0f <= kNatsMax;
}

FloatArray::FloatArray(int64_t count) : FloatArray(Unfilled(count)) {
  std::memset(data_, 0, static_cast<size_t>(count) * sizeof(float));
}

FloatArray FloatArray::Unfilled(int64_t count) {
  FloatArray array;
  array.own_ = AllocateAligned(count * static_cast<int64_t>(sizeof(float)));
  array.data_ = reinterpret_cast<float*>(array.own_.get());
  array.count_ = count;
  return array;
}

FloatArray FloatArray::PartOf(SharedBytes block, float* data, int64_t count) {
  FloatArray array;
  array.block_ = std::move(block);
  array.data_ = data;
  array.count_ = count;
  return array;
}

FloatArray FloatArray::Clone() const {
  FloatArray copy = Unfilled(count_);
  CopyFloats(data(), count_, copy.data());
  return copy;
}

KdaState KdaState::Clone() const {
  return {value_stride,  state.Clone(), decay.Clone(), keys.Clone(),
          alpha.Clone(), u.Clone(),     conv.Clone()};
}

MlaLatents::MlaLatents(const MlaConfig& config)
    : latent_width_(RoundUp(config.kv_lora_rank, 32)), row_width_(MlaRowFloats(config)) {}

MlaLatents::OnePage MlaLatents::MakePage() const {
  // Shared: see SharedRows.
  auto array = std::make_shared<FloatArray>(kPageTokens * row_width_);
  float* rows = array->data();
  return {.rows = rows, .array = std::move(array)};
}

void MlaLatents::Reserve(int64_t tokens) {
  while (pages_count() * kPageTokens < tokens) pages_.push_back(MakePage());
}

int64_t MlaLatents::bytes() const {
  return pages_count() * kPageTokens * row_width_ * static_cast<int64_t>(sizeof(float));
}

MlaLatents MlaLatents::Clone() const {
  MlaLatents copy = MlaLatents(MlaConfig{});
  copy.latent_width_ = latent_width_;
  copy.row_width_ = row_width_;
  for (const OnePage& page : pages_) copy.CopyPage(*page.array, kPageTokens);
  return copy;
}

SharedRows MlaLatents::SharePage(int64_t index) {
  OnePage& page = pages_[static_cast<size_t>(index)];
  page.is_shared = true;
  return page.array;
}

void MlaLatents::AdoptPage(const SharedRows& page) {
  K3_CHECK(page->count() == kPageTokens * row_width_, "a page of this model");
  // Nobody writes through it: Rewind replaces shared pages, and rows in front of the end are only
  // ever read.
  auto array = std::const_pointer_cast<FloatArray>(page);
  float* rows = array->data();
  pages_.push_back({.rows = rows, .array = std::move(array), .is_shared = true});
}

void MlaLatents::CopyPage(const FloatArray& page, int64_t count) {
  K3_CHECK(page.count() == kPageTokens * row_width_, "a page of this model");
  pages_.push_back(MakePage());
  CopyFloats(page.data(), count * row_width_, pages_.back().rows);
}

void MlaLatents::Rewind(int64_t tokens) {
  // All pages in front of this one stay as they are.
  for (int64_t i = tokens / kPageTokens; i < pages_count(); ++i) {
    OnePage& page = pages_[static_cast<size_t>(i)];
    if (!page.is_shared) continue;
    const SharedRows shared = std::exchange(page, MakePage()).array;
    const int64_t kept = tokens - i * kPageTokens;
    CopyFloats(shared->data(), kept * row_width_, page.rows);
  }
}

int64_t KdaSnapshot::FloatsCount(const ModelConfig& config) {
  const int64_t layers = std::ranges::count(config.is_mla, false);
  return layers * (StateFloats(config.kda) + ConvFloats(config.kda));
}

KdaSnapshot KdaSnapshot::Unfilled(const ModelConfig& config) {
  KdaSnapshot snapshot;
  for (bool is_mla : config.is_mla) {
    if (is_mla) continue;
    snapshot.layers.push_back({.state = FloatArray::Unfilled(StateFloats(config.kda)),
                               .conv = FloatArray::Unfilled(ConvFloats(config.kda))});
  }
  return snapshot;
}

KdaSnapshot KdaSnapshot::PartOf(const ModelConfig& config, const SharedBytes& block,
                                float* floats) {
  KdaSnapshot snapshot;
  for (bool is_mla : config.is_mla) {
    if (is_mla) continue;
    float* conv = floats + StateFloats(config.kda);
    snapshot.layers.push_back({.state = FloatArray::PartOf(block, floats, StateFloats(config.kda)),
                               .conv = FloatArray::PartOf(block, conv, ConvFloats(config.kda))});
    floats = conv + ConvFloats(config.kda);
  }
  return snapshot;
}

int64_t KdaSnapshot::bytes() const {
  int64_t floats = 0;
  for (const Layer& layer : layers) floats += layer.state.count() + layer.conv.count();
  return floats * static_cast<int64_t>(sizeof(float));
}

SequenceState::SequenceState(const ModelConfig& config) {
  for (bool is_mla : config.is_mla) {
    kda_.push_back(is_mla ? nullptr : MakeKdaState(config.kda));
    mla_.push_back(is_mla ? std::make_unique<MlaLatents>(config.mla) : nullptr);
  }
}

std::vector<MlaLatents*> SequenceState::MlaLayers() const {
  std::vector<MlaLatents*> layers;
  for (const auto& layer : mla_) {
    if (layer != nullptr) layers.push_back(layer.get());
  }
  return layers;
}

int64_t SequenceState::bytes() const {
  int64_t total = LayersBytes(kda_);
  for (const auto& layer : mla_) {
    if (layer != nullptr) total += layer->bytes();
  }
  return total;
}

SequenceState SequenceState::Clone() const {
  SequenceState copy;
  copy.length_ = length_;
  copy.kda_ = CloneLayers(kda_);
  for (const auto& layer : mla_) {
    copy.mla_.push_back(layer == nullptr ? nullptr : std::make_unique<MlaLatents>(layer->Clone()));
  }
  return copy;
}

int64_t SequenceMark::bytes() const { return LayersBytes(kda); }

SequenceMark SequenceState::Mark() const { return {length_, CloneLayers(kda_)}; }

void SequenceState::Rewind(const SequenceMark& mark) {
  K3_CHECK(mark.length <= length_, "a mark of this sequence lies before its end");
  kda_ = CloneLayers(mark.kda);
  length_ = mark.length;
  for (const auto& layer : mla_) {
    if (layer != nullptr) layer->Rewind(length_);
  }
}

SharedSnapshot SequenceState::TakeSnapshot() const {
  K3_CHECK(length_ % kChunkTokens == 0, "only on the grid is the open chunk empty");
  // Shared: see SharedSnapshot.
  auto snapshot = std::make_shared<KdaSnapshot>();
  for (const auto& layer : kda_) {
    if (layer == nullptr) continue;
    snapshot->layers.push_back({.state = layer->state.Clone(), .conv = layer->conv.Clone()});
  }
  return snapshot;
}

void SequenceState::RestoreSnapshot(const KdaSnapshot& snapshot, int64_t length) {
  K3_CHECK(length_ == 0 && length % kChunkTokens == 0, "onto an empty sequence, on the grid");
  for (const auto& layer : mla_) {
    K3_CHECK(layer == nullptr || layer->pages_count() * kPageTokens >= length,
             "the latents come first");
  }
  size_t next = 0;
  for (const auto& layer : kda_) {
    if (layer == nullptr) continue;
    K3_CHECK(next < snapshot.layers.size(), "a snapshot of this model");
    const KdaSnapshot::Layer& from = snapshot.layers[next++];
    K3_CHECK(from.state.count() == layer->state.count() && from.conv.count() == layer->conv.count(),
             "a snapshot of this model");
    CopyFloats(from.state.data(), from.state.count(), layer->state.data());
    CopyFloats(from.conv.data(), from.conv.count(), layer->conv.data());
  }
  length_ = length;
}

int64_t SequenceStateBytes(const ModelConfig& config, int64_t tokens) {
  int64_t floats = 0;
  for (bool is_mla : config.is_mla) {
    floats +=
        is_mla ? RoundUp(tokens, kPageTokens) * MlaRowFloats(config.mla) : KdaFloats(config.kda);
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace k3::cache
