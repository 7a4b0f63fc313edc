// k3 run: goes on from a prompt and streams what comes.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "config/json.h"
#include "engine/generate.h"
#include "engine_options.h"
#include "terminal.h"
#include "text/utf8_stream.h"

namespace k3::cli {
namespace {

// The model card's choice for single-turn tasks, where the checkpoint does not say.
constexpr float kCardTemperature = 1.0f;
constexpr float kCardTopP = 0.95f;

struct RunOptions {
  std::string dir;
  std::string prompt;
  std::string prompt_file;
  std::optional<float> temperature;
  std::optional<int64_t> top_k;
  std::optional<float> top_p;
  float min_p = 0;
  bool greedy = false;
  uint64_t seed = 0;
  int64_t max_tokens = kDefaultGeneratedTokens;
  std::vector<int64_t> stop_ids;
  bool ignore_eos = false;
  bool ids = false;
  bool stats = false;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  int threads = 0;
};

/// Prints tokens as they come; the first write that fails ends the run.
class Printer : public TokenSink {
 public:
  Printer(const Tokenizer& tokenizer, bool ids) : tokenizer_(tokenizer), ids_(ids) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override {
    bar_.Update(done, total);
    if (done == total) bar_.Clear();
    return !WasInterrupted();
  }

  bool OnToken(const SampledToken& token) override {
    if (ids_) {
      Write(fmt::format("{}{}", first_ ? "" : ",", token.id));
    } else if (token.id < tokenizer_.vocab_size() && !tokenizer_.IsSpecial(token.id)) {
      Write(stream_.Feed(tokenizer_.TokenBytes(token.id)));
    }
    first_ = false;
    return status_.ok() && !WasInterrupted();
  }

  /// Ends the text with a line break. The first failure of any write.
  Status Finish() {
    if (!ids_) Write(stream_.Finish());
    Write("\n");
    return status_;
  }

 private:
  void Write(std::string_view text) {
    if (status_.ok()) status_ = WriteOutput(text);
  }

  const Tokenizer& tokenizer_;
  const bool ids_;
  bool first_ = true;
  Utf8Stream stream_;
  ProgressBar bar_{"reading the prompt"};
  Status status_;
};

SamplingOptions ChooseSampling(const RunOptions& options, const GenerationConfig& defaults) {
  SamplingOptions sampling;
  sampling.temperature =
      options.temperature.value_or(defaults.temperature.value_or(kCardTemperature));
  sampling.top_p = options.top_p.value_or(defaults.top_p.value_or(kCardTopP));
  sampling.top_k = options.top_k.value_or(defaults.top_k.value_or(0));
  sampling.min_p = options.min_p;
  sampling.seed = options.seed;
  if (options.greedy) sampling.temperature = 0;
  return sampling;
}

Result<std::vector<int32_t>> EncodePrompt(const RunOptions& options, const Tokenizer& tokenizer) {
  K3_TRY(const std::string text, ReadTextArgument(options.prompt, options.prompt_file));
  if (text.empty()) {
    return InvalidArgument("the prompt is empty: expected some text to go on from");
  }
  Result<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return ids.status().WithContext("the prompt");
  return ids;
}

std::string StatsLine(const GenerateResult& result) {
  const auto rate = [](int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  const char* reason = result.finish_reason == FinishReason::kStop     ? "stop"
                       : result.finish_reason == FinishReason::kLength ? "length"
                                                                       : "cancelled";
  return fmt::format(
      "prompt: {} tokens in {:.2f} s ({:.2f} tokens/s); generated: {} tokens in {:.2f} s "
      "({:.2f} tokens/s); finished: {}",
      result.prompt_tokens, result.prefill_seconds,
      rate(result.prompt_tokens, result.prefill_seconds), result.generated_tokens,
      result.decode_seconds, rate(result.decode_passes, result.decode_seconds), reason);
}

Result<int> Run(const RunOptions& options) {
  if (options.prompt.empty() && options.prompt_file.empty()) {
    return InvalidArgument("the prompt is empty: expected some text to go on from");
  }
  GenerateOptions generate;
  K3_TRY(generate.prefill_chunk, ParsePrefillChunk(options.prefill_chunk));
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, true));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  K3_TRY(const std::vector<int32_t> prompt, EncodePrompt(options, engine->tokenizer()));
  generate.sampling = ChooseSampling(options, engine->checkpoint().generation_config());
  generate.max_tokens = options.max_tokens;
  if (!options.ignore_eos) {
    generate.stop_ids = options.stop_ids;
    if (generate.stop_ids.empty()) {
      generate.stop_ids.assign(engine->stop_ids().begin(), engine->stop_ids().end());
    }
  }
  CatchInterrupt();
  Session session(*engine);
  Printer printer(engine->tokenizer(), options.ids);
  K3_TRY(const GenerateResult result, Generate(session, prompt, generate, printer));
  K3_RETURN_IF_ERROR(printer.Finish());
  if (options.stats) PrintNotice(StatsLine(result));
  return WasInterrupted() ? kExitInterrupted : kExitOk;
}

void AddSamplingOptions(CLI::App& command, RunOptions& options) {
  command
      .add_option("--temperature", options.temperature,
                  "Flattens (above 1) or sharpens (below 1) the choice; 0 takes the best token. "
                  "Default: generation_config.json, else 1.")
      ->type_name("X");
  command
      .add_option("--top-k", options.top_k,
                  "Draws from the K best tokens; 0: from all. Default: generation_config.json, "
                  "else 0.")
      ->type_name("K");
  command
      .add_option("--top-p", options.top_p,
                  "Draws from the best tokens that together reach this probability. Default: "
                  "generation_config.json, else 0.95.")
      ->type_name("P");
  command
      .add_option("--min-p", options.min_p,
                  "Drops tokens with less than this share of the best one's probability.")
      ->type_name("P")
      ->capture_default_str();
  command.add_flag("--greedy", options.greedy, "Takes the best token each time: temperature 0.")
      ->excludes("--temperature");
  command
      .add_option("--seed", options.seed,
                  "The same seed, prompt and options give the same text, on every machine.")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->capture_default_str();
}

void AddOutputOptions(CLI::App& command, RunOptions& options) {
  command.add_option("--max-tokens", options.max_tokens, "Ends after this many tokens.")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--stop-id", options.stop_ids,
                  "Ends when this id is drawn; may be given more than once. Default: the model's "
                  "own stop ids.")
      ->type_name("ID")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_flag("--ignore-eos", options.ignore_eos, "Stops at no id, only at --max-tokens.");
  command.add_flag("--ids", options.ids, "Prints token ids, separated by commas, for text.");
  command.add_flag("--stats", options.stats, "Ends with counts and speed on standard error.");
  command
      .add_option("--prefill-chunk", options.prefill_chunk,
                  "Prompt tokens to compute at once, or all. Results do not depend on it.")
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace

void AddRunCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Continue a text and stream what comes.");
  AddModelArgument(*command, &options->dir, "The model's directory.");
  CLI::Option* prompt = command->add_option(
      "PROMPT", options->prompt,
      "The text to go on from, taken as it is: no chat form, no beginning-of-text token. "
      "- reads standard input; after -- it may start with a dash.");
  command
      ->add_option("--prompt-file", options->prompt_file,
                   "Reads the prompt from this file instead.")
      ->type_name("FILE")
      ->excludes(prompt);
  AddSamplingOptions(*command, *options);
  AddOutputOptions(*command, *options);
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Special tokens are not printed, except <|open|>, <|close|> and <|sep|>. Ctrl-C ends the\n"
      "text and exits with 130; a second one ends at once.\n\n"
      "Examples:\n"
      "  k3 run models/kjv \"In the beginning\" --greedy --max-tokens 40\n"
      "  k3 run models/kjv \"Blessed are\" --temperature 0.7 --seed 3 --stats\n"
      "  k3 run models/kjv - < prompt.txt");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Run(*options); }; });
}

}  // namespace k3::cli
