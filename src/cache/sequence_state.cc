#include "cache/sequence_state.h"

#include <cstring>

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

std::unique_ptr<KdaState> MakeKdaState(const KdaConfig& kda) {
  auto state = std::make_unique<KdaState>();
  const int64_t rows = kda.heads * kChunkTokens * kda.head_dim;
  state->value_stride = RoundUp(kda.head_dim, 16);
  state->state = FloatArray(kda.heads * kda.head_dim * state->value_stride);
  state->decay = FloatArray(rows);
  state->keys = FloatArray(rows);
  if (!HasAnchoredDecay(kda)) state->alpha = FloatArray(rows);
  state->u = FloatArray(kda.heads * kChunkTokens * state->value_stride);
  state->conv = FloatArray((kda.conv_kernel - 1) * 3 * kda.heads * kda.head_dim);
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

FloatArray::FloatArray(int64_t count)
    : data_(AllocateAligned(count * static_cast<int64_t>(sizeof(float)))), count_(count) {
  std::memset(data_.get(), 0, static_cast<size_t>(count) * sizeof(float));
}

FloatArray FloatArray::Clone() const {
  FloatArray copy(count_);
  if (count_ > 0) {
    std::memcpy(copy.data(), data(), static_cast<size_t>(count_) * sizeof(float));
  }
  return copy;
}

KdaState KdaState::Clone() const {
  return {value_stride,  state.Clone(), decay.Clone(), keys.Clone(),
          alpha.Clone(), u.Clone(),     conv.Clone()};
}

MlaLatents::MlaLatents(const MlaConfig& config)
    : latent_width_(RoundUp(config.kv_lora_rank, 32)), row_width_(MlaRowFloats(config)) {}

void MlaLatents::Reserve(int64_t tokens) {
  while (static_cast<int64_t>(pages_.size()) * kPageTokens < tokens) {
    pages_.emplace_back(kPageTokens * row_width_);
  }
}

int64_t MlaLatents::bytes() const {
  return static_cast<int64_t>(pages_.size()) * kPageTokens * row_width_ *
         static_cast<int64_t>(sizeof(float));
}

MlaLatents MlaLatents::Clone() const {
  MlaLatents copy = MlaLatents(MlaConfig{});
  copy.latent_width_ = latent_width_;
  copy.row_width_ = row_width_;
  for (const FloatArray& page : pages_) copy.pages_.push_back(page.Clone());
  return copy;
}

SequenceState::SequenceState(const ModelConfig& config) {
  for (bool is_mla : config.is_mla) {
    kda_.push_back(is_mla ? nullptr : MakeKdaState(config.kda));
    mla_.push_back(is_mla ? std::make_unique<MlaLatents>(config.mla) : nullptr);
  }
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
