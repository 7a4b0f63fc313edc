#include "chat_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "config/json.h"

namespace k3::cli {

void AddEffortOption(CLI::App& command, std::string* effort) {
  command
      .add_option("--effort", *effort,
                  "How much the model thinks: none, low, high or max. Default: max.")
      ->check(CLI::IsMember({"none", "low", "high", "max"}).description(""))
      ->type_name("LEVEL");
}

Status ApplyEffortFlag(const std::string& effort, ChatRequest& request) {
  if (effort.empty()) return OkStatus();
  const std::optional<ThinkingEffort> parsed = ParseThinkingEffort(effort);
  if (!parsed.has_value() && effort != "none") {
    return InvalidArgument(
        fmt::format("effort: expected none, low, high or max, found {}", QuoteForMessage(effort)));
  }
  request.thinking = parsed.has_value();
  if (parsed.has_value()) request.effort = parsed;
  return OkStatus();
}

void SetSystemMessage(const std::string& text, ChatRequest& request) {
  std::vector<ChatMessage>& messages = request.messages;
  const bool has_one = !messages.empty() && messages.front().role == ChatRole::kSystem &&
                       !messages.front().tools.has_value();
  if (has_one) messages.erase(messages.begin());
  if (text.empty()) return;
  messages.insert(messages.begin(), ChatMessage{.role = ChatRole::kSystem, .content = {text}});
}

void AddThinkingOption(CLI::App& command, std::string* thinking) {
  command
      .add_option(
          "--thinking", *thinking,
          "How thinking is shown: show, fold (a line that counts) or hide. Default: show on "
          "a terminal, else hide.")
      ->check(CLI::IsMember({"show", "fold", "hide"}).description(""))
      ->type_name("HOW");
}

Result<ThinkingView> ParseThinkingView(const std::string& thinking) {
  if (thinking == "show") return ThinkingView::kShow;
  if (thinking == "fold") return ThinkingView::kFold;
  if (thinking == "hide") return ThinkingView::kHide;
  return InvalidArgument(
      fmt::format("thinking: expected show, fold or hide, found {}", QuoteForMessage(thinking)));
}

}  // namespace k3::cli
