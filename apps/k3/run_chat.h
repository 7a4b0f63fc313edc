#pragma once
// The chat form of `k3 run`: a prompt as a user's message, or a whole conversation from a file.

#include <optional>
#include <string>

#include "base/status.h"
#include "engine/chat.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct RunChatFlags {
  bool chat = false;
  // Given as empty text they ask for the chat form too.
  std::optional<std::string> system;
  std::string effort;
  std::optional<std::string> tools;
  std::optional<std::string> messages;  // a file
  std::string thinking;
  bool json = false;
};

/// Declares --chat, --system, --effort, --tools, --json-messages, --thinking and --json. Each of
/// them asks for the chat form.
void AddRunChatFlags(CLI::App& command, RunChatFlags& flags);
bool AsksForChat(const RunChatFlags& flags);

/// The conversation that the flags and the prompt make. An empty prompt adds no message.
Result<ChatRequest> MakeChatRequest(const RunChatFlags& flags, const std::string& prompt);

struct RunChatOptions {
  ChatOptions chat;
  bool log_probs = false;  // with --json: of every token, as chat.sampling.top_log_probs says
  bool stats = false;
};

/// Answers and prints, as text or with --json as one object. Gives the exit code.
Result<int> RunChat(Engine& engine, const ChatRequest& request, const RunChatFlags& flags,
                    const RunChatOptions& options);

}  // namespace k3::cli
