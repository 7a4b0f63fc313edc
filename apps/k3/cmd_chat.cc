// k3 chat: a conversation in the terminal.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>

#include "api_key_file.h"
#include "chat_commands.h"
#include "chat_files.h"
#include "chat_flags.h"
#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "number_check.h"
#include "remote_chat.h"
#include "sampling_flags.h"
#include "sys/file.h"
#include "terminal/line_editor.h"
#include "terminal/terminal.h"
#include "text/xtml_markers.h"

namespace k3::cli {
namespace {

constexpr int64_t kDefaultChatTokens = 4096;

struct ChatFlags {
  std::string dir;
  std::string server;
  std::string api_key_file;
  std::optional<std::string> system;
  std::string effort;
  std::optional<std::string> tools;
  std::optional<std::string> load;
  std::string thinking;
  std::string history;
  bool no_history = false;
  SamplingFlags sampling;
  int64_t max_tokens = kDefaultChatTokens;
  int threads = 0;
};

/// The XDG directory for state that is worth keeping but not worth a backup.
std::string DefaultHistoryFile() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return JoinPath(state, "k3/chat_history");
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return "";
  return JoinPath(home, ".local/state/k3/chat_history");
}

Result<ChatRequest> FirstRequest(const ChatFlags& flags) {
  ChatRequest request;
  if (flags.load.has_value()) {
    K3_TRY(request, LoadConversation(*flags.load));
  }
  if (flags.tools.has_value()) {
    K3_TRY(request.tools, LoadTools(*flags.tools));
  }
  K3_RETURN_IF_ERROR(ApplyEffortFlag(flags.effort, request));
  if (flags.system.has_value()) SetSystemMessage(*flags.system, request);
  return request;
}

Status Answer(std::string text, ChatScreen& screen) {
  ChatMessage message{.role = ChatRole::kUser, .content = {std::move(text)}};
  return ShowAnswer(screen,
                    [&](ChatSink& sink) { return screen.chat.Say(std::move(message), sink); });
}

/// Two slashes stand for a message that begins with one.
Status RunLine(std::string text, ChatScreen& screen) {
  if (text.starts_with("//")) return Answer(text.substr(1), screen);
  if (text.starts_with('/')) return RunChatCommand(text, screen);
  return Answer(std::move(text), screen);
}

bool IsBlankLine(std::string_view text) {
  return text.find_first_not_of(" \t\n") == std::string_view::npos;
}

/// Reads lines until the user leaves. What goes wrong with one of them is told, and the next is
/// read; when lines come from a file, it ends the program.
Result<int> RunLoop(LineEditor& editor, ChatScreen& screen) {
  while (!screen.is_over) {
    K3_TRY(LineEditor::Line line, editor.Read(screen.styled ? "\033[1m> \033[0m" : "> "));
    if (line.kind == LineEditor::Line::Kind::kEnd) return kExitOk;
    if (line.kind == LineEditor::Line::Kind::kInterrupted || IsBlankLine(line.text)) continue;
    editor.AddHistory(line.text);
    Status status;
    bool was_stopped = false;
    {
      const InterruptScope interrupts;
      status = RunLine(std::move(line.text), screen);
      was_stopped = WasInterrupted();
    }
    if (was_stopped && !editor.edits()) return kExitInterrupted;
    if (was_stopped) editor.DiscardInput();
    if (status.ok()) {
      screen.chat.StartSettling();
      continue;
    }
    // Nobody reads any more, or nobody can correct the line.
    if (status.code() == StatusCode::kCancelled || !editor.edits()) return status;
    PrintNotice(status.ToString());
  }
  return kExitOk;
}

/// Who answers, and how.
struct Answerer {
  std::unique_ptr<Engine> engine;  // borrowed by the backend
  std::unique_ptr<ChatBackend> backend;
  ChatOptions options;
  std::string greeting;
};

Result<Answerer> OpenModel(const ChatFlags& flags) {
  Answerer answerer;
  K3_TRY(const EngineOptions engine_options, MakeEngineOptions(flags.threads, true));
  K3_TRY(answerer.engine, Engine::Open(flags.dir, engine_options));
  Engine& engine = *answerer.engine;
  const Result<XtmlMarkers> markers = XtmlMarkers::Find(engine.tokenizer());
  if (!markers.ok()) return markers.status().WithContext(flags.dir);
  ChatOptions& options = answerer.options;
  options.stop_ids.assign(engine.stop_ids().begin(), engine.stop_ids().end());
  K3_TRY(options.sampling, ChooseSampling(flags.sampling, engine.checkpoint().generation_config()));
  K3_RETURN_IF_ERROR(options.sampling.ValidateFor(engine.config().vocab_size));
  answerer.backend = std::make_unique<LocalChat>(engine);
  answerer.greeting = fmt::format("{}, {} threads", flags.dir, engine.threads());
  return answerer;
}

Result<Answerer> OpenServer(const ChatFlags& flags) {
  if (flags.max_tokens < 1) {
    return InvalidArgument("--max-tokens: expected at least 1, as a server takes it, found 0");
  }
  RemoteChatOptions options{.url = flags.server};
  K3_TRY(options.sampling, RemoteSampling(flags.sampling));
  if (!flags.api_key_file.empty()) {
    K3_TRY(const std::vector<std::string> keys, ReadApiKeys(flags.api_key_file));
    options.api_key = keys.front();
  }
  K3_TRY(std::unique_ptr<RemoteChat> remote, RemoteChat::Connect(std::move(options)));
  Answerer answerer;
  answerer.options.sampling.seed = flags.sampling.seed;
  answerer.greeting = fmt::format("{} at {}", remote->model(), remote->url());
  answerer.backend = std::move(remote);
  return answerer;
}

Result<int> Chat(const ChatFlags& flags) {
  K3_TRY(ChatRequest request, FirstRequest(flags));
  K3_RETURN_IF_ERROR(MakeStopMatcher(flags.sampling).status());
  K3_TRY(Answerer answerer, flags.server.empty() ? OpenModel(flags) : OpenServer(flags));
  answerer.options.max_tokens = flags.max_tokens;
  answerer.options.stop = flags.sampling.stops;
  std::string history = flags.history.empty() ? DefaultHistoryFile() : flags.history;
  if (flags.no_history) history.clear();
  K3_TRY(const std::unique_ptr<LineEditor> editor,
         LineEditor::Open({.history_file = history, .commands = ChatCommandNames()}));
  ChatSession chat(*answerer.backend, std::move(request), std::move(answerer.options));
  ChatScreen screen{.chat = chat,
                    .thinking = editor->edits() ? ThinkingView::kShow : ThinkingView::kHide,
                    .styled = StylingAllowed()};
  if (!flags.thinking.empty()) {
    K3_TRY(screen.thinking, ParseThinkingView(flags.thinking));
  }
  if (editor->edits()) {
    PrintNotice(answerer.greeting + ". /help lists the commands, Ctrl-D leaves.");
  }
  chat.StartSettling();
  return RunLoop(*editor, screen);
}

/// Declares what says who answers; --threads must be there.
void AddAnswererOptions(CLI::App& command, ChatFlags& flags) {
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? std::string("expected a URL") : ""; },
      "");
  CLI::Option* server =
      command
          .add_option("--server", flags.server,
                      "Talks to a running k3 serve, as in http://127.0.0.1:8080, in place of a "
                      "model of its own.")
          ->check(not_empty)
          ->type_name("URL")
          ->excludes("DIR")
          ->excludes("--threads");
  command
      .add_option("--api-key-file", flags.api_key_file,
                  "The server's key: the first line of this file.")
      ->type_name("FILE")
      ->needs(server);
}

}  // namespace

void AddChatCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal.");
  AddModelArgument(*command, &flags->dir, "The model's directory.");
  command->get_option("DIR")->required(false);
  command->add_option("--system", flags->system, "The system message.")->type_name("TEXT");
  AddEffortOption(*command, &flags->effort);
  command
      ->add_option("--tools", flags->tools,
                   "Declares the tools of this file, a JSON array. Their calls are shown; /result "
                   "gives what they return.")
      ->type_name("FILE");
  command
      ->add_option("--load", flags->load,
                   "Goes on with this conversation: what /save wrote, or an OpenAI-style request.")
      ->type_name("FILE");
  AddThinkingOption(*command, &flags->thinking);
  AddSamplingFlags(*command, flags->sampling);
  command->add_option("--max-tokens", flags->max_tokens, "Ends an answer after this many tokens.")
      ->transform(WholeNumber(INT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  CLI::Option* history = command
                             ->add_option("--history", flags->history,
                                          "Keeps the lines you type in this file. Default: "
                                          "~/.local/state/k3/chat_history.")
                             ->type_name("FILE");
  command->add_flag("--no-history", flags->no_history, "Keeps them in no file.")->excludes(history);
  AddThreadsOption(*command, &flags->threads);
  AddAnswererOptions(*command, *flags);
  command->footer(
      "Ctrl-C stops an answer, not the program; a second one, while the answer has not stopped "
      "yet,\n"
      "ends the program. When standard input is no terminal, every line is\n"
      "a message or a command, only the responses are printed, and the first line that fails ends\n"
      "the program.\n\n"
      "Examples:\n"
      "  k3 chat models/nano\n"
      "  printf 'What is 6 + 7?\\n/stats\\n' | k3 chat models/nano\n"
      "  k3 chat --server http://127.0.0.1:8080");
  command->callback([flags, &invocation] {
    if (flags->dir.empty() && flags->server.empty()) throw CLI::RequiredError("DIR or --server");
    invocation.command = [flags] { return Chat(*flags); };
  });
}

}  // namespace k3::cli
