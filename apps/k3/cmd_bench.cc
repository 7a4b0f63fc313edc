// k3 bench: how fast a model runs here, and how much of the machine it uses.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine_options.h"
#include "eval/bench.h"
#include "sys/machine.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct BenchCommand {
  std::string dir;
  eval::BenchOptions bench;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  int threads = 0;
  bool no_yardsticks = false;
  bool json = false;
};

std::string FormatJson(const eval::BenchResult& r, const eval::BenchOptions& options) {
  nlohmann::ordered_json json;
  json["prefill_tok_s"] = r.prefill_tok_s;
  json["decode_tok_s"] = r.decode_tok_s;
  if (options.streams > 0) {
    json["streams"] = options.streams;
    json["one_stream_tok_s"] = r.one_stream_tok_s;
    json["streams_tok_s"] = r.streams_tok_s;
  }
  json["first_token_ms"] = r.first_token_ms;
  json["peak_rss_bytes"] = r.peak_rss_bytes;
  json["bytes_per_token"] = r.bytes_per_token;
  json["flops_per_token"] = r.flops_per_token;
  if (!options.yardsticks) return json.dump(2) + "\n";
  json["read_gb_s"] = r.read_gb_s;
  json["gemm_gflop_s"] = r.gemm_gflop_s;
  json["gemm_own_gflop_s"] = r.gemm_own_gflop_s;
  json["gemm_onednn_gflop_s"] = r.gemm_onednn_gflop_s;
  json["read_share"] = r.read_share;
  json["gemm_share"] = r.gemm_share;
  return json.dump(2) + "\n";
}

std::string FormatText(const eval::BenchResult& r, const eval::BenchOptions& options) {
  std::string gemm_share, read_share, machine, streams;
  if (options.streams > 0) {
    streams = fmt::format("together     {:.1f} tokens/s by {} streams, {:.2f} times one's {:.1f}\n",
                          r.streams_tok_s, options.streams, r.streams_tok_s / r.one_stream_tok_s,
                          r.one_stream_tok_s);
  }
  if (options.yardsticks) {
    gemm_share = fmt::format(", {:.0f} % of the float32 GEMM peak", 100 * r.gemm_share);
    read_share = fmt::format(", {:.0f} % of the memory's read bandwidth", 100 * r.read_share);
    machine = fmt::format(
        "a token      {:.1f} MB read (decode), {:.3f} GFLOP (prefill)\n"
        "machine      {:.1f} GB/s read; GEMM {:.0f} GFLOP/s (ours {:.0f}, oneDNN {:.0f})\n",
        static_cast<double>(r.bytes_per_token) * 1e-6, r.flops_per_token * 1e-9, r.read_gb_s,
        r.gemm_gflop_s, r.gemm_own_gflop_s, r.gemm_onednn_gflop_s);
  }
  return fmt::format(
      "prefill      {:.1f} tokens/s{}\n"
      "decode       {:.1f} tokens/s{}\n{}"
      "first token  {:.0f} ms after process start (16-token prompt)\n"
      "memory       {:.1f} MB at the peak, mapped pages included\n{}",
      r.prefill_tok_s, gemm_share, r.decode_tok_s, read_share, streams, r.first_token_ms,
      static_cast<double>(r.peak_rss_bytes) * 1e-6, machine);
}

Result<int> Bench(BenchCommand options) {
  const int64_t start_ns = ProcessStartNanoseconds();
  K3_TRY(options.bench.prefill_chunk, ParsePrefillChunk(options.prefill_chunk));
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, false));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  K3_TRY(const double first_token_s, eval::TimeFirstToken(*engine, start_ns));
  options.bench.yardsticks = !options.no_yardsticks;
  K3_TRY(eval::BenchResult result, eval::RunBench(*engine, options.bench));
  result.first_token_ms = first_token_s * 1e3;
  K3_RETURN_IF_ERROR(WriteOutput(options.json ? FormatJson(result, options.bench)
                                              : FormatText(result, options.bench)));
  return kExitOk;
}

void AddCountOption(CLI::App& command, const std::string& name, int64_t* value,
                    const std::string& help) {
  command.add_option(name, *value, help)->type_name("N")->capture_default_str();
}

}  // namespace

void AddBenchCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<BenchCommand>();
  CLI::App* command = app.add_subcommand("bench", "Measure how fast a model runs here.");
  command->add_option("DIR", options->dir, "The model's directory (no tokenizer is needed).")
      ->required();
  AddCountOption(*command, "--prompt", &options->bench.prompt_tokens, "Prompt tokens to time.");
  AddCountOption(*command, "--gen", &options->bench.generated_tokens, "Tokens to generate.");
  AddCountOption(*command, "--depth", &options->bench.depth_tokens,
                 "Tokens in the sequence before anything is timed.");
  const std::map<std::string, eval::DepthFill> fills = {{"random", eval::DepthFill::kRandom},
                                                        {"prefill", eval::DepthFill::kPrefill}};
  command
      ->add_option("--depth-fill", options->bench.depth_fill,
                   "How the depth is made: random state, or really running that many tokens.")
      ->transform(CLI::CheckedTransformer(fills).description(""))
      ->type_name("random|prefill");
  AddCountOption(*command, "--streams", &options->bench.streams,
                 "Sequences to decode together as well, beside one; 0: none.");
  command->add_option("--repeats", options->bench.repeats, "Runs; the speeds are medians.")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--prefill-chunk", options->prefill_chunk,
                   "Tokens to compute at once, or all. Results do not depend on it.")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--no-yardsticks", options->no_yardsticks,
                    "Does not measure the machine, and prints no share of it.");
  command->add_flag("--json", options->json, "Prints JSON.");
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Times prompts and decoding of random tokens, and measures the machine with the same\n"
      "threads: reading a 2 GiB buffer, and a float32 product of 2048 x 2048 matrices by oneDNN\n"
      "and by our own kernel. The shares are parts of these. Needs 2 GiB of free memory.\n\n"
      "Example:\n"
      "  k3 init --config configs/bench-m.json --seed 1 --out bench-m\n"
      "  k3 bench bench-m --prompt 512 --gen 64 --threads 2");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Bench(*options); }; });
}

}  // namespace k3::cli
