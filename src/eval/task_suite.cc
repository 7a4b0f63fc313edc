#include "eval/task_suite.h"

#include <fmt/format.h>

#include "engine/chat.h"

namespace k3::eval {
namespace {

class Quiet : public ChatSink {
 public:
  bool OnEvent(const XtmlEvent& /*event*/) override { return true; }
};

Result<ParsedAnswer> Ask(Session& session, const ChatTask& task, TaskTurn turn,
                         int64_t max_tokens) {
  K3_TRY(const ChatRequest request, ParseChatRequest(TaskPrompt(task, turn), "synthetic task"));
  ChatOptions options;
  options.sampling.temperature = 0.0f;
  options.max_tokens = max_tokens;
  Quiet sink;
  K3_TRY(ChatAnswer answer, AnswerChat(session, request, options, sink));
  return std::move(answer.parsed);
}

bool IsRightCall(const ParsedAnswer& answer, const ToolCall& expected) {
  if (answer.tool_calls.size() != 1) return false;
  const ParsedToolCall& found = answer.tool_calls[0];
  if (!found.complete || found.name != expected.name) return false;
  ToolCall call;
  if (!SetToolArguments(found.arguments, call).ok()) return false;
  if (call.raw_arguments.has_value()) return false;
  const JsonStyle sorted{.sort_keys = true};
  return DumpJson(JsonValue(call.arguments), sorted) ==
         DumpJson(JsonValue(expected.arguments), sorted);
}

std::string Example(const ChatTask& task, const ParsedAnswer& found) {
  const JsonValue::Items& messages = *task.request.Find("messages")->items();
  const std::string& question = *messages[0].Find("content")->string();
  return fmt::format("asked {}, expected {}, found {}", QuoteForMessage(question),
                     QuoteForMessage(task.answer), QuoteForMessage(found.content));
}

/// Adds one case to a score.
Status Score(Session& session, const ChatTask& task, int64_t max_tokens, TaskScore& score) {
  bool call_is_right = true;
  if (task.call.has_value()) {
    K3_TRY(const ParsedAnswer called, Ask(session, task, TaskTurn::kFirst, max_tokens));
    call_is_right = IsRightCall(called, *task.call);
    score.right_calls_count += call_is_right ? 1 : 0;
    if (!call_is_right && score.example.empty()) score.example = Example(task, called);
  }
  K3_TRY(const ParsedAnswer answer, Ask(session, task, TaskTurn::kAnswer, max_tokens));
  const bool is_right = answer.content == task.answer && answer.tool_calls.empty();
  ++score.cases_count;
  score.right_count += is_right && call_is_right ? 1 : 0;
  if (!is_right && score.example.empty()) score.example = Example(task, answer);
  return OkStatus();
}

}  // namespace

Result<std::vector<TaskScore>> RunTaskSuite(Engine& engine, const TaskSuiteOptions& options) {
  std::vector<TaskScore> scores;
  Session session(engine, Session::Boundaries::kKept);
  const int64_t total = options.cases_count * std::ssize(options.kinds);
  int64_t done = 0;
  for (const TaskKind kind : options.kinds) {
    TaskScore score{.kind = kind};
    const TaskGenerator generator(options.seed, TaskSplit::kHeldOut, {&kind, 1});
    for (int64_t n = 0; n < options.cases_count; ++n) {
      K3_RETURN_IF_ERROR(Score(session, generator.Make(n), options.max_tokens, score));
      if (options.progress) options.progress(++done, total);
    }
    scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace k3::eval
