#pragma once
// Conversations and tools in files, as `k3 chat` and `k3 run` read and write them: OpenAI-style
// requests, what `k3 render` takes too. Failures name the file and the place in it.

#include <string>

#include "base/status.h"
#include "text/chat_request.h"

namespace k3::cli {

/// A request, or an array of messages alone. "-" is standard input.
Result<ChatRequest> LoadChatRequest(const std::string& path);

/// The same, for what is gone on with: "-" is refused where standard input is for lines.
Result<ChatRequest> LoadConversation(const std::string& path);

/// An array of tools, or an object that has one as `tools`.
Result<JsonValue> LoadTools(const std::string& path);

/// Writes a new file whole or not at all. InvalidArgument when there is one already, unless
/// `replace`.
Status SaveChatRequest(const ChatRequest& request, const std::string& path, bool replace);

}  // namespace k3::cli
