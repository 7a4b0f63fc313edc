// k3 run: goes on from a prompt and streams what comes.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "config/json.h"
#include "engine/generate.h"
#include "engine_options.h"
#include "number_check.h"
#include "run_chat.h"
#include "sampling_flags.h"
#include "terminal/terminal.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"
#include "text/xtml_markers.h"
#include "token_json.h"

namespace k3::cli {
namespace {

struct RunOptions {
  std::string dir;
  std::string prompt;
  std::string prompt_file;
  SamplingFlags sampling;
  RunChatFlags chat;
  int64_t max_tokens = kDefaultGeneratedTokens;
  std::vector<int64_t> stop_ids;
  bool ignore_eos = false;
  bool ids = false;
  std::optional<int64_t> log_probs;
  bool stats = false;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  int threads = 0;
};

enum class OutputForm { kText, kIds, kLogProbs };

OutputForm ChooseForm(const RunOptions& options) {
  // With --json they are part of the answer.
  if (options.log_probs.has_value() && !options.chat.json) return OutputForm::kLogProbs;
  return options.ids ? OutputForm::kIds : OutputForm::kText;
}

/// Prints tokens as they come; the first write that fails, or a stop string, ends the run.
class Printer : public TokenSink {
 public:
  Printer(const Tokenizer& tokenizer, OutputForm form, StopMatcher stops)
      : tokenizer_(tokenizer), form_(form), stops_(std::move(stops)) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override {
    bar_.Update(done, total);
    return !WasInterrupted();
  }

  SinkVerdict OnToken(const SampledToken& token) override {
    std::string text;
    if (token.id < tokenizer_.vocab_size() && !tokenizer_.IsSpecial(token.id)) {
      text = stream_.Feed(stops_.Feed(tokenizer_.TokenBytes(token.id)));
    }
    switch (form_) {
      case OutputForm::kText:
        Write(text);
        break;
      case OutputForm::kIds:
        Write(fmt::format("{}{}", first_ ? "" : ",", token.id));
        break;
      case OutputForm::kLogProbs:
        Write(DumpJson(TokenJson(tokenizer_, token)) + "\n");
        break;
    }
    first_ = false;
    if (!status_.ok() || WasInterrupted()) return SinkVerdict::kCancel;
    return stops_.matched().has_value() ? SinkVerdict::kStop : SinkVerdict::kContinue;
  }

  /// Ends the text or the ids with a line break. The first failure of any write.
  Status Finish() {
    if (form_ == OutputForm::kText) {
      Write(stream_.Feed(stops_.Finish()));
      Write(stream_.Finish());
    }
    if (form_ != OutputForm::kLogProbs) Write("\n");
    return status_;
  }

 private:
  void Write(std::string_view text) {
    if (!status_.ok()) return;
    // A model's text must not drive the terminal.
    status_ = is_terminal_ ? WriteOutput(clean_.Feed(text)) : WriteOutput(text);
  }

  const Tokenizer& tokenizer_;
  const OutputForm form_;
  bool first_ = true;
  StopMatcher stops_;
  Utf8Stream stream_;
  const bool is_terminal_ = IsTerminal(STDOUT_FILENO);
  TerminalText clean_;
  ProgressBar bar_{"reading the prompt"};
  Status status_;
};

/// The ids of a plain prompt.
Result<std::vector<int32_t>> EncodeText(const std::string& text, const Tokenizer& tokenizer) {
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

std::vector<int64_t> ChooseStopIds(const RunOptions& options, const Engine& engine) {
  if (options.ignore_eos) return {};
  if (!options.stop_ids.empty()) return options.stop_ids;
  return {engine.stop_ids().begin(), engine.stop_ids().end()};
}

/// Goes on from ids and prints what comes, token by token.
Result<int> RunTokens(Engine& engine, const std::vector<int32_t>& prompt,
                      const GenerateOptions& generate, const RunOptions& options) {
  K3_TRY(StopMatcher stops, MakeStopMatcher(options.sampling));
  Session session(engine);
  Printer printer(engine.tokenizer(), ChooseForm(options), std::move(stops));
  K3_TRY(const GenerateResult result, Generate(session, prompt, generate, printer));
  K3_RETURN_IF_ERROR(printer.Finish());
  if (options.stats) PrintNotice(StatsLine(result));
  return WasInterrupted() ? kExitInterrupted : kExitOk;
}

/// As RunTokens, or as an answer when that is to be text.
Result<int> RunConversation(Engine& engine, const std::string& prompt, GenerateOptions generate,
                            const RunOptions& options) {
  K3_TRY(const ChatRequest request, MakeChatRequest(options.chat, prompt));
  if (request.messages.empty()) {
    return InvalidArgument("the conversation is empty: expected a prompt, or messages in a file");
  }
  if (ChooseForm(options) != OutputForm::kText) {
    K3_TRY(const XtmlMarkers markers, XtmlMarkers::Find(engine.tokenizer()));
    generate.stop_ids.push_back(markers.end_of_message);
    K3_TRY(const std::vector<int32_t> ids, EncodeChat(engine, request));
    return RunTokens(engine, ids, generate, options);
  }
  return RunChat(engine, request, options.chat,
                 {.chat = {.sampling = generate.sampling,
                           .max_tokens = generate.max_tokens,
                           .stop = options.sampling.stops,
                           .stop_ids = std::move(generate.stop_ids),
                           .prefill_chunk = generate.prefill_chunk},
                  .log_probs = options.log_probs.has_value(),
                  .stats = options.stats});
}

Result<int> Run(const RunOptions& options) {
  const bool is_chat = AsksForChat(options.chat);
  if (options.chat.json && options.ids) {
    return InvalidArgument("--json prints an answer: expected no --ids with it");
  }
  if (options.prompt == "-" && options.chat.messages == "-") {
    return InvalidArgument("standard input: expected one reader, found PROMPT and --json-messages");
  }
  if (!is_chat && options.prompt.empty() && options.prompt_file.empty()) {
    return InvalidArgument("the prompt is empty: expected some text to go on from");
  }
  GenerateOptions generate;
  generate.max_tokens = options.max_tokens;
  K3_TRY(generate.prefill_chunk, ParsePrefillChunk(options.prefill_chunk));
  K3_RETURN_IF_ERROR(MakeStopMatcher(options.sampling).status());
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(options.threads, true));
  K3_TRY(const std::string prompt, ReadTextArgument(options.prompt, options.prompt_file));
  K3_TRY(const std::unique_ptr<Engine> engine, Engine::Open(options.dir, engine_options));
  K3_TRY(generate.sampling,
         ChooseSampling(options.sampling, engine->checkpoint().generation_config()));
  generate.sampling.top_log_probs = options.log_probs.value_or(0);
  generate.stop_ids = ChooseStopIds(options, *engine);
  CatchInterrupt();
  if (is_chat) return RunConversation(*engine, prompt, std::move(generate), options);
  K3_TRY(const std::vector<int32_t> ids, EncodeText(prompt, engine->tokenizer()));
  return RunTokens(*engine, ids, generate, options);
}

void AddOutputOptions(CLI::App& command, RunOptions& options) {
  command.add_option("--max-tokens", options.max_tokens, "Ends after this many tokens.")
      ->transform(WholeNumber(INT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--stop-id", options.stop_ids,
                  "Ends when this id is drawn; may be given more than once. Default: the model's "
                  "own stop ids.")
      ->transform(WholeNumber(INT64_MAX))
      ->type_name("ID")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_flag("--ignore-eos", options.ignore_eos,
                   "Stops at no id, only at --max-tokens; an answer in chat "
                   "form ends with <|end_of_msg|> all the same.");
  CLI::Option* ids =
      command.add_flag("--ids", options.ids, "Prints token ids, separated by commas, for text.");
  command
      .add_option(
          "--logprobs", options.log_probs,
          "Prints each token as a line of JSON, for text: id, text, bytes, logprob (natural "
          "logarithm, before temperature, filters and penalties) and top, the N best; 0 to "
          "20.")
      ->transform(WholeNumber(kTopLogProbsMax))
      ->excludes(ids)
      ->type_name("N");
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
  CLI::App* command = app.add_subcommand("run", "Continue a text, or answer a conversation.");
  AddModelArgument(*command, &options->dir, "The model's directory.");
  CLI::Option* prompt = command->add_option(
      "PROMPT", options->prompt,
      "The text to go on from, taken as it is unless --chat: no chat form, no beginning-of-text "
      "token. - reads standard input; after -- it may start with a dash.");
  command
      ->add_option("--prompt-file", options->prompt_file,
                   "Reads the prompt from this file instead.")
      ->type_name("FILE")
      ->excludes(prompt);
  AddRunChatFlags(*command, options->chat);
  AddSamplingFlags(*command, options->sampling);
  AddOutputOptions(*command, *options);
  AddThreadsOption(*command, &options->threads);
  command->footer(
      "Special tokens are not printed, except <|open|>, <|close|> and <|sep|>; --stop does not "
      "see\n"
      "them. With --ids and --logprobs the token that completes a stop string is the last one\n"
      "printed. Ctrl-C ends the text and exits with 130; a second one ends at once.\n\n"
      "Examples:\n"
      "  k3 run models/kjv \"In the beginning\" --greedy --max-tokens 40\n"
      "  k3 run models/kjv \"Blessed are\" --temperature 0.7 --seed 3 --stats\n"
      "  k3 run models/nano \"What is 347 + 85?\" --chat --thinking show\n"
      "  k3 run models/kjv - < prompt.txt");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Run(*options); }; });
}

}  // namespace k3::cli
