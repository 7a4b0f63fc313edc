#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace k3 {
namespace {

Status CheckRequest(const ModelConfig& config, std::span<const int32_t> ids,
                    const PerplexityOptions& options) {
  if (options.context < 2 || options.context > config.context_max) {
    return InvalidArgument(
        fmt::format("context: expected 2 to {}, found {}", config.context_max, options.context));
  }
  if (ids.size() < 2) {
    return InvalidArgument(fmt::format(
        "the text has {} tokens: expected at least 2, one to start from and one to predict",
        ids.size()));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      return InvalidArgument(fmt::format("token {}: expected an id in [0, {}), found {}", i,
                                         config.vocab_size, ids[i]));
    }
  }
  return OkStatus();
}

int64_t CountPredictions(int64_t ids_count, int64_t context) {
  const int64_t rest = ids_count % context;
  return ids_count / context * (context - 1) + std::max<int64_t>(rest - 1, 0);
}

/// Runs windows one after the other with one buffer of logits.
class WindowRunner {
 public:
  WindowRunner(Engine& engine, int64_t chunk) : engine_(engine) {
    const int64_t vocab = engine.config().vocab_size;
    const int64_t rows_max = kLogitsBytesMax / (vocab * static_cast<int64_t>(sizeof(float)));
    // The chunk changes speed and memory, never a bit of the logits.
    rows_ = std::clamp<int64_t>(chunk, 1, std::max<int64_t>(rows_max, 1));
    logits_.resize(static_cast<size_t>(rows_ * vocab));
    row_numbers_.resize(static_cast<size_t>(rows_));
    std::iota(row_numbers_.begin(), row_numbers_.end(), 0);
    losses_.resize(static_cast<size_t>(rows_));
  }

  int64_t rows() const { return rows_; }

  /// Starts a window.
  void Reset() { state_ = cache::SequenceState(engine_.config()); }

  /// Adds the loss of predicting each targets[i] after inputs[0..i], at most rows() of them, one by
  /// one: the sum must not depend on where chunks end.
  Status Run(std::span<const int32_t> inputs, std::span<const int32_t> targets, double* nats_sum) {
    const model::Batch batch{{{&state_, inputs, model::AttentionForm::kPrefill}}};
    K3_RETURN_IF_ERROR(
        engine_.Run(batch, std::span(row_numbers_).first(inputs.size()), logits_.data()));
    const int64_t vocab = engine_.config().vocab_size;
    engine_.pool().ParallelFor(
        std::ssize(inputs), 1, [&](int64_t begin, int64_t end, int /*worker*/) {
          for (int64_t i = begin; i < end; ++i) {
            losses_[static_cast<size_t>(i)] =
                NegativeLogLikelihood({logits_.data() + i * vocab, static_cast<size_t>(vocab)},
                                      targets[static_cast<size_t>(i)]);
          }
        });
    for (size_t i = 0; i < inputs.size(); ++i) *nats_sum += losses_[i];
    if (!std::isfinite(*nats_sum)) {
      return Internal(fmt::format(
          "the loss is {}, expected a finite number: the weights or a kernel are broken",
          *nats_sum));
    }
    return OkStatus();
  }

 private:
  Engine& engine_;
  int64_t rows_ = 1;
  cache::SequenceState state_{engine_.config()};
  std::vector<float> logits_;  // [rows, V]
  std::vector<int32_t> row_numbers_;
  std::vector<double> losses_;
};

}  // namespace

double PerplexityResult::perplexity() const { return std::exp(nats_per_token()); }

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return std::log(sum) + max - static_cast<double>(logits[static_cast<size_t>(target)]);
}

Result<PerplexityResult> MeasurePerplexity(Engine& engine, std::span<const int32_t> ids,
                                           const PerplexityOptions& options) {
  K3_RETURN_IF_ERROR(CheckRequest(engine.config(), ids, options));
  const int64_t total = CountPredictions(std::ssize(ids), options.context);
  PerplexityResult result;
  WindowRunner runner(engine, std::min(options.prefill_chunk, options.context - 1));
  for (int64_t start = 0; start + 1 < std::ssize(ids); start += options.context) {
    const int64_t end = std::min(start + options.context, std::ssize(ids));
    double window_sum = 0;
    runner.Reset();
    for (int64_t at = start; at + 1 < end; at += runner.rows()) {
      const size_t count = static_cast<size_t>(std::min(runner.rows(), end - 1 - at));
      const size_t first = static_cast<size_t>(at);
      K3_RETURN_IF_ERROR(
          runner.Run(ids.subspan(first, count), ids.subspan(first + 1, count), &window_sum));
      result.predictions_count += static_cast<int64_t>(count);
      if (options.progress) options.progress(result.predictions_count, total);
    }
    result.nats_sum += window_sum;
    result.window_nats_per_token.push_back(window_sum / static_cast<double>(end - start - 1));
  }
  return result;
}

}  // namespace k3
