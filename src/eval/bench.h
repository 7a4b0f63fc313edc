#pragma once
// The benchmark behind `k3 bench`: prefill and decode speed of a checkpoint, and how much of the
// machine they use. Definitions:
//   bytes_per_token  bytes of every weight a decoded token uses plus its state, each once
//   read_share       bytes_per_token x decode speed over the memory bandwidth (eval/yardsticks.h)
//   flops_per_token  2 x the matmul weights a prompt token uses (the head once a prompt) plus the
//                    attention and KDA products
//   gemm_share       flops_per_token x prefill speed over the float32 GEMM peak
//   streams_tok_s    tokens a second of `streams` sequences that decode in one batch, each with
//                    random next tokens, so that they choose experts as apart as real streams do
//   one_stream_tok_s the same of one such sequence, timed in turn with the many
// Speeds are medians over the repeats.

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace k3::eval {

enum class DepthFill { kRandom, kPrefill };

struct BenchOptions {
  int64_t prompt_tokens = 512;
  int64_t generated_tokens = 64;
  int64_t depth_tokens = 0;                   // tokens in the sequence before anything is timed
  DepthFill depth_fill = DepthFill::kRandom;  // random state, or really run that many tokens
  int64_t prefill_chunk = kDefaultPrefillChunk;
  int repeats = 3;
  int64_t streams = 0;     // sequences to decode together as well; 0: none
  bool yardsticks = true;  // measure the machine too; without it its figures and the shares stay 0
  uint64_t seed = 1;
};

struct BenchResult {
  double prefill_tok_s = 0;
  double decode_tok_s = 0;
  double one_stream_tok_s = 0;
  double streams_tok_s = 0;
  double first_token_ms = 0;  // set by the caller: from process start
  int64_t peak_rss_bytes = 0;
  int64_t bytes_per_token = 0;
  double flops_per_token = 0;
  double read_gb_s = 0;
  double gemm_gflop_s = 0;
  double gemm_own_gflop_s = 0;
  double gemm_onednn_gflop_s = 0;
  double read_share = 0;
  double gemm_share = 0;
};

/// Bytes of weights and state that decoding the token at position `depth` uses, each once.
int64_t DecodeBytes(const ModelConfig& config, const model::Parameters& parameters, int64_t depth);

/// Floating-point operations of a prompt of `tokens` tokens that starts at position `start`.
double PrefillFlops(const ModelConfig& config, const model::Parameters& parameters, int64_t start,
                    int64_t tokens);

/// Seconds since `start_ns` (MonotonicNanoseconds) until a 16-token prompt has its first token.
Result<double> TimeFirstToken(Engine& engine, int64_t start_ns);

/// InvalidArgument for counts below 1 or beyond the model's context.
Result<BenchResult> RunBench(Engine& engine, const BenchOptions& options);

}  // namespace k3::eval
