#include "eval/task_suite.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/chat.h"

namespace k3::eval {
namespace {

class Quiet : public ChatSink {
 public:
  bool OnEvent(const XtmlEvent& /*event*/) override { return true; }
};

Result<ChatRequest> ParsePrompt(const ChatTask& task, TaskTurn turn) {
  return ParseChatRequest(TaskPrompt(task, turn), "synthetic task");
}

Result<ChatAnswer> Ask(Session& session, const ChatTask& task, TaskTurn turn, int64_t max_tokens) {
  K3_TRY(const ChatRequest request, ParsePrompt(task, turn));
  ChatOptions options;
  options.sampling.temperature = 0.0f;
  options.max_tokens = max_tokens;
  Quiet sink;
  return AnswerChat(session, request, options, sink);
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

Result<int64_t> RequestTokens(const Engine& engine, const Result<ChatRequest>& request) {
  K3_RETURN_IF_ERROR(request.status());
  K3_TRY(const std::vector<int32_t> ids, EncodeChat(engine, *request));
  return std::ssize(ids);
}

Result<int64_t> PromptTokens(const Engine& engine, const ChatTask& task) {
  return RequestTokens(engine, ParsePrompt(task, TaskTurn::kAnswer));
}

/// Whether the model's context has room for the whole task, its answer included: a score without
/// it would say nothing.
Status CheckRoom(const Engine& engine, const ChatTask& task, int64_t context) {
  K3_TRY(const int64_t tokens,
         RequestTokens(engine, ParseChatRequest(task.request, "synthetic task")));
  if (tokens <= engine.config().context_max) return OkStatus();
  return InvalidArgument(fmt::format(
      "a task of {} tokens with its answer does not fit into the model's context of {}{}", tokens,
      engine.config().context_max, context > 0 ? "; take a smaller --context" : ""));
}

/// Case n with as many distractors as fit into the context, if there is one.
Result<ChatTask> MakeCase(const Engine& engine, const TaskGenerator& generator, int64_t n,
                          int64_t context) {
  ChatTask task = generator.Make(n);
  if (context == 0) return task;
  K3_TRY(const int64_t bare, PromptTokens(engine, task));
  if (bare > context) {
    return InvalidArgument(
        fmt::format("a task of {} tokens does not fit into a context of {}; take at least {}", bare,
                    context, bare));
  }
  // A sentence has at least a token, so `low` fits and `high` does not.
  int64_t low = 0, high = context - bare + 1;
  // Sentences are about as long as each other: the next guess is where the line through both ends
  // meets the context.
  int64_t tokens = bare, guess = std::min<int64_t>(high, 16);
  while (high - low > 1) {
    guess = std::clamp(guess, low + 1, high - 1);
    ChatTask longer = generator.Make(n, guess);
    K3_TRY(const int64_t found, PromptTokens(engine, longer));
    if (found <= context) {
      low = guess;
      tokens = found;
      task = std::move(longer);
    } else {
      high = guess;
    }
    const double each = static_cast<double>(found - bare) / static_cast<double>(guess);
    guess =
        low + std::max<int64_t>(1, static_cast<int64_t>((context - tokens) / std::max(1.0, each)));
  }
  return task;
}

/// Adds one case to a score.
Status Score(Session& session, const ChatTask& task, int64_t max_tokens, TaskScore& score) {
  bool call_is_right = true;
  if (task.call.has_value()) {
    K3_TRY(const ChatAnswer called, Ask(session, task, TaskTurn::kFirst, max_tokens));
    call_is_right = IsRightCall(called.parsed, *task.call);
    score.right_calls_count += call_is_right ? 1 : 0;
    if (!call_is_right && score.example.empty()) score.example = Example(task, called.parsed);
  }
  K3_TRY(const ChatAnswer answered, Ask(session, task, TaskTurn::kAnswer, max_tokens));
  const ParsedAnswer& answer = answered.parsed;
  score.prompt_tokens += answered.prompt_tokens;
  const bool is_right = answer.content == task.answer && answer.tool_calls.empty();
  ++score.cases_count;
  score.right_count += is_right && call_is_right ? 1 : 0;
  if (!is_right && score.example.empty()) score.example = Example(task, answer);
  return OkStatus();
}

}  // namespace

Result<std::vector<TaskScore>> RunTaskSuite(Engine& engine, const TaskSuiteOptions& options) {
  for (const TaskKind kind : options.kinds) {
    if (options.context > 0 && !TakesDistractors(kind)) {
      return InvalidArgument(
          fmt::format("tasks of kind {} cannot be filled up to a context; copy and look-up can",
                      TaskKindName(kind)));
    }
  }
  if (options.context > engine.config().context_max) {
    return InvalidArgument(
        fmt::format("--context: expected at most the model's context of {}, found {}",
                    engine.config().context_max, options.context));
  }
  std::vector<TaskScore> scores;
  Session session(engine, Session::Boundaries::kKept);
  const int64_t total = options.cases_count * std::ssize(options.kinds);
  int64_t done = 0;
  for (const TaskKind kind : options.kinds) {
    TaskScore score{.kind = kind};
    const TaskGenerator generator(options.seed, TaskSplit::kHeldOut,
                                  {.kinds = {kind}, .pairs_min = kLookUpPairsMax});
    for (int64_t n = 0; n < options.cases_count; ++n) {
      K3_TRY(const ChatTask task, MakeCase(engine, generator, n, options.context));
      K3_RETURN_IF_ERROR(CheckRoom(engine, task, options.context));
      K3_RETURN_IF_ERROR(Score(session, task, options.max_tokens, score));
      if (options.progress) options.progress(++done, total);
    }
    scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace k3::eval
