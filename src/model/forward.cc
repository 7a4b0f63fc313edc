#include "model/forward.h"

#include <fmt/format.h>

#include "model/attention_residuals.h"
#include "model/kda.h"
#include "model/latent_moe.h"
#include "model/mla.h"
#include "model/tape.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

Status CheckBatch(const ModelConfig& config, const Batch& batch) {
  for (const Segment& segment : batch.segments) {
    if (segment.tokens.empty()) return InvalidArgument("the prompt is empty: expected a token");
    const int64_t start = segment.state != nullptr ? segment.state->length() : 0;
    const int64_t end = start + static_cast<int64_t>(segment.tokens.size());
    if (end > config.context_max) {
      return InvalidArgument(fmt::format(
          "the sequence would have {} tokens, more than the model's context of {}; shorten it", end,
          config.context_max));
    }
    for (int32_t token : segment.tokens) {
      if (token < 0 || token >= config.vocab_size) {
        return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {} ids", token,
                                           config.vocab_size));
      }
    }
  }
  return OkStatus();
}

void EmbedTokens(const ops::ExecContext& exec, const Parameters& parameters, const Batch& batch,
                 float* out) {
  for (const Segment& segment : batch.segments) {
    ops::Embed(exec, parameters.embedding, segment.tokens, out);
    out += static_cast<int64_t>(segment.tokens.size()) * parameters.embedding.cols;
  }
}

/// Final norm and head for the rows that are asked for.
void Head(const ops::ExecContext& exec, const ModelConfig& config, const Parameters& parameters,
          const float* hidden, std::span<const int32_t> rows, float* logits) {
  const int64_t count = static_cast<int64_t>(rows.size()), d = config.hidden_size;
  if (count == 0) return;
  float* chosen = exec.arena->Allocate<float>(count * d);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = hidden + rows[static_cast<size_t>(i)] * d;
    std::copy(row, row + d, chosen + i * d);
  }
  const ops::RowSet x =
      ops::NormRows(exec, chosen, count, parameters.final_norm, config.rms_norm_eps);
  const ops::LinearTask task{&x, parameters.head, logits, config.vocab_size};
  ops::Linear(exec, {&task, 1});
}

/// One decoder layer on the running sum.
Status Layer(const ForwardContext& ctx, const ModelConfig& config, const LayerParameters& p,
             int64_t layer, const Batch& batch, AttentionResiduals& residuals) {
  const ops::ExecContext& exec = ctx.exec;
  const int64_t tokens = batch.tokens_count();
  ArenaScope scope(*exec.arena);
  LayerTape unkept;
  const bool taped = ctx.tape != nullptr;
  LayerTape& tape = taped ? ctx.tape->layers[static_cast<size_t>(layer)] : unkept;

  tape.attention_prefix = residuals.prefix();
  const float* h = residuals.Mix(p.attention_mix);
  residuals.OpenBlock(layer);
  ops::RowSet x =
      ops::NormRows(exec, h, tokens, p.input_norm, config.rms_norm_eps, tape.attention_input);
  float* out = exec.arena->Allocate<float>(tokens * config.hidden_size);
  if (config.is_mla[static_cast<size_t>(layer)]) {
    MlaTape mla = tape.mla;
    if (taped && mla.q == nullptr) {
      // Computed again in the backward pass, all but the largest scores.
      mla = MlaTape::Allocate(*exec.arena, config.mla, tokens);
      mla.score_max = tape.mla.score_max;
    }
    Mla(exec, config, p.mla, layer, batch, x, out, taped ? &mla : nullptr);
  } else {
    Kda(exec, config, p.kda, layer, batch, x, out, tape.kda.q != nullptr ? &tape.kda : nullptr);
  }
  residuals.Add(out);

  tape.mlp_prefix = residuals.prefix();
  h = residuals.Mix(p.mlp_mix);
  x = ops::NormRows(exec, h, tokens, p.post_attention_norm, config.rms_norm_eps, tape.mlp_input);
  if (config.IsDense(layer)) {
    DenseMlp(exec, config, p.mlp, x, out, &tape.mlp);
  } else {
    K3_RETURN_IF_ERROR(LatentMoe(ctx, config, p.moe, layer, x, out, taped ? &tape.moe : nullptr));
  }
  residuals.Add(out);
  return OkStatus();
}

}  // namespace

AttentionResiduals::Options ResidualOptions(const ModelConfig& config, int64_t tokens) {
  return {.tokens = tokens,
          .width = config.hidden_size,
          .layers = config.layers,
          .block = config.residual_block,
          .eps = config.rms_norm_eps};
}

Result<const float*> ForwardHidden(const ForwardContext& ctx, const ModelConfig& config,
                                   const Parameters& parameters, const Batch& batch) {
  K3_RETURN_IF_ERROR(CheckBatch(config, batch));
  SetFloatingPointMode();  // the pool's workers have theirs
  ctx.exec.arena->Reset();
  const int64_t tokens = batch.tokens_count();
  AttentionResiduals::Options options = ResidualOptions(config, tokens);
  if (ctx.tape != nullptr) {
    ctx.tape->Start(config, tokens);
    options.keep = &ctx.tape->arena();
  }
  AttentionResiduals residuals(ctx.exec, options);
  EmbedTokens(ctx.exec, parameters, batch, residuals.prefix());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerParameters& p = parameters.layers[static_cast<size_t>(layer)];
    K3_RETURN_IF_ERROR(Layer(ctx, config, p, layer, batch, residuals));
    if (ctx.observer != nullptr) {
      ctx.observer->OnHidden(
          layer, {residuals.prefix(), static_cast<size_t>(tokens * config.hidden_size)});
    }
  }
  if (ctx.tape != nullptr) {
    ctx.tape->bank.assign(residuals.bank().begin(), residuals.bank().end());
    ctx.tape->last_prefix = residuals.prefix();
  }
  return residuals.Mix(parameters.output_mix);
}

Status Forward(const ForwardContext& ctx, const ModelConfig& config, const Parameters& parameters,
               const Batch& batch, std::span<const int32_t> logit_rows, float* logits) {
  K3_TRY(const float* hidden, ForwardHidden(ctx, config, parameters, batch));
  Head(ctx.exec, config, parameters, hidden, logit_rows, logits);
  for (const Segment& segment : batch.segments) {
    segment.state->Advance(static_cast<int64_t>(segment.tokens.size()));
  }
  return OkStatus();
}

}  // namespace k3::model
