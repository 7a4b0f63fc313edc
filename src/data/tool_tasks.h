#pragma once
// The tasks of chat_tasks.h that call a tool: what is asked, the call, its result, and what an
// assistant says then.
//
// Four tools: get_weather(city), multiply(a, b), set_alarm(hour, minute, every_day) and
// to_metres(value, unit). Every task declares them all, in an order of its own. Plain functions;
// any thread; nothing fails.

#include <string>

#include "base/random.h"
#include "config/json.h"
#include "text/chat_request.h"

namespace k3::tasks {

struct ToolTask {
  std::string subject;
  std::string question;
  ToolCall call;
  std::string result;  // JSON, as the tool answers
  std::string answer;
};

ToolTask DrawToolTask(Random& random);

/// The request with its five parts: tools, question, call, result and answer.
JsonValue ToolTaskRequest(const ToolTask& task, Random& random);

}  // namespace k3::tasks
