#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/clock.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "sys/machine.h"
#include "train/exported_config.h"
#include "train/run_directory.h"
#include "weights/inventory.h"

namespace k3::train {

namespace {

/// ResourceExhausted for parameters that memory cannot hold: filling it would end the process, or
/// others, without a word.
Status CheckMemory(const ModelConfig& config) {
  constexpr int64_t kBytesEach = 16;  // master, rounded value, gradient, momentum
  int64_t parameters = 0;
  VisitTensors(config, [&](const ExpectedTensor& spec) { parameters += spec.shape.Elements(); });
  const int64_t memory = ReadMemoryFacts().total_bytes;
  if (memory <= 0 || parameters <= memory / kBytesEach) return OkStatus();
  return ResourceExhausted(
      fmt::format("training {} parameters needs {} bytes for each of them, this machine has {} "
                  "bytes of memory; train a smaller model",
                  parameters, kBytesEach, memory));
}

PackingOptions Packing(const TrainingConfig& config) {
  return {.sequence_length = config.sequence_length, .seed = config.seed};
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::Create(FileSystem& files, TrainerOptions options) {
  K3_RETURN_IF_ERROR(CheckRunDirectory(files, options.out_dir, options.resume));
  // A run that goes on is locked before it is read; a new one when its directory is made.
  std::optional<FileLock> lock;
  if (HasTrainingState(files, options.out_dir)) {
    K3_TRY(lock, LockRunDirectory(options.out_dir));
  }
  K3_RETURN_IF_ERROR(CheckMemory(options.config.model));
  K3_TRY(const Tokenizer tokenizer, OpenTrainingTokenizer(files, options.config.data.tokenizer_dir,
                                                          options.config.model.vocab_size));
  // From here on the model's special ids are the tokenizer's.
  K3_TRY(options.config.model_json, WithTokenizerIds(options.config.model_json, tokenizer));
  K3_TRY(options.config.model, ParseModelConfig(options.config.model_json, "the model's config"));
  K3_TRY(TrainingData data, LoadTrainingData(files, tokenizer, options.config));
  // Looked at before the parameters are allocated: a corpus may be too short.
  const Result<PackedBatches> enough =
      PackedBatches::Create(data.training, Packing(options.config));
  K3_RETURN_IF_ERROR(enough.status());
  std::unique_ptr<Trainer> trainer(new Trainer(files, std::move(options), std::move(data)));
  trainer->lock_ = std::move(lock);
  K3_RETURN_IF_ERROR(trainer->Start());
  return trainer;
}

Trainer::Trainer(FileSystem& files, TrainerOptions options, TrainingData data)
    : files_(files),
      options_(std::move(options)),
      data_(std::move(data)),
      pool_(options_.threads_count),
      kernels_(kernels::Kernels(options_.target)),
      tape_(options_.config.tape),
      set_(options_.config.model),
      optimizer_(&pool_, &kernels_, options_.config.optimizer, &set_),
      balancer_(options_.config.balancing, options_.config.sign_step, &set_),
      schedule_(options_.config.learning_rate, options_.config.min_learning_rate_share,
                options_.config.steps) {}

model::ForwardContext Trainer::Context() {
  const bool mxfp8 = options_.config.quantisation.mxfp8_inputs && set_.rounding().quantize_experts;
  return {.exec = {&pool_, &arena_, &kernels_}, .tape = &tape_, .mxfp8_expert_inputs = mxfp8};
}

Status Trainer::Start() {
  const TrainingConfig& config = options_.config;
  if (config.quantisation.from_step.has_value()) {
    K3_RETURN_IF_ERROR(
        set_.CheckRounding({.quantize_experts = true, .rule = config.quantisation.rule}));
  }
  K3_TRY(batches_, PackedBatches::Create(data_.training, Packing(config)));
  if (config.primer_steps > 0) {
    K3_TRY(primer_, PackedBatches::Create(data_.primer, Packing(config)));
  }
  ChooseWindows();
  if (options_.resume && HasTrainingState(files_, options_.out_dir)) {
    K3_RETURN_IF_ERROR(Resume());
  } else if (!options_.from_dir.empty()) {
    K3_RETURN_IF_ERROR(LoadWeights());
  } else {
    set_.Initialise(&pool_, config.seed);
  }
  Round(IsQuantised(steps_done_ - 1));
  return OkStatus();
}

void Trainer::ChooseWindows() {
  const ValidationConfig& validation = options_.config.validation;
  // Text and conversations each have their own part of what may be measured.
  std::array<std::vector<TokenWindow>, 2> kinds;
  for (const TokenWindow& window : ValidationWindows(data_.validation, validation.context)) {
    kinds[IsText(window) ? 0 : 1].push_back(window);
  }
  const int64_t share = kinds[0].empty() || kinds[1].empty() ? 1 : 2;
  for (const std::vector<TokenWindow>& kind : kinds) {
    int64_t tokens = 0;
    for (const TokenWindow& window : kind) {
      if (validation.tokens_max > 0 && tokens >= validation.tokens_max / share) break;
      tokens += window.end - window.begin;
      windows_.push_back(window);
    }
  }
}

Status Trainer::LoadWeights() {
  K3_TRY(const Checkpoint checkpoint, Checkpoint::Open(options_.from_dir));
  const ModelConfig& from = checkpoint.config();
  const ModelConfig& to = set_.config();
  for (const auto& [name, found, expected] :
       {std::tuple("layers", from.layers, to.layers),
        std::tuple("hidden_size", from.hidden_size, to.hidden_size),
        std::tuple("vocab_size", from.vocab_size, to.vocab_size),
        std::tuple("num_experts", from.moe.experts, to.moe.experts)}) {
    if (found == expected) continue;
    return InvalidArgument(
        fmt::format("--from {}: expected the shape that is trained, with {} {}, found {}",
                    options_.from_dir, name, expected, found));
  }
  K3_TRY(const WeightStore weights, WeightStore::Bind(checkpoint, {}));
  return set_.LoadFrom(weights);
}

Status Trainer::Resume() {
  K3_TRY(const RunPosition position,
         LoadRun(files_, options_.out_dir, options_.config, &set_, &optimizer_));
  K3_RETURN_IF_ERROR(batches_->Seek(position.packing).WithContext(options_.out_dir));
  steps_done_ = position.steps_done;
  saved_step_ = steps_done_;
  if (steps_done_ < options_.config.primer_steps) {
    // Every one of these sequences is learned from, and the corpus lasts for all of the steps.
    PackingState read = primer_->state();
    read.sequence = steps_done_ * options_.config.batch_sequences;
    K3_RETURN_IF_ERROR(primer_->Seek(read));
  }
  return OkStatus();
}

bool Trainer::IsQuantised(int64_t step) const {
  const std::optional<int64_t>& from = options_.config.quantisation.from_step;
  return from.has_value() && step >= *from;
}

void Trainer::Round(bool quantised) {
  set_.Round(&pool_, {.quantize_experts = quantised, .rule = options_.config.quantisation.rule});
}

std::string Trainer::StepNotSaved() const {
  return fmt::format("step {} could not be saved, {}", steps_done_,
                     saved_step_ >= 0
                         ? fmt::format("the checkpoint of step {} is whole", saved_step_)
                         : "there is no checkpoint yet");
}

Status Trainer::ValidationNotFinite(double loss) const {
  return Internal(fmt::format("expected a finite loss on the validation data, found {}; a lower "
                              "learning_rate may help",
                              loss))
      .WithContext(StepNotSaved());
}

Status Trainer::NotFinite(double loss, double norm) const {
  return Internal(fmt::format(
      "step {}: expected a finite loss and gradient, found a loss of {} and a gradient norm of {}; "
      "nothing of this step was saved, {}. A lower learning_rate or clip_norm may help",
      steps_done_ + 1, loss, norm,
      saved_step_ >= 0
          ? fmt::format("{} has the checkpoint of step {}", options_.out_dir, saved_step_)
          : "and there is no checkpoint yet"));
}

Result<double> Trainer::MicroBatch(std::span<const PackedSequence> sequences, float scale) {
  model::Batch batch;
  std::vector<int32_t> targets;
  const size_t length = static_cast<size_t>(options_.config.sequence_length);
  for (const PackedSequence& sequence : sequences) {
    for (size_t s = 0; s < sequence.segment_starts.size(); ++s) {
      const size_t begin = static_cast<size_t>(sequence.segment_starts[s]);
      const size_t end = s + 1 < sequence.segment_starts.size()
                             ? static_cast<size_t>(sequence.segment_starts[s + 1])
                             : length;
      batch.segments.push_back({.tokens = std::span(sequence.ids).subspan(begin, end - begin)});
    }
    for (size_t i = 0; i < length; ++i) {
      targets.push_back(sequence.supervised[i] != 0 ? sequence.ids[i + 1] : model::kNoTarget);
    }
  }
  K3_TRY(const double loss, model::LossAndGradients(Context(), set_.config(), set_.parameters(),
                                                    batch, targets, scale, set_.gradients()));
  balancer_.Add(&pool_, tape_);
  size_t at = 0;
  const int64_t heads = set_.config().mla.heads;
  for (const model::LayerTape& layer : tape_.layers) {
    if (layer.mla.score_max == nullptr) continue;
    for (int64_t head = 0; head < heads; ++head, ++at) {
      for (int64_t t = 0; t < tape_.tokens(); ++t) {
        largest_logits_[at] = std::max(largest_logits_[at], layer.mla.score_max[t * heads + head]);
      }
    }
  }
  return loss;
}

Result<StepMetrics> Trainer::Step() {
  const TrainingConfig& config = options_.config;
  std::vector<PackedSequence> sequences;
  int64_t supervised = 0;
  for (int64_t i = 0; i < config.batch_sequences; ++i) {
    sequences.push_back(steps_done_ < config.primer_steps ? primer_->Next() : batches_->Next());
    supervised += sequences.back().supervised_count;
  }
  StepMetrics metrics;
  metrics.learning_rate = schedule_.At(steps_done_);
  metrics.quantised = IsQuantised(steps_done_);
  if (metrics.quantised != set_.rounding().quantize_experts) Round(metrics.quantised);
  set_.ZeroGradients();
  balancer_.Start();
  const int64_t mla_layers = std::ranges::count(set_.config().is_mla, true);
  largest_logits_.assign(static_cast<size_t>(mla_layers * set_.config().mla.heads), 0.0f);
  double loss = 0;
  const float scale = 1.0f / static_cast<float>(supervised);
  const size_t micro = static_cast<size_t>(config.micro_batch_sequences);
  for (size_t first = 0; first < sequences.size(); first += micro) {
    K3_TRY(const double part, MicroBatch(std::span(sequences).subspan(first, micro), scale));
    loss += part;
  }
  loss /= static_cast<double>(supervised);
  set_.FinishGradients();
  const OptimizerReport report = std::isfinite(loss)
                                     ? optimizer_.Step(metrics.learning_rate, largest_logits_)
                                     : OptimizerReport{.gradient_norm = NAN, .skipped = true};
  if (report.skipped) return NotFinite(loss, report.gradient_norm);
  metrics.balance = balancer_.Finish();
  ++steps_done_;
  Round(metrics.quantised);
  metrics.step = steps_done_;
  metrics.tokens = steps_done_ * config.tokens_per_step();
  metrics.loss = loss;
  metrics.gradient_norm = report.gradient_norm;
  metrics.clipped_heads = report.clipped_heads;
  metrics.update_rms = report.update_rms;
  metrics.head_update_spread = report.head_update_spread;
  metrics.head_update_ratio = report.head_update_ratio;
  return metrics;
}

bool Trainer::IsText(const TokenWindow& window) const {
  return window.begin < data_.validation_text_tokens;
}

Trainer::ValidationPart Trainer::NextPart(size_t& first) const {
  const int64_t tokens_max =
      options_.config.micro_batch_sequences * options_.config.sequence_length;
  ValidationPart part;
  int64_t tokens = 0;
  part.is_text = IsText(windows_[first]);
  for (; first < windows_.size() && (tokens == 0 || tokens < tokens_max); ++first) {
    if (IsText(windows_[first]) != part.is_text) break;
    part.sequences.push_back(WindowSequence(data_.validation, windows_[first]));
    tokens += std::ssize(part.sequences.back().ids) - 1;
  }
  for (const PackedSequence& sequence : part.sequences) {
    part.batch.segments.push_back(
        {.tokens = std::span(sequence.ids).first(sequence.ids.size() - 1)});
    for (size_t i = 0; i + 1 < sequence.ids.size(); ++i) {
      part.targets.push_back(sequence.supervised[i] != 0 ? sequence.ids[i + 1] : model::kNoTarget);
    }
    part.predictions_count += sequence.supervised_count;
  }
  return part;
}

Result<ValidationLoss> Trainer::Validate() {
  struct Sum {
    double nats = 0;
    int64_t predictions = 0;

    std::optional<double> Mean() const {
      if (predictions == 0) return std::nullopt;
      return nats / static_cast<double>(predictions);
    }
  };
  Sum text, chat;
  for (size_t first = 0; first < windows_.size();) {
    const ValidationPart part = NextPart(first);
    K3_TRY(const double nats,
           model::Loss(Context(), set_.config(), set_.parameters(), part.batch, part.targets));
    Sum& sum = part.is_text ? text : chat;
    sum.nats += nats;
    sum.predictions += part.predictions_count;
  }
  const double predictions = static_cast<double>(text.predictions + chat.predictions);
  return ValidationLoss{
      .all = (text.nats + chat.nats) / predictions, .text = text.Mean(), .chat = chat.Mean()};
}

Result<std::vector<LayerHealth>> Trainer::MeasureOnValidation() {
  size_t first = 0;
  const ValidationPart part = NextPart(first);
  K3_RETURN_IF_ERROR(
      model::ForwardHidden(Context(), set_.config(), set_.parameters(), part.batch).status());
  return MeasureHealth(kernels_, set_.config(), set_.parameters(), part.batch, tape_);
}

Status Trainer::Save() {
  const RunPosition position{.steps_done = steps_done_, .packing = batches_->state()};
  // The curve first: it must not lack lines before the step that the state stands at.
  Status saved = metrics_->Sync();
  if (saved.ok()) {
    saved = SaveRunState(files_, options_.out_dir, options_.config, position, set_, optimizer_);
  }
  if (!saved.ok()) return saved.WithContext(StepNotSaved());
  saved = ExportRun(files_, options_.out_dir, options_.config, steps_done_, set_);
  if (!saved.ok()) {
    return saved.WithContext(fmt::format(
        "the training state of step {} is saved, its checkpoint is not; --resume writes it",
        steps_done_));
  }
  saved_step_ = steps_done_;
  return OkStatus();
}

Status Trainer::Run(const TrainerHooks& hooks) {
  const TrainingConfig& config = options_.config;
  if (!lock_.has_value()) {
    K3_RETURN_IF_ERROR(files_.MakeDirectories(options_.out_dir));
    K3_TRY(lock_, LockRunDirectory(options_.out_dir));
    // Another run may have been here since.
    K3_RETURN_IF_ERROR(CheckRunDirectory(files_, options_.out_dir, false));
  }
  K3_RETURN_IF_ERROR(StartRunDirectory(files_, options_.out_dir, config, data_.validation_text));
  K3_RETURN_IF_ERROR(RepairRun(files_, options_.out_dir, config, saved_step_, set_));
  K3_TRY(metrics_,
         MetricsFile::Open(files_, JoinPath(options_.out_dir, kMetricsName), steps_done_));
  const int64_t last = std::min(config.steps, hooks.stop_at_step.value_or(config.steps));
  const double flops =
      3.0 * hooks.forward_flops_per_sequence * static_cast<double>(config.batch_sequences);
  // Asked once a step: a stop that came between two questions would end the loop unsaved.
  bool stops = hooks.should_stop && hooks.should_stop();
  while (steps_done_ < last && !stops) {
    const int64_t begin_ns = MonotonicNanoseconds();
    K3_TRY(StepMetrics metrics, Step());
    const double seconds = SecondsBetween(begin_ns, MonotonicNanoseconds());
    metrics.tokens_per_s = static_cast<double>(config.tokens_per_step()) / seconds;
    if (hooks.peak_flops_per_second > 0) {
      metrics.gemm_share = flops / seconds / hooks.peak_flops_per_second;
    }
    stops = hooks.should_stop && hooks.should_stop();
    const bool ends = steps_done_ == last || stops;
    if (!windows_.empty() && (ends || steps_done_ % config.validation.every_steps == 0)) {
      K3_TRY(metrics.health, MeasureOnValidation());
      K3_TRY(metrics.val_loss, Validate());
      // The loss was finite, but the weights that came out of the step are of no use.
      const double val_loss = metrics.val_loss->all;
      if (!std::isfinite(val_loss)) return ValidationNotFinite(val_loss);
    }
    K3_RETURN_IF_ERROR(metrics_->Append(metrics).WithContext(StepNotSaved()));
    if (hooks.on_step) hooks.on_step(metrics);
    if (ends || steps_done_ % config.checkpoint_every_steps == 0) {
      K3_RETURN_IF_ERROR(Save());
      if (hooks.on_checkpoint) hooks.on_checkpoint(steps_done_);
    }
  }
  return OkStatus();
}

}  // namespace k3::train
