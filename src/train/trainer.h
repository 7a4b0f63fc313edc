#pragma once
// Trainer: a training run from its configuration to a checkpoint that any K3 engine loads.
//
//   K3_TRY(auto trainer, Trainer::Create(files, std::move(options)));
//   K3_RETURN_IF_ERROR(trainer->Run(hooks));
//
// A step: batch_sequences packed sequences, in micro-batches, forward and backward on the rounded
// parameters; clipping, optimizer, QK-Clip; new selection biases. What it computes depends on the
// configuration and the data alone: neither on threads nor on being interrupted and resumed.
//
// DIR holds the checkpoint (config.json, one shard and its index, the tokenizer), the training
// state to resume from, metrics.jsonl, and validation.txt when the held-out text was cut from the
// training text. All but the metrics are replaced whole, so that a killed run or a full disk leaves
// the checkpoint before. Create fails before anything is written to DIR.
//
// Owns everything but the file system. One thread drives it; the pool's workers compute.
// Failures: InvalidArgument for what does not fit together, Internal for a loss that is not finite
// (the step is named, the last checkpoint stays), else the file system's.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/packed_batches.h"
#include "kernels/target.h"
#include "model/training_pass.h"
#include "sys/file.h"
#include "sys/file_lock.h"
#include "sys/thread_pool.h"
#include "text/tokenizer.h"
#include "train/balancer.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/parameter_set.h"
#include "train/schedule.h"
#include "train/training_config.h"
#include "train/training_data.h"

namespace k3::train {

struct TrainerOptions {
  TrainingConfig config;
  std::string out_dir;
  /// A checkpoint whose weights the run starts from; empty for random ones.
  std::string from_dir;
  /// Goes on from the training state in out_dir; from the start if there is none yet.
  bool resume = false;
  int threads_count = 1;
  SimdTarget target = SimdTarget::kScalar;
};

/// What a run tells and asks while it goes on, from the thread that drives it. Any may be empty.
struct TrainerHooks {
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(int64_t step)> on_checkpoint;
  /// True: finish the step, save and end.
  std::function<bool()> should_stop;
  /// Ends the run after this many steps, as if stopped; the schedule is that of all steps.
  std::optional<int64_t> stop_at_step;
  /// For gemm_share: the forward matmuls of one sequence, and the machine's peak.
  double forward_flops_per_sequence = 0;
  double peak_flops_per_second = 0;
};

class Trainer {
 public:
  static Result<std::unique_ptr<Trainer>> Create(FileSystem& files, TrainerOptions options);

  Status Run(const TrainerHooks& hooks);

  const TrainingConfig& config() const { return options_.config; }
  const ParameterSet& parameters() const { return set_; }
  ThreadPool& pool() { return pool_; }
  const kernels::KernelTable& kernels() const { return kernels_; }
  int64_t steps_done() const { return steps_done_; }
  int64_t training_tokens() const { return data_.training.tokens_count(); }
  int64_t validation_tokens() const { return data_.validation.tokens_count(); }

 private:
  Trainer(FileSystem& files, TrainerOptions options, TrainingData data);

  /// Opens weights, data order and metrics; reads the training state when resuming.
  Status Start();
  Status Resume();
  /// Which windows a validation measures.
  void ChooseWindows();
  Status LoadWeights();
  Result<StepMetrics> Step();
  /// Loss summed over one micro-batch; adds its gradients.
  Result<double> MicroBatch(std::span<const PackedSequence> sequences, float scale);
  /// Windows that are computed at once.
  struct ValidationPart {
    std::vector<PackedSequence> sequences;
    model::Batch batch;  // views of the sequences
    std::vector<int32_t> targets;
    int64_t predictions_count = 0;
    bool is_text = false;
  };
  bool IsText(const TokenWindow& window) const;
  /// The windows from `first` on, which becomes the next part's, all of text or all of
  /// conversations.
  ValidationPart NextPart(size_t& first) const;
  Result<ValidationLoss> Validate();
  /// The same tokens every time, so that what changes is the model.
  Result<std::vector<LayerHealth>> MeasureOnValidation();
  Status Save();
  bool IsQuantised(int64_t step) const;
  void Round(bool quantised);
  Status NotFinite(double loss, double norm) const;
  Status ValidationNotFinite(double loss) const;
  std::string StepNotSaved() const;
  model::ForwardContext Context();

  FileSystem& files_;
  TrainerOptions options_;
  std::optional<FileLock> lock_;
  TrainingData data_;
  ThreadPool pool_;
  kernels::KernelTable kernels_;
  Arena arena_;
  model::Tape tape_;
  ParameterSet set_;
  Optimizer optimizer_;
  Balancer balancer_;
  CosineSchedule schedule_;
  std::optional<PackedBatches> batches_;
  std::optional<PackedBatches> primer_;  // of the first steps, if so configured
  std::optional<MetricsFile> metrics_;
  std::vector<TokenWindow> windows_;   // of validation, text first
  std::vector<float> largest_logits_;  // [MLA layers, heads] of the step
  int64_t steps_done_ = 0;
  int64_t saved_step_ = -1;
};

}  // namespace k3::train
