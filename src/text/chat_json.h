#pragma once
// A conversation back into the JSON that ParseChatRequest reads: for saving and for debugging.
// Pure functions, any thread.

#include "config/json.h"
#include "text/chat_request.h"

namespace k3 {

/// An OpenAI-style request. Reading it again gives a request with the same prompt.
JsonValue ChatRequestJson(const ChatRequest& request);

JsonValue ChatMessageJson(const ChatMessage& message);

}  // namespace k3
