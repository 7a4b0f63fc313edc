// k3 eval: perplexity of a text.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine_options.h"
#include "eval/perplexity.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct EvalOptions {
  std::string dir;
  std::string text_file;
  int64_t context = kDefaultPerplexityContext;
  int64_t max_tokens = 0;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  bool json = false;
  int threads = 0;
};

std::string FormatResult(const EvalOptions& options, const PerplexityResult& result) {
  if (!options.json) {
    return fmt::format(
        "nats per token: {:.6f}\nperplexity: {:.4f}\ntokens: {} (predicted, in {} windows of {})\n",
        result.nats_per_token(), result.perplexity(), result.predictions_count,
        result.window_nats_per_token.size(), options.context);
  }
  nlohmann::ordered_json json;
  json["nats_per_token"] = result.nats_per_token();
  json["perplexity"] = result.perplexity();
  json["tokens"] = result.predictions_count;
  json["context"] = options.context;
  json["windows"] = result.window_nats_per_token.size();
  json["per_window"] = result.window_nats_per_token;
  return json.dump(2) + "\n";
}

Result<int> Eval(const EvalOptions& options) {
  PerplexityOptions perplexity;
  perplexity.context = options.context;
  K3_TRY(perplexity.prefill_chunk, ParsePrefillChunk(options.prefill_chunk));
  K3_TRY(const std::string text, ReadTextArgument("", options.text_file));
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, true));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  Result<std::vector<int32_t>> ids = engine->tokenizer().Encode(text);
  if (!ids.ok()) return ids.status().WithContext(options.text_file);
  if (options.max_tokens > 0 && options.max_tokens < std::ssize(*ids)) {
    ids->resize(static_cast<size_t>(options.max_tokens));
  }
  ProgressBar bar("evaluating");
  perplexity.progress = [&](int64_t done, int64_t total) { bar.Update(done, total); };
  const Result<PerplexityResult> result = MeasurePerplexity(*engine, *ids, perplexity);
  if (!result.ok()) return result.status().WithContext(options.text_file);
  bar.Clear();
  K3_RETURN_IF_ERROR(WriteOutput(FormatResult(options, *result)));
  return kExitOk;
}

}  // namespace

void AddEvalCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      app.add_subcommand("eval", "Measure how well a model predicts a text (perplexity).");
  AddModelArgument(*command, &options->dir, "The model's directory.");
  command->add_option("--text", options->text_file, "The text, a UTF-8 file.")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--context", options->context,
                   "Tokens in a window. Each window starts from nothing, and every token of it but "
                   "the first is predicted.")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--max-tokens", options->max_tokens,
                   "Takes only the first N tokens of the text; 0: all.")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()).description(""));
  command
      ->add_option("--prefill-chunk", options->prefill_chunk,
                   "Tokens to compute at once, or all. Results do not depend on it.")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Prints JSON, with the loss of each window.");
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Prints the mean negative log-likelihood in nats per token, its exponential (perplexity),\n"
      "and how many tokens were predicted. Compare only figures with one tokenizer and context.\n\n"
      "Example:\n"
      "  k3 eval models/kjv --text models/kjv/heldout.txt --context 512 --max-tokens 8192");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Eval(*options); }; });
}

}  // namespace k3::cli
