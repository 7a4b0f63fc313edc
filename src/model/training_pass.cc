#include "model/training_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/gradients.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

// Bytes of logits that exist at a time, in whole rows.
constexpr int64_t kLogitBytes = 32 << 20;

Status CheckTargets(const ModelConfig& config, const Batch& batch,
                    std::span<const int32_t> targets) {
  if (std::ssize(targets) != batch.tokens_count()) {
    return InvalidArgument(fmt::format("{} targets for {} tokens: expected one for each",
                                       targets.size(), batch.tokens_count()));
  }
  for (int32_t target : targets) {
    if (target != kNoTarget && (target < 0 || target >= config.vocab_size)) {
      return InvalidArgument(fmt::format("target id {} is outside the vocabulary of {} ids", target,
                                         config.vocab_size));
    }
  }
  return OkStatus();
}

/// -log softmax(logits)[target]; the logits become its gradient times scale.
double CrossEntropyRow(const kernels::ElementwiseKernels& e, float* logits, int64_t n,
                       int64_t target, float scale) {
  const double wanted = logits[target];
  float max = 0, sum = 0;
  e.exp_block(logits, n, 1.0f, &max, &sum);
  e.scale(scale / sum, logits, n, logits);
  logits[target] -= scale;
  return std::log(static_cast<double>(sum)) + static_cast<double>(max) - wanted;
}

/// Final norm, head and loss over the rows that have targets.
class HeadLoss {
 public:
  HeadLoss(const ops::ExecContext& exec, const ModelConfig& config, const Parameters& parameters,
           const float* hidden, std::span<const int32_t> targets)
      : exec_(exec), config_(config), p_(parameters), hidden_(hidden), targets_(targets) {
    rows_ = exec.arena->Allocate<int32_t>(std::ssize(targets));
    for (size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] != kNoTarget) rows_[rows_count_++] = static_cast<int32_t>(t);
    }
  }

  /// The sum of the losses. With gradients: adds the head's, and writes dx [T, D], the gradient of
  /// scale x loss by the normed rows.
  double Run(float scale, Gradients* gradients, float* dx) {
    const int64_t d = config_.hidden_size;
    if (dx != nullptr) std::fill_n(dx, std::ssize(targets_) * d, 0.0f);
    const int64_t chunk = std::clamp<int64_t>(kLogitBytes / (4 * config_.vocab_size), 16, 1024);
    double sum = 0;
    for (int64_t first = 0; first < rows_count_; first += chunk) {
      sum += Chunk(first, std::min(chunk, rows_count_ - first), scale, gradients, dx);
    }
    return sum;
  }

 private:
  double Chunk(int64_t first, int64_t count, float scale, Gradients* gradients, float* dx) {
    ArenaScope scope(*exec_.arena);
    Arena& arena = *exec_.arena;
    const int64_t d = config_.hidden_size, v = config_.vocab_size;
    float* chosen = arena.Allocate<float>(count * d);
    float* normed = arena.Allocate<float>(count * d);
    float* logits = arena.Allocate<float>(count * v);
    double* losses = arena.Allocate<double>(count);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(hidden_ + int64_t{rows_[first + i]} * d, d, chosen + i * d);
    }
    const ops::RowSet x =
        ops::NormRows(exec_, chosen, count, p_.final_norm, config_.rms_norm_eps, normed);
    const ops::LinearTask task{&x, p_.head, logits, v};
    ops::Linear(exec_, {&task, 1});
    exec_.pool->ParallelFor(count, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t target = targets_[static_cast<size_t>(rows_[first + i])];
        losses[i] = CrossEntropyRow(exec_.kernels->elementwise, logits + i * v, v, target, scale);
      }
    });
    if (gradients != nullptr) {
      const ops::WeightGradientTask weight{logits, v, normed, d, count, gradients->head};
      ops::LinearWeightGradient(exec_, {&weight, 1});
      // The normed rows have been used; their gradients take their place.
      const ops::InputGradientTerm term{logits, v, p_.head};
      const ops::InputGradientTask input{{&term, 1}, count, normed, d};
      ops::LinearInputGradient(exec_, {&input, 1});
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(normed + i * d, d, dx + int64_t{rows_[first + i]} * d);
      }
    }
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += losses[i];
    return sum;
  }

  const ops::ExecContext& exec_;
  const ModelConfig& config_;
  const Parameters& p_;
  const float* hidden_;
  const std::span<const int32_t> targets_;
  int32_t* rows_;
  int64_t rows_count_ = 0;
};

/// One layer on its way back: the MLP, then the attention.
void LayerBackward(const ForwardContext& ctx, const ModelConfig& config, const LayerParameters& p,
                   int64_t layer, const Batch& batch, AttentionResidualsBackward& residuals,
                   LayerGradients& g) {
  const ops::ExecContext& exec = ctx.exec;
  ArenaScope scope(*exec.arena);
  const LayerTape& tape = ctx.tape->layers[static_cast<size_t>(layer)];
  const int64_t tokens = batch.tokens_count(), floats = tokens * config.hidden_size;
  float* dx = exec.arena->Allocate<float>(floats);
  float* again = tape.mlp_input == nullptr ? exec.arena->Allocate<float>(floats) : nullptr;

  const float* x = tape.mlp_input;
  if (x == nullptr) residuals.Input(tape.mlp_prefix, p.mlp_mix, p.post_attention_norm, again);
  if (x == nullptr) x = again;
  if (config.IsDense(layer)) {
    DenseMlpBackward(exec, config, p.mlp, tokens, x, tape.mlp, residuals.prefix(), dx, g.mlp);
  } else {
    LatentMoeBackward(ctx, config, p.moe, tokens, x, tape.moe, residuals.prefix(), dx, g.moe);
  }
  residuals.Mix(tape.mlp_prefix, p.mlp_mix, p.post_attention_norm, dx, g.mlp_mix,
                g.post_attention_norm);

  const float* dout = residuals.prefix();
  residuals.CloseBlock(layer);
  x = tape.attention_input;
  if (x == nullptr) residuals.Input(tape.attention_prefix, p.attention_mix, p.input_norm, again);
  if (x == nullptr) x = again;
  if (config.is_mla[static_cast<size_t>(layer)]) {
    MlaBackward(exec, config, p.mla, batch, x, tape.mla.q != nullptr ? &tape.mla : nullptr, dout,
                dx, g.mla);
  } else {
    KdaBackward(exec, config, p.kda, batch, x, tape.kda.q != nullptr ? &tape.kda : nullptr, dout,
                dx, g.kda);
  }
  residuals.Mix(tape.attention_prefix, p.attention_mix, p.input_norm, dx, g.attention_mix,
                g.input_norm);
}

/// Adds every token's gradient [T, D] to its row of the table. Tokens in order, columns cut.
void EmbeddingBackward(const ops::ExecContext& exec, const Batch& batch, const float* dx,
                       const GradientMatrix& table) {
  constexpr int64_t kColumns = 64;
  const int64_t d = table.cols, pieces = (d + kColumns - 1) / kColumns;
  exec.pool->ParallelFor(pieces, 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kColumns, count = std::min(end * kColumns, d) - first;
    const float* row = dx + first;
    for (const Segment& segment : batch.segments) {
      for (int32_t token : segment.tokens) {
        exec.kernels->elementwise.add(row, count, table.data + token * d + first);
        row += d;
      }
    }
  });
}

}  // namespace

Result<double> Loss(const ForwardContext& ctx, const ModelConfig& config,
                    const Parameters& parameters, const Batch& batch,
                    std::span<const int32_t> targets) {
  K3_RETURN_IF_ERROR(CheckTargets(config, batch, targets));
  ForwardContext untaped = ctx;
  untaped.tape = nullptr;
  K3_TRY(const float* hidden, ForwardHidden(untaped, config, parameters, batch));
  return HeadLoss(ctx.exec, config, parameters, hidden, targets).Run(1.0f, nullptr, nullptr);
}

Result<double> LossAndGradients(const ForwardContext& ctx, const ModelConfig& config,
                                const Parameters& parameters, const Batch& batch,
                                std::span<const int32_t> targets, float scale,
                                Gradients& gradients) {
  K3_RETURN_IF_ERROR(CheckTargets(config, batch, targets));
  K3_CHECK(ctx.tape != nullptr, "a training pass needs a tape");
  K3_TRY(const float* hidden, ForwardHidden(ctx, config, parameters, batch));
  const ops::ExecContext& exec = ctx.exec;
  const int64_t tokens = batch.tokens_count();
  float* dx = exec.arena->Allocate<float>(tokens * config.hidden_size);
  const double sum = HeadLoss(exec, config, parameters, hidden, targets).Run(scale, &gradients, dx);

  AttentionResidualsBackward residuals(exec, ResidualOptions(config, tokens), ctx.tape->bank);
  residuals.Mix(ctx.tape->last_prefix, parameters.output_mix, parameters.final_norm, dx,
                gradients.output_mix, gradients.final_norm);
  for (int64_t layer = config.layers - 1; layer >= 0; --layer) {
    const size_t l = static_cast<size_t>(layer);
    LayerBackward(ctx, config, parameters.layers[l], layer, batch, residuals, gradients.layers[l]);
  }
  EmbeddingBackward(exec, batch, residuals.prefix(), gradients.embedding);
  return sum;
}

}  // namespace k3::model
