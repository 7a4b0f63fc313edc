#include "eval/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/random.h"
#include "engine/session.h"
#include "eval/yardsticks.h"
#include "sys/machine.h"

namespace k3::eval {
namespace {

std::vector<int32_t> RandomTokens(Random& random, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.NextBelow(static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

void FillRandom(Random& random, float* values, int64_t count, float gain) {
  for (int64_t i = 0; i < count; ++i) values[i] = (random.NextFloat() - 0.5f) * gain;
}

/// Makes a sequence of `depth` tokens without running them: random states and latents up to the
/// last chunk boundary. The numbers do not matter for speed, being finite does.
void FillState(Random& random, const ModelConfig& config, int64_t depth,
               cache::SequenceState& state) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_mla[static_cast<size_t>(layer)]) {
      cache::KdaState& kda = state.kda(layer);
      FillRandom(random, kda.state.data(), kda.state.count(), 0.1f);
      FillRandom(random, kda.conv.data(), kda.conv.count(), 1.0f);
      continue;
    }
    cache::MlaLatents& latents = state.mla(layer);
    latents.Reserve(depth);
    for (int64_t t = 0; t < depth; ++t) {
      FillRandom(random, latents.Row(t), config.mla.kv_lora_rank, 2.0f);
    }
  }
  state.Advance(depth);
}

Status Deepen(Random& random, const BenchOptions& options, Engine& engine, Session& session) {
  int64_t left = options.depth_tokens;
  if (options.depth_fill == DepthFill::kRandom) {
    const int64_t filled = left / cache::kChunkTokens * cache::kChunkTokens;
    FillState(random, engine.config(), filled, session.state());
    left -= filled;
  }
  if (left == 0) return OkStatus();
  const std::vector<int32_t> tokens = RandomTokens(random, left, engine.config().vocab_size);
  return session.Prefill(tokens, {}, options.prefill_chunk);
}

// Beyond this their states alone would be most of what is timed.
constexpr int64_t kStreamsMax = 1024;

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Status CheckOptions(const BenchOptions& o, const ModelConfig& config) {
  if (o.prompt_tokens < 1 || o.generated_tokens < 1 || o.depth_tokens < 0 || o.repeats < 1 ||
      o.prefill_chunk < 1 || o.streams < 0) {
    return InvalidArgument(
        "bench: expected at least 1 prompt token, generated token, repeat and "
        "chunk, and a depth and a number of streams of 0 or more");
  }
  if (o.streams > kStreamsMax) {
    return InvalidArgument(
        fmt::format("bench: expected at most {} streams, found {}", kStreamsMax, o.streams));
  }
  // One after the other, as their sum may be more than a number holds.
  int64_t left = config.context_max;
  for (const int64_t tokens : {o.depth_tokens, o.prompt_tokens, o.generated_tokens}) {
    if (tokens > left) {
      return InvalidArgument(
          fmt::format("bench: expected depth, prompt and generated tokens within the model's "
                      "context of {}, found {}, {} and {}; take fewer",
                      config.context_max, o.depth_tokens, o.prompt_tokens, o.generated_tokens));
    }
    left -= tokens;
  }
  return OkStatus();
}

/// Tokens a second of `count` sequences that decode in one batch.
Result<double> TimeStreams(Random& random, const BenchOptions& options, Engine& engine,
                           int64_t count) {
  const int64_t vocab_size = engine.config().vocab_size;
  std::vector<Session> sessions;
  std::vector<int32_t> rows, tokens(static_cast<size_t>(count));
  sessions.reserve(tokens.size());
  model::Batch batch;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Session& session = sessions.emplace_back(engine);
    K3_RETURN_IF_ERROR(Deepen(random, options, engine, session));
    rows.push_back(static_cast<int32_t>(i));
    batch.segments.push_back({&session.state(), {&tokens[i], 1}, model::AttentionForm::kDecode});
  }
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab_size));
  const int64_t start = MonotonicNanoseconds();
  for (int64_t i = 0; i < options.generated_tokens; ++i) {
    std::ranges::copy(RandomTokens(random, count, vocab_size), tokens.begin());
    K3_RETURN_IF_ERROR(engine.Run(batch, rows, logits.data()));
  }
  return static_cast<double>(count * options.generated_tokens) /
         SecondsBetween(start, MonotonicNanoseconds());
}

}  // namespace

Result<double> TimeFirstToken(Engine& engine, int64_t start_ns) {
  Random random(1, 0);
  std::vector<float> logits(static_cast<size_t>(engine.config().vocab_size));
  Session session(engine);
  const int64_t tokens = std::min<int64_t>(16, engine.config().context_max);
  K3_RETURN_IF_ERROR(
      session.Prefill(RandomTokens(random, tokens, engine.config().vocab_size), logits));
  ArgMax(logits);
  return SecondsBetween(start_ns, MonotonicNanoseconds());
}

Result<BenchResult> RunBench(Engine& engine, const BenchOptions& options) {
  const ModelConfig& config = engine.config();
  K3_RETURN_IF_ERROR(CheckOptions(options, config));
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  std::vector<double> prefill_speeds, decode_speeds, one_speeds, streams_speeds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    Random random(options.seed, static_cast<uint64_t>(repeat));
    Session session(engine);
    K3_RETURN_IF_ERROR(Deepen(random, options, engine, session));
    const std::vector<int32_t> prompt =
        RandomTokens(random, options.prompt_tokens, config.vocab_size);
    int64_t start = MonotonicNanoseconds();
    K3_RETURN_IF_ERROR(session.Prefill(prompt, logits, options.prefill_chunk));
    prefill_speeds.push_back(static_cast<double>(options.prompt_tokens) /
                             SecondsBetween(start, MonotonicNanoseconds()));
    start = MonotonicNanoseconds();
    for (int64_t i = 0; i < options.generated_tokens; ++i) {
      K3_RETURN_IF_ERROR(session.Decode(ArgMax(logits), logits));
    }
    decode_speeds.push_back(static_cast<double>(options.generated_tokens) /
                            SecondsBetween(start, MonotonicNanoseconds()));
    if (options.streams == 0) continue;
    K3_TRY(one_speeds.emplace_back(), TimeStreams(random, options, engine, 1));
    K3_TRY(streams_speeds.emplace_back(), TimeStreams(random, options, engine, options.streams));
  }
  BenchResult result;
  if (options.streams > 0) {
    result.one_stream_tok_s = Median(one_speeds);
    result.streams_tok_s = Median(streams_speeds);
  }
  result.prefill_tok_s = Median(prefill_speeds);
  result.decode_tok_s = Median(decode_speeds);
  result.peak_rss_bytes = PeakResidentBytes();
  const int64_t decode_at =
      options.depth_tokens + options.prompt_tokens + options.generated_tokens / 2;
  result.bytes_per_token = DecodeBytes(config, engine.parameters(), decode_at);
  result.flops_per_token =
      PrefillFlops(config, engine.parameters(), options.depth_tokens, options.prompt_tokens) /
      static_cast<double>(options.prompt_tokens);
  if (!options.yardsticks) return result;
  const double bandwidth = MeasureReadBandwidth(engine.pool());
  const GemmPeak peak = MeasureGemmPeak(engine.pool(), engine.kernels());
  result.read_gb_s = bandwidth * 1e-9;
  result.gemm_gflop_s = peak.best() * 1e-9;
  result.gemm_own_gflop_s = peak.own_flops * 1e-9;
  result.gemm_onednn_gflop_s = peak.onednn_flops * 1e-9;
  result.read_share = static_cast<double>(result.bytes_per_token) * result.decode_tok_s / bandwidth;
  result.gemm_share = result.flops_per_token * result.prefill_tok_s / peak.best();
  return result;
}

}  // namespace k3::eval
