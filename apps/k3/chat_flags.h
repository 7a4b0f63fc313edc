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

/// Declares --thinking.
void AddThinkingOption(CLI::App& command, std::string* thinking);
/// show, fold or hide.
Result<ThinkingView> ParseThinkingView(const std::string& thinking);

}  // namespace k3::cli
