#pragma once
// The commands of `k3 chat` that start with a slash: a table of names, help and functions.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer_view.h"
#include "chat_session.h"

namespace k3::cli {

/// What the loop of `k3 chat` keeps between lines.
struct ChatScreen {
  ChatSession& chat;
  ThinkingView thinking;
  bool styled;
  std::optional<ChatAnswer> last;  // the last answer, whole
  std::string file;                // that the conversation was saved to
  bool is_over = false;            // the user has left
};

/// Runs "/name argument". A failure is for the user to read; the conversation goes on.
Status RunChatCommand(std::string_view line, ChatScreen& screen);

/// Their names, for completion.
std::vector<std::string> ChatCommandNames();

/// Shows an answer as it comes from `run`, and remembers it.
Status ShowAnswer(ChatScreen& screen, const std::function<Result<ChatAnswer>(ChatSink& sink)>& run);

}  // namespace k3::cli
