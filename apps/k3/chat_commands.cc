#include "chat_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat_files.h"
#include "chat_flags.h"
#include "config/json.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct ChatCommand {
  std::string_view name;
  std::string_view argument;  // as the help shows it
  std::string_view help;
  Status (*run)(const std::string& argument, ChatScreen& screen);
};

Status Help(const std::string& argument, ChatScreen& screen);

Status SetSystem(const std::string& argument, ChatScreen& screen) {
  if (argument.empty()) {
    const std::vector<ChatMessage>& messages = screen.chat.request().messages;
    const bool has_one = !messages.empty() && messages.front().role == ChatRole::kSystem;
    std::string text;
    if (has_one) {
      for (const std::string& part : messages.front().content) text += part;
    }
    return WriteOutput(has_one ? ForTerminal(text) + "\n" : "There is no system message.\n");
  }
  ChatRequest request = screen.chat.request();
  SetSystemMessage(argument == "-" ? "" : argument, request);
  screen.chat.SetRequest(std::move(request));
  return OkStatus();
}

std::string_view EffortName(const ChatRequest& request) {
  if (!request.thinking) return "none";
  return request.effort.has_value() ? ThinkingEffortName(*request.effort) : "not said";
}

Status SetEffort(const std::string& argument, ChatScreen& screen) {
  ChatRequest request = screen.chat.request();
  if (argument.empty()) {
    return WriteOutput(fmt::format("The effort is {}.\n", EffortName(request)));
  }
  K3_RETURN_IF_ERROR(ApplyEffortFlag(argument, request));
  screen.chat.SetRequest(std::move(request));
  return OkStatus();
}

Status Thinking(const std::string& argument, ChatScreen& screen) {
  if (!argument.empty()) {
    K3_TRY(screen.thinking, ParseThinkingView(argument));
    return OkStatus();
  }
  if (!screen.last.has_value() || screen.last->parsed.reasoning.empty()) {
    return WriteOutput("There is no thinking to show.\n");
  }
  return WriteOutput(ForTerminal(screen.last->parsed.reasoning) + "\n");
}

Status Save(const std::string& argument, ChatScreen& screen) {
  const std::string path = argument.empty() ? screen.file : argument;
  if (path.empty()) return InvalidArgument("/save: expected a file's name, found none");
  K3_RETURN_IF_ERROR(SaveChatRequest(screen.chat.request(), path, path == screen.file));
  screen.file = path;
  return WriteOutput(fmt::format("Saved in {}; messages: {}.\n", ForTerminal(path),
                                 screen.chat.request().messages.size()));
}

Status Load(const std::string& argument, ChatScreen& screen) {
  if (argument.empty()) return InvalidArgument("/load: expected a file's name, found none");
  K3_TRY(ChatRequest request, LoadConversation(argument));
  const std::string summary =
      fmt::format("Loaded {}; messages: {}, effort: {}.\n", ForTerminal(argument),
                  request.messages.size(), EffortName(request));
  screen.chat.SetRequest(std::move(request));
  screen.last.reset();
  screen.file.clear();
  return WriteOutput(summary);
}

Status Reset(const std::string& /*argument*/, ChatScreen& screen) {
  ChatRequest request = screen.chat.request();
  const auto is_system = [](const ChatMessage& message) {
    return message.role == ChatRole::kSystem;
  };
  const auto first_turn = std::ranges::find_if_not(request.messages, is_system);
  request.messages.erase(first_turn, request.messages.end());
  screen.chat.SetRequest(std::move(request));
  screen.last.reset();
  screen.file.clear();
  return OkStatus();
}

Status Retry(const std::string& /*argument*/, ChatScreen& screen) {
  return ShowAnswer(screen, [&](ChatSink& sink) { return screen.chat.Retry(sink); });
}

/// The result of the first tool call that has none.
Status ToolResult(const std::string& argument, ChatScreen& screen) {
  const std::vector<ToolCall> open = screen.chat.OpenCalls();
  if (open.empty()) return InvalidArgument("/result: no tool call waits for a result");
  ChatMessage message{.role = ChatRole::kTool, .content = {argument}, .call_id = open.front().id};
  if (!message.call_id.has_value()) message.tool = open.front().name;
  if (open.size() > 1) {
    ChatRequest request = screen.chat.request();
    request.messages.push_back(std::move(message));
    screen.chat.SetRequest(std::move(request));
    return WriteOutput(fmt::format("Calls that still wait for a result: {}; the next is {}.\n",
                                   open.size() - 1, ForTerminal(open[1].name)));
  }
  return ShowAnswer(screen,
                    [&](ChatSink& sink) { return screen.chat.Say(std::move(message), sink); });
}

Status Stats(const std::string& /*argument*/, ChatScreen& screen) {
  if (!screen.last.has_value()) return WriteOutput("There is no answer yet.\n");
  screen.chat.FinishSettling();
  // A server counts the tokens of an answer at its end, which a stopped one does not reach.
  const bool was_counted = screen.last->prompt_tokens > 0;
  return WriteOutput(fmt::format(
      "{}\nsession: {} messages, {}\n",
      was_counted ? ChatStatsLine(*screen.last) : "The last answer was stopped and not counted.",
      screen.chat.request().messages.size(), screen.chat.DescribeMemory()));
}

Status Quit(const std::string& /*argument*/, ChatScreen& screen) {
  screen.is_over = true;
  return OkStatus();
}

constexpr std::array<ChatCommand, 11> kCommands = {{
    {"/help", "", "shows this", Help},
    {"/system", "[TEXT]", "sets the system message; - removes it, nothing shows it", SetSystem},
    {"/effort", "[none|low|high|max]", "how much the model thinks; nothing shows it", SetEffort},
    {"/thinking", "[show|fold|hide]",
     "how thinking is shown; nothing shows that of the last answer", Thinking},
    {"/retry", "", "answers the last message again, with the next seed", Retry},
    {"/result", "TEXT", "gives the result of a tool call", ToolResult},
    {"/reset", "", "forgets the conversation, but not the system message", Reset},
    {"/save", "[FILE]", "saves the conversation, as a request that k3 render takes too", Save},
    {"/load", "FILE", "goes on with a saved conversation, its tools and its effort", Load},
    {"/stats", "", "tokens, reuse and speed of the last answer", Stats},
    {"/quit", "", "leaves, as Ctrl-D does", Quit},
}};

Status Help(const std::string& /*argument*/, ChatScreen& /*screen*/) {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    text += fmt::format("  {:<30}  {}\n", fmt::format("{} {}", command.name, command.argument),
                        command.help);
  }
  return WriteOutput(text +
                     "A line that ends with a backslash goes on in the next one; two slashes begin "
                     "a message\nwith one. Ctrl-C stops an answer.\n");
}

}  // namespace

Status RunChatCommand(std::string_view line, ChatScreen& screen) {
  const size_t name_end = std::min(line.find_first_of(" \n\t"), line.size());
  const std::string_view name = line.substr(0, name_end);
  std::string_view argument = line.substr(name_end);
  argument.remove_prefix(std::min(argument.find_first_not_of(" \n\t"), argument.size()));
  argument.remove_suffix(argument.size() - (argument.find_last_not_of(" \n\t") + 1));
  const auto command = std::ranges::find(kCommands, name, &ChatCommand::name);
  if (command == kCommands.end()) {
    return InvalidArgument(
        fmt::format("there is no command {}; /help lists them", QuoteForMessage(name)));
  }
  return command->run(std::string(argument), screen);
}

std::vector<std::string> ChatCommandNames() {
  std::vector<std::string> names;
  for (const ChatCommand& command : kCommands) names.emplace_back(command.name);
  return names;
}

Status ShowAnswer(ChatScreen& screen,
                  const std::function<Result<ChatAnswer>(ChatSink& sink)>& run) {
  AnswerView view(screen.thinking, screen.styled);
  Result<ChatAnswer> answer = run(view);
  if (!answer.ok()) {
    // What came of it stands on a line of its own, above the failure.
    K3_RETURN_IF_ERROR(view.Finish({.finish_reason = FinishReason::kStop}));
    return answer.status();
  }
  K3_RETURN_IF_ERROR(view.Finish(*answer));
  screen.last = std::move(*answer);
  return OkStatus();
}

}  // namespace k3::cli
