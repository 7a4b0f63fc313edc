// k3 train: from text and conversations to a checkpoint.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/clock.h"
#include "commands.h"
#include "engine_options.h"
#include "eval/bench.h"
#include "eval/yardsticks.h"
#include "number_check.h"
#include "sys/machine.h"
#include "terminal/terminal.h"
#include "train/trainer.h"

namespace k3::cli {
namespace {

// At least one line of progress in this time.
constexpr int64_t kReportNanoseconds = 10'000'000'000;

struct TrainCommand {
  std::string config_file;
  train::TrainingOverrides overrides;
  std::string out_dir;
  bool resume = false;
  std::optional<int64_t> steps;
  std::optional<int64_t> stop_at_step;
  int threads = 0;
};

std::string FormatDuration(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 100) return fmt::format("{} s", whole);
  if (whole < 6000) return fmt::format("{} min", (whole + 30) / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

/// Lines of progress: for the first step, every validation, and every ten seconds.
class ProgressReport {
 public:
  ProgressReport(int64_t steps, int64_t steps_done) : steps_(steps), steps_before_(steps_done) {}

  void OnStep(const train::StepMetrics& m) {
    const int64_t now_ns = MonotonicNanoseconds();
    const int64_t done = m.step - steps_before_;
    tokens_per_s_ = done == 1 ? m.tokens_per_s : 0.9 * tokens_per_s_ + 0.1 * m.tokens_per_s;
    const bool due = done == 1 || m.val_loss.has_value() || now_ns >= next_ns_ || m.step == steps_;
    if (!due) return;
    next_ns_ = now_ns + kReportNanoseconds;
    double worst = 0;
    int64_t dead = 0;
    for (const train::LayerBalance& layer : m.balance) {
      worst = std::max(worst, layer.max_violation);
      dead += layer.dead_experts;
    }
    const double step_tokens = static_cast<double>(m.tokens) / static_cast<double>(m.step);
    const double left_s =
        static_cast<double>(steps_ - m.step) * step_tokens / std::max(tokens_per_s_, 1e-9);
    PrintNotice(fmt::format(
        "step {}/{}  loss {:.4f}{}  {:.0f} tok/s{}  {} left{}{}", m.step, steps_, m.loss,
        m.val_loss.has_value() ? fmt::format("  val {:.4f}", m.val_loss->all) : "", tokens_per_s_,
        m.gemm_share > 0 ? fmt::format(" ({:.0f} % of GEMM peak)", 100 * m.gemm_share) : "",
        FormatDuration(left_s),
        m.balance.empty() ? "" : fmt::format("  MaxVio {:.2f}, {} dead", worst, dead),
        m.quantised ? "  MXFP4" : ""));
  }

 private:
  const int64_t steps_;
  const int64_t steps_before_;
  double tokens_per_s_ = 0;
  int64_t next_ns_ = 0;
};

/// The forward matmuls of one training sequence, all of whose tokens pass the head.
double ForwardFlops(const train::TrainingConfig& config, const model::Parameters& parameters) {
  const double head = 2.0 * static_cast<double>(parameters.head.rows * parameters.head.cols);
  return eval::PrefillFlops(config.model, parameters, 0, config.sequence_length) +
         head * static_cast<double>(config.sequence_length - 1);
}

Result<int> Train(TrainCommand options) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  options.overrides.steps = options.steps;
  train::TrainerOptions trainer_options{
      .out_dir = options.out_dir, .from_dir = options.overrides.from_dir, .resume = options.resume};
  K3_TRY(trainer_options.config,
         train::ReadTrainingConfig(*files, options.config_file, options.overrides));
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, false));
  trainer_options.threads_count =
      engine_options.threads > 0 ? engine_options.threads : UsableCores();
  trainer_options.target = engine_options.target.value_or(BestSimdTarget());
  K3_TRY(const std::unique_ptr<train::Trainer> trainer,
         train::Trainer::Create(*files, std::move(trainer_options)));
  const train::TrainingConfig& config = trainer->config();
  PrintNotice(fmt::format(
      "{:.1f} million parameters, {} training and {} held-out tokens, {} tokens a step{}",
      static_cast<double>(trainer->parameters().parameters_count()) * 1e-6,
      trainer->training_tokens(), trainer->validation_tokens(), config.tokens_per_step(),
      trainer->steps_done() > 0 ? fmt::format("; going on after step {}", trainer->steps_done())
                                : ""));
  if (trainer->validation_tokens() < 2 && config.validation.fraction > 0) {
    PrintNotice("nothing is held out, so there will be no val_loss: the data are too few");
  }
  // Only now: until here nothing is written, and a signal may end it at once.
  CatchTermination();
  train::TrainerHooks hooks;
  hooks.forward_flops_per_sequence = ForwardFlops(config, trainer->parameters().parameters());
  hooks.peak_flops_per_second = eval::MeasureGemmPeak(trainer->pool(), trainer->kernels()).best();
  hooks.stop_at_step = options.stop_at_step;
  hooks.should_stop = [] { return WasInterrupted(); };
  ProgressReport report(config.steps, trainer->steps_done());
  hooks.on_step = [&](const train::StepMetrics& metrics) { report.OnStep(metrics); };
  K3_RETURN_IF_ERROR(trainer->Run(hooks));
  K3_RETURN_IF_ERROR(WriteOutput(
      fmt::format("{}: step {} of {}{}\n", options.out_dir, trainer->steps_done(), config.steps,
                  trainer->steps_done() < config.steps ? "; --resume goes on" : "")));
  return kExitOk;
}

}  // namespace

void AddTrainCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<TrainCommand>();
  CLI::App* command =
      app.add_subcommand("train", "Train a model from text and conversations to a checkpoint.");
  command
      ->add_option("config", options->config_file,
                   "The run's configuration (docs/training.md), or a model's config.json.")
      ->required()
      ->type_name("CONFIG");
  command
      ->add_option("--out", options->out_dir,
                   "The run's directory: checkpoint, training state and metrics.jsonl.")
      ->required()
      ->type_name("DIR");
  command->add_option("--steps", options->steps, "Steps of the whole run, for its schedule too.")
      ->type_name("N")
      ->transform(WholeNumber(INT64_MAX));
  command->add_flag(
      "--resume", options->resume,
      "With the command that began the run: goes on from the last checkpoint in DIR, to "
      "the same bits as a run that was not interrupted; from the start if there is "
      "none yet.");
  command
      ->add_option("--from", options->overrides.from_dir,
                   "Starts from the weights of this checkpoint instead of random ones.")
      ->type_name("DIR");
  command
      ->add_option(
          "--text", options->overrides.text_files,
          "Text to train on, UTF-8: one file or several, in place of what the configuration "
          "names.")
      ->type_name("FILE");
  command
      ->add_option("--chat", options->overrides.chat_files,
                   "Conversations to train on, a chat request a line; only what an assistant wrote "
                   "is learned.")
      ->type_name("FILE");
  command
      ->add_option("--tokenizer", options->overrides.tokenizer_dir,
                   "The directory of tiktoken.model and tokenizer_config.json.")
      ->type_name("DIR");
  command
      ->add_option("--stop-at", options->stop_at_step,
                   "Saves and ends after step N, without changing the schedule.")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, INT64_MAX).description(""));
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Ctrl-C, SIGTERM and SIGHUP finish the step, save and end, unless they are ignored (nohup).\n"
      "Progress goes to standard error and, a JSON object a step, to DIR/metrics.jsonl. DIR\n"
      "itself is the checkpoint.\n\n"
      "Example:\n"
      "  k3 train models/kjv/config.json --tokenizer models/kjv --text kjv.txt --out run \\\n"
      "    --steps 1000\n"
      "  k3 run run \"In the beginning\"");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Train(*options); }; });
}

}  // namespace k3::cli
