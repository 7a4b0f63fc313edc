#pragma once
// SequenceState: what one sequence carries from token to token. For a KDA layer the recurrent state
// at the start of the open 16-token chunk, the chunk's rows and the short convolution's last
// inputs; for an MLA layer the latents of every token, in pages of 256. All float32.
//
// Owned by one session; one forward pass at a time may use it. A new state is the empty sequence.
// Pages can be shared with a cache and through it with other sequences: a page is written by the
// sequence that made it and by no other, and only behind the rows that others know of.
// Sizes: KDA H dk dv floats a layer plus 16 rows, MLA (L + rope) floats a token and layer.
// Source: technical report, sections on KDA and gated MLA.

#include <cstdint>
#include <memory>
#include <vector>

#include "config/model_config.h"
#include "sys/arena.h"

namespace k3::cache {

inline constexpr int64_t kChunkTokens = 16;
inline constexpr int64_t kPageTokens = 256;

/// Whether the decay over a chunk stays within float32's range, so that it may be divided out:
/// 16 tokens of a gate bounded by -5 span 80 nats of the 87 there are.
bool HasAnchoredDecay(const KdaConfig& kda);

/// A 64-byte-aligned, zeroed float array that can be copied.
class FloatArray {
 public:
  FloatArray() = default;
  explicit FloatArray(int64_t count);
  /// Not zeroed: for those who fill all of it.
  static FloatArray Unfilled(int64_t count);
  /// Part of a larger block, which lives as long: what a file held is used where it was read to.
  static FloatArray PartOf(SharedBytes block, float* data, int64_t count);
  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t count() const { return count_; }
  /// Not of a block: an array of its own.
  FloatArray Clone() const;

 private:
  AlignedBytes own_;
  SharedBytes block_;
  float* data_ = nullptr;  // of one of the two
  int64_t count_ = 0;
};

/// H heads; dk = head_dim; value rows are padded to value_stride, a multiple of 16.
struct KdaState {
  int64_t value_stride = 0;
  FloatArray state;  // [H, dk, value_stride], at the start of the open chunk
  FloatArray decay;  // [H, 16, dk] cumulative decay of the open rows
  FloatArray keys;   // [H, dk, 16] keys over decay; without an anchor [H, 16, dk] keys
  FloatArray alpha;  // [H, 16, dk] decays, only without an anchor
  FloatArray u;      // [H, 16, value_stride]
  FloatArray conv;   // [taps - 1, 3, H dk] last inputs of q, k and v, oldest first

  KdaState Clone() const;
};

/// What KDA layers carry over a boundary of the 16-token grid: there the open chunk was folded into
/// the state, and none of its rows is read before it is written again. Never changed once made.
struct KdaSnapshot {
  struct Layer {
    FloatArray state;  // [H, dk, value_stride]
    FloatArray conv;   // [taps - 1, 3, H dk]
  };
  std::vector<Layer> layers;  // the KDA layers in order

  /// All of a snapshot's floats.
  static int64_t FloatsCount(const ModelConfig& config);
  /// Arrays of the right sizes, to be filled.
  static KdaSnapshot Unfilled(const ModelConfig& config);
  /// Of FloatsCount floats in a block: each layer's state, then its conv (FloatArray::PartOf).
  static KdaSnapshot PartOf(const ModelConfig& config, const SharedBytes& block, float* floats);
  int64_t bytes() const;
};

/// Shared, since a snapshot outlives its eviction in whoever copies it or writes it to disk.
using SharedSnapshot = std::shared_ptr<const KdaSnapshot>;

/// A page of 256 rows that a cache and several sequences read: shared, since whoever lets go of it
/// last frees it, be it a sequence that outlives an eviction or a writer to disk.
using SharedRows = std::shared_ptr<const FloatArray>;

/// Latent rows of one MLA layer: the normalised latent in split layout (kernels.h), padded to a
/// multiple of 32, then the shared rope dims, padded with zeros to a multiple of 16.
class MlaLatents {
 public:
  explicit MlaLatents(const MlaConfig& config);

  int64_t latent_width() const { return latent_width_; }
  int64_t row_width() const { return row_width_; }
  /// Makes room for tokens [0, tokens).
  void Reserve(int64_t tokens);
  float* Row(int64_t token) {
    return pages_[static_cast<size_t>(token / kPageTokens)].rows + token % kPageTokens * row_width_;
  }
  /// Page `index` holds tokens [256 index, 256 index + 256), rows at stride row_width().
  const float* Page(int64_t index) const { return pages_[static_cast<size_t>(index)].rows; }
  int64_t pages_count() const { return static_cast<int64_t>(pages_.size()); }
  int64_t bytes() const;
  /// Shares nothing with this one.
  MlaLatents Clone() const;

  /// Page `index`, for others to read the rows that stand in it now. This sequence may write the
  /// rows behind those; before it goes back to rewrite one, Rewind gives it a page of its own.
  SharedRows SharePage(int64_t index);
  /// Appends a full page of another sequence, to be read only.
  void AdoptPage(const SharedRows& page);
  /// Appends a page of its own that starts with `count` rows of `page`.
  void CopyPage(const FloatArray& page, int64_t count);
  /// Rows of tokens behind `tokens` are about to be written again: pages that were shared and hold
  /// such rows are replaced by copies.
  void Rewind(int64_t tokens);

 private:
  struct OnePage {
    float* rows = nullptr;              // of `array`
    std::shared_ptr<FloatArray> array;  // shared: see SharedRows
    bool is_shared = false;             // was handed out or came from elsewhere
  };
  OnePage MakePage() const;

  int64_t latent_width_ = 0;
  int64_t row_width_ = 0;
  std::vector<OnePage> pages_;
};

/// A sequence at an earlier length: the KDA states as they were, of a fixed size. The latents of
/// MLA stay where they are, since later tokens only add rows behind them.
struct SequenceMark {
  int64_t length = 0;
  std::vector<std::unique_ptr<KdaState>> kda;  // [layers], null for MLA layers

  int64_t bytes() const;
};

class SequenceState {
 public:
  explicit SequenceState(const ModelConfig& config);
  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&&) = default;

  /// Tokens seen so far: the position of the next one.
  int64_t length() const { return length_; }
  /// Called by the forward pass once every layer has taken the tokens.
  void Advance(int64_t tokens) { length_ += tokens; }

  /// `layer` must be of the kind asked for.
  KdaState& kda(int64_t layer) { return *kda_[static_cast<size_t>(layer)]; }
  MlaLatents& mla(int64_t layer) { return *mla_[static_cast<size_t>(layer)]; }
  /// Those of every MLA layer in order; valid while this state stays where it is.
  std::vector<MlaLatents*> MlaLayers() const;

  int64_t bytes() const;
  SequenceState Clone() const;

  /// The sequence as it is now, to come back to.
  SequenceMark Mark() const;
  /// Forgets every token behind `mark`, which must be of this sequence, no longer than it is now,
  /// and taken after any Rewind to a smaller length. The mark may be used again.
  void Rewind(const SequenceMark& mark);

  /// What has to be kept besides the latents to go on from here. length() must be a multiple of 16.
  SharedSnapshot TakeSnapshot() const;
  /// Makes the empty sequence, whose MLA layers were given the rows of `length` tokens, the one
  /// that `snapshot` was taken of. `length` must be a multiple of 16.
  void RestoreSnapshot(const KdaSnapshot& snapshot, int64_t length);

 private:
  SequenceState() = default;

  int64_t length_ = 0;
  std::vector<std::unique_ptr<KdaState>> kda_;    // [layers], null for MLA layers
  std::vector<std::unique_ptr<MlaLatents>> mla_;  // [layers], null for KDA layers
};

/// Bytes of a sequence of `tokens` tokens, without making one.
int64_t SequenceStateBytes(const ModelConfig& config, int64_t tokens);

}  // namespace k3::cache
