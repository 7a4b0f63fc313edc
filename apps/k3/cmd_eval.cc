// k3 eval: perplexity of a text, or the share of synthetic tasks that are answered right.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "engine_options.h"
#include "eval/perplexity.h"
#include "eval/task_suite.h"
#include "number_check.h"
#include "task_kinds_option.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct EvalOptions {
  std::string dir;
  std::string text_file;
  int64_t context = 0;  // 0: not given
  int64_t max_tokens = 0;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  bool tasks = false;
  int64_t cases = eval::TaskSuiteOptions{}.cases_count;
  std::vector<std::string> kinds;
  uint64_t seed = eval::TaskSuiteOptions{}.seed;
  bool json = false;
  int threads = 0;
};

std::string FormatScores(const EvalOptions& options, const std::vector<eval::TaskScore>& scores) {
  if (options.json) {
    nlohmann::ordered_json json;
    json["cases"] = options.cases;
    json["seed"] = options.seed;
    if (options.context > 0) json["context"] = options.context;
    for (const eval::TaskScore& score : scores) {
      nlohmann::ordered_json& one = json["tasks"][std::string(TaskKindName(score.kind))];
      const double cases = static_cast<double>(score.cases_count);
      one["right"] = static_cast<double>(score.right_count) / cases;
      one["prompt_tokens"] = static_cast<double>(score.prompt_tokens) / cases;
      if (score.kind == TaskKind::kToolCall) {
        one["right_calls"] = static_cast<double>(score.right_calls_count) / cases;
      }
      if (!score.example.empty()) one["wrong_example"] = score.example;
    }
    return json.dump(2) + "\n";
  }
  std::string text;
  for (const eval::TaskScore& score : scores) {
    text += fmt::format(
        "{:<11} {:>5.1f} %  {} of {} right", TaskKindName(score.kind),
        100.0 * static_cast<double>(score.right_count) / static_cast<double>(score.cases_count),
        score.right_count, score.cases_count);
    if (score.kind == TaskKind::kToolCall) {
      text += fmt::format(", {} of them the call", score.right_calls_count);
    }
    text += score.example.empty() ? "\n" : "; wrong: " + score.example + "\n";
  }
  return text;
}

Result<int> EvalTasks(const EvalOptions& options) {
  eval::TaskSuiteOptions suite;
  suite.cases_count = options.cases;
  suite.seed = options.seed;
  suite.context = options.context;
  if (options.context > 0) suite.kinds = {TaskKind::kCopy, TaskKind::kLookUp};
  if (!options.kinds.empty()) {
    K3_TRY(const std::vector<TaskKind> kinds, ParseTaskKinds(options.kinds));
    suite.kinds.clear();
    for (const TaskKind kind : kinds) {
      if (std::ranges::find(suite.kinds, kind) == suite.kinds.end()) suite.kinds.push_back(kind);
    }
  }
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, true));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  ProgressBar bar("evaluating");
  suite.progress = [&](int64_t done, int64_t total) { bar.Update(done, total); };
  K3_TRY(const std::vector<eval::TaskScore> scores, eval::RunTaskSuite(*engine, suite));
  bar.Clear();
  K3_RETURN_IF_ERROR(WriteOutput(FormatScores(options, scores)));
  return kExitOk;
}

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

/// Options that only one of --text and --tasks reads.
struct OneSided {
  std::vector<const CLI::Option*> of_tasks;
  std::vector<const CLI::Option*> of_text;
};

Status CheckSides(const OneSided& options, bool tasks) {
  for (const CLI::Option* option : tasks ? options.of_text : options.of_tasks) {
    if (option->count() == 0) continue;
    return InvalidArgument(fmt::format("{}: expected it with {}, found it with {}; leave it out",
                                       option->get_name(), tasks ? "--text" : "--tasks",
                                       tasks ? "--tasks" : "--text"));
  }
  return OkStatus();
}

Result<int> Eval(EvalOptions options) {
  if (options.tasks) return EvalTasks(options);
  if (options.context == 0) options.context = kDefaultPerplexityContext;
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
  CLI::App* command = app.add_subcommand(
      "eval", "Measure how well a model predicts a text (perplexity) or answers tasks.");
  AddModelArgument(*command, &options->dir, "The model's directory.");
  CLI::Option_group* what = command->add_option_group("What", "One of these.");
  what->add_option("--text", options->text_file, "The text, a UTF-8 file.")->type_name("FILE");
  what->add_flag("--tasks", options->tasks,
                 "Held-out synthetic tasks (k3 tasks), answered greedily: the share whose answer "
                 "is right to the letter.");
  what->require_option(1);
  OneSided sided;
  sided.of_tasks.push_back(
      command->add_option("--cases", options->cases, "With --tasks: how many of each kind.")
          ->type_name("N")
          ->capture_default_str()
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description("")));
  sided.of_tasks.push_back(AddTaskKindsOption(*command, &options->kinds));
  sided.of_tasks.push_back(
      command->add_option("--seed", options->seed, "With --tasks: other cases.")
          ->transform(WholeNumber(UINT64_MAX))
          ->type_name("N")
          ->capture_default_str());
  command
      ->add_option("--context", options->context,
                   fmt::format("With --text: tokens in a window; each window starts from nothing, "
                               "and every token of it but the first is predicted. Default: {}. "
                               "With --tasks: copying and look-ups alone, their prompts filled to "
                               "so many tokens with sentences that say nothing.",
                               kDefaultPerplexityContext))
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()).description(""));
  sided.of_text.push_back(
      command
          ->add_option("--max-tokens", options->max_tokens,
                       "Takes only the first N tokens of the text; 0: all.")
          ->type_name("N")
          ->capture_default_str()
          ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()).description("")));
  sided.of_text.push_back(
      command
          ->add_option("--prefill-chunk", options->prefill_chunk,
                       "Tokens to compute at once, or all. Results do not depend on it.")
          ->type_name("N")
          ->capture_default_str());
  command->add_flag("--json", options->json, "Prints JSON, with the loss of each window.");
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Prints the mean negative log-likelihood in nats per token, its exponential (perplexity),\n"
      "and how many tokens were predicted. Compare only figures with one tokenizer and context.\n\n"
      "Examples:\n"
      "  k3 eval models/kjv --text models/kjv/heldout.txt --context 512 --max-tokens 8192\n"
      "  k3 eval models/nano --tasks\n"
      "  k3 eval models/nano --tasks --kinds look-up --context 8192 --cases 50");
  command->callback([options, sided, &invocation] {
    invocation.command = [options, sided]() -> Result<int> {
      K3_RETURN_IF_ERROR(CheckSides(sided, options->tasks));
      return Eval(*options);
    };
  });
}

}  // namespace k3::cli
