#include "run_chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "answer_view.h"
#include "chat_files.h"
#include "chat_flags.h"
#include "commands.h"
#include "terminal/terminal.h"
#include "text/chat_json.h"
#include "token_json.h"

namespace k3::cli {
namespace {

/// Shows how far the prompt is, and nothing of the answer. Keeps its tokens as JSON if asked.
class QuietSink : public ChatSink {
 public:
  QuietSink(const Tokenizer& tokenizer, bool keeps_tokens)
      : tokenizer_(tokenizer), keeps_tokens_(keeps_tokens) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override {
    bar_.Update(done, total);
    return !WasInterrupted();
  }
  bool OnToken(const SampledToken& token) override {
    if (keeps_tokens_) tokens_.push_back(TokenJson(tokenizer_, token));
    return !WasInterrupted();
  }
  bool OnEvent(const XtmlEvent& /*event*/) override { return !WasInterrupted(); }

  JsonValue::Items TakeTokens() { return std::move(tokens_); }

 private:
  const Tokenizer& tokenizer_;
  const bool keeps_tokens_;
  JsonValue::Items tokens_;
  ProgressBar bar_{"reading the prompt"};
};

JsonValue Count(int64_t count) { return JsonValue(count); }

/// As a choice of OpenAI's chat completions, with its usage beside it.
JsonValue AnswerJson(const ChatAnswer& answer) {
  std::vector<ChatMessage> messages;
  AddAnswer(answer.parsed, messages);
  JsonValue::Members cached = {{"cached_tokens", Count(answer.cached_tokens)}};
  JsonValue::Members usage = {
      {"prompt_tokens", Count(answer.prompt_tokens)},
      {"completion_tokens", Count(answer.generated_tokens)},
      {"total_tokens", Count(answer.prompt_tokens + answer.generated_tokens)},
      {"prompt_tokens_details", JsonValue(std::move(cached))}};
  return JsonValue(
      JsonValue::Members{{"message", ChatMessageJson(messages.front())},
                         {"finish_reason", JsonValue(std::string(answer.FinishName()))},
                         {"usage", JsonValue(std::move(usage))}});
}

Result<ThinkingView> ChooseThinkingView(const RunChatFlags& flags) {
  if (!flags.thinking.empty()) return ParseThinkingView(flags.thinking);
  return IsTerminal(STDOUT_FILENO) ? ThinkingView::kShow : ThinkingView::kHide;
}

}  // namespace

void AddRunChatFlags(CLI::App& command, RunChatFlags& flags) {
  command.add_flag("--chat", flags.chat,
                   "Takes the prompt as a user's message, in the model's chat form, and prints the "
                   "answer. The options below ask for it too.");
  command
      .add_option("--system", flags.system,
                  "The system message; takes the place of the one in a file.")
      ->type_name("TEXT");
  AddEffortOption(command, &flags.effort);
  command.add_option("--tools", flags.tools, "Declares the tools of this file, a JSON array.")
      ->type_name("FILE");
  command
      .add_option("--json-messages", flags.messages,
                  "Goes on from the conversation in this file: an OpenAI-style request or its "
                  "messages. A prompt becomes one more message. - reads standard input.")
      ->type_name("FILE");
  AddThinkingOption(command, &flags.thinking);
  command.add_flag("--json", flags.json,
                   "Prints the whole answer as JSON: message, finish_reason, usage.");
}

bool AsksForChat(const RunChatFlags& flags) {
  return flags.chat || flags.json || flags.system.has_value() || !flags.effort.empty() ||
         flags.tools.has_value() || flags.messages.has_value() || !flags.thinking.empty();
}

Result<ChatRequest> MakeChatRequest(const RunChatFlags& flags, const std::string& prompt) {
  ChatRequest request;
  if (flags.messages.has_value()) {
    K3_TRY(request, LoadChatRequest(*flags.messages));
  }
  if (flags.tools.has_value()) {
    K3_TRY(request.tools, LoadTools(*flags.tools));
  }
  K3_RETURN_IF_ERROR(ApplyEffortFlag(flags.effort, request));
  if (flags.system.has_value()) SetSystemMessage(*flags.system, request);
  if (!prompt.empty()) {
    request.messages.push_back({.role = ChatRole::kUser, .content = {prompt}});
  }
  return request;
}

Result<int> RunChat(Engine& engine, const ChatRequest& request, const RunChatFlags& flags,
                    const RunChatOptions& options) {
  Session session(engine);
  ChatAnswer answer;
  if (flags.json) {
    QuietSink sink(engine.tokenizer(), options.log_probs);
    K3_TRY(answer, AnswerChat(session, request, options.chat, sink));
    JsonValue json = AnswerJson(answer);
    if (options.log_probs) {
      json.members()->emplace_back("logprobs", JsonValue(sink.TakeTokens()));
    }
    K3_RETURN_IF_ERROR(WriteOutput(DumpJson(json) + "\n"));
  } else {
    K3_TRY(const ThinkingView thinking, ChooseThinkingView(flags));
    AnswerView view(thinking, StylingAllowed());
    K3_TRY(answer, AnswerChat(session, request, options.chat, view));
    K3_RETURN_IF_ERROR(view.Finish(answer));
  }
  if (options.stats) PrintNotice(ChatStatsLine(answer));
  return WasInterrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace k3::cli
