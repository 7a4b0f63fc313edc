#pragma once
// Options that `k3 chat` and `k3 run --chat` share.

#include <string>

#include "answer_view.h"
#include "base/status.h"
#include "text/chat_request.h"

namespace CLI {
class App;
}

namespace k3::cli {

/// Declares --effort.
void AddEffortOption(CLI::App& command, std::string* effort);
/// none, low, high or max; empty changes nothing.
Status ApplyEffortFlag(const std::string& effort, ChatRequest& request);

/// Puts `text` in the place of the system message that comes first, or before all others; empty
/// text takes that message away.
void SetSystemMessage(const std::string& text, ChatRequest& request);

/// Declares --thinking.
void AddThinkingOption(CLI::App& command, std::string* thinking);
/// show, fold or hide.
Result<ThinkingView> ParseThinkingView(const std::string& thinking);

}  // namespace k3::cli
