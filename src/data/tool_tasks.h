#pragma once
// The tasks of chat_tasks.h that call a tool: what is asked, the call, its result, and what an
// assistant says then.
//
// Four tools: get_weather(city), multiply(a, b), set_alarm(hour, minute, every_day) and
// to_metres(value, unit). Every conversation declares them all, in an order of its own. Plain
// functions; any thread; nothing fails.

#include <cstdint>
#include <string>
#include <string_view>

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

/// The subject of the task that asks for the weather there.
std::string WeatherSubject(std::string_view city);

/// `number` counts the calls of a conversation and makes the call's id.
ToolTask DrawToolTask(Random& random, int64_t number);

/// Question, call, result and answer.
JsonValue::Items ToolTaskMessages(const ToolTask& task);

/// The declarations of all four tools in a random order.
JsonValue DrawTools(Random& random);

}  // namespace k3::tasks
