#pragma once
// The part of a chat request that shapes its prompt: messages, tools and what goes with them. Read
// by text/chat_request.h, which takes whatever can be rendered; here everything that would be lost
// in silence is refused. Pure functions, any thread. Failures as api_request.h says.

#include "base/status.h"
#include "config/json.h"
#include "text/chat_request.h"

namespace k3::server {

/// `json` must be an object.
Result<ChatRequest> ReadChat(const JsonValue& json);

}  // namespace k3::server
