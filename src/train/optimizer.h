#pragma once
// Optimizer: one step of all tensors of a ParameterSet. Muon for matrices, by itself for each
// attention head and each expert; AdamW for the rest; gradient clipping before, QK-Clip after.
//
//   Optimizer optimizer(&pool, &kernels, {}, &set);
//   set.FinishGradients();
//   const OptimizerReport report = optimizer.Step(lr, largest_logits);
//   if (report.skipped) ...                        // a gradient was not finite: nothing was
//   changed set.Round(&pool, rounding);
//
// Groups (technical report, section 2.5, and the public recipes in the spec of training):
//
//   per head     KDA q, k, v, f_b and g (or g_b) in blocks of head_dim rows; MLA q_b (or q) in
//                blocks of nope + rope rows, kv_b in blocks of nope and value rows in turn, g in
//                blocks of value rows
//   matrix       f_a, g_a, q_a, kv_a, o, latent down and up, shared and dense MLPs, router
//   expert       each routed expert's w1, w2 and w3 by itself
//   table        AdamW: embedding (no decay) and head
//   other        AdamW: KDA's beta (decay); norms, biases, A_log, convolutions, residual queries
//   (no
//                decay)
//
// Correction biases are left alone. Owns the moments, in float32; the set, pool and kernels outlive
// it. One thread calls, the pool's workers compute, and the result does not depend on their number.
// A wrong size is a broken invariant (K3_CHECK).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "sys/thread_pool.h"
#include "train/adamw.h"
#include "train/muon.h"
#include "train/parameter_set.h"

namespace k3::train {

enum class OptimizerKind : uint8_t { kMuon, kAdamW };  // kAdamW: for every tensor

enum class OptimizerGroup : uint8_t { kPerHead, kMatrix, kExpert, kTable, kOther };
inline constexpr int kOptimizerGroups = 5;

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kMuon;
  /// False: Muon takes attention's matrices whole, for comparison.
  bool per_head = true;
  float muon_lr_scale = 1.0f;
  float adamw_lr_scale = 1.0f;
  MuonOptions muon;    // weight_decay below is used
  AdamWOptions adamw;  // likewise
  float weight_decay = 0.1f;
  /// Gradients are scaled down to this norm over all tensors; 0 for never.
  float clip_norm = 1.0f;
  /// QK-Clip's threshold; 0 for off.
  float qk_clip_tau = 100.0f;
  /// Muon's blocks of more multiplications in a Newton-Schulz step are cut among the workers;
  /// smaller ones are a job each, because meeting after every product costs more than an uneven
  /// end. Bits do not depend on it.
  double job_work_max = 1e9;
};

struct OptimizerReport {
  double gradient_norm = 0;  // before clipping
  /// The gradient norm was not finite, and nothing has been changed.
  bool skipped = false;
  int64_t clipped_heads = 0;
  /// Root mean square of the change of the masters over the learning rate, decay included, before
  /// QK-Clip; by OptimizerGroup.
  std::array<double, kOptimizerGroups> update_rms{};
  /// How unequal the heads' updates are, whatever steps them. A head's size is the root mean square
  /// of the change of its rows, as in update_rms. An entry is one tensor of the per-head group, or
  /// one kind of its blocks where several alternate (kv_b: keys, values), with at least two heads.
  /// Spread: the standard deviation of the sizes (over all heads, not a sample's) over their mean,
  /// averaged over the entries with a change. Ratio: the largest size over the smallest, averaged
  /// over the entries whose every head has changed. 0 without any such entry.
  double head_update_spread = 0;
  double head_update_ratio = 0;
};

class Optimizer {
 public:
  Optimizer(ThreadPool* pool, const kernels::KernelTable* kernels, const OptimizerOptions& options,
            ParameterSet* set);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step on the set's flat gradients, which clipping may scale. largest_logits [MLA layers,
  /// heads] are the largest scaled attention logits of the step's tokens, for QK-Clip; empty leaves
  /// it out.
  OptimizerReport Step(float lr, std::span<const float> largest_logits);

  /// Steps done, skipped ones not counted.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps);

  /// Momentum or first moments, and second moments (empty under Muon), of one tensor; both empty
  /// for a correction bias. For saving and loading.
  struct Moments {
    std::span<float> first;
    std::span<float> second;
  };
  Moments MomentsOf(const TrainedTensor& tensor);

 private:
  /// What one call of Muon or AdamW takes: a tensor, or the same matrix of all experts of a layer.
  struct Unit {
    OptimizerGroup group = OptimizerGroup::kOther;
    int64_t offset = 0;
    int64_t count = 0;
    bool decays = false;
    size_t heads_begin = 0, heads_end = 0;  // its blocks in heads_; none outside the per-head group
    size_t head_kinds = 0;                  // of blocks in turn
    MuonShape shape;                        // Muon only
    std::vector<float> momentum;            // Muon only
    std::optional<AdamWState> adamw;
  };

  /// The rows of one head, which are measured by themselves also where they are not stepped so.
  struct HeadBlock {
    int64_t begin = 0;  // element of the unit
    int64_t count = 0;
    double squares = 0;  // of the last step's changes
  };

  /// A unit, or one of its blocks of rows when these are small: then a worker does all of it alone.
  struct Job {
    size_t unit = 0;
    int64_t begin = 0;  // element of the unit
    int64_t count = 0;
    MuonShape shape;
    double work = 0;             // multiplications of one Newton-Schulz step
    std::span<HeadBlock> heads;  // inside it
    double squares = 0;          // of the last step's changes
  };
  /// What a worker needs to take Muon's steps alone.
  struct Worker;

  void AddUnits();
  void AddJobs(size_t unit);
  void AddUnit(const TrainedTensor& tensor);
  void AddHeads(const ExpectedTensor& spec, const std::vector<int64_t>& block_rows, Unit* unit);
  const Unit* UnitOf(const TrainedTensor& tensor) const;
  double SumOfSquares(std::span<const float> values);
  double SumOfSquaredChanges(const Unit& unit);
  template <typename Sum>
  double SumOverRuns(int64_t count, const Sum& sum);
  void ScaleGradients(float factor);
  void StepUnit(Unit& unit, float lr);
  void RunJob(Job& job, float lr, Worker& worker);
  void ReportHeads(OptimizerReport* report) const;
  int64_t ClipLogits(std::span<const float> largest_logits);

  ThreadPool* pool_;
  OptimizerOptions options_;
  ParameterSet* set_;
  Muon muon_;
  std::vector<Unit> units_;           // by offset
  std::vector<HeadBlock> heads_;      // by unit and row
  std::vector<size_t> shared_units_;  // that all workers do together
  std::vector<Job> jobs_;             // the others, the longest first
  std::vector<std::unique_ptr<Worker>> workers_;
  int64_t steps_ = 0;
  std::vector<float> before_;     // masters of one unit before its step
  std::vector<double> partials_;  // of one sum
};

}  // namespace k3::train
