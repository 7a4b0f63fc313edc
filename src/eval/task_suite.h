#pragma once
// Task suite: how many synthetic tasks (data/chat_tasks.h) a model answers right, by exact match.
//
// Each kind has the same number of held-out cases, drawn from a fixed seed: no training run has
// seen any of them. A case is a conversation answered greedily; right is the content of its last
// answer, character for character. A tool call counts when it is the only one, names the tool and
// has the arguments of the right types and values, and the answer to its result is right as well.
// What the model thinks is not judged. A look-up has all of its 32 pairs. The score depends on the
// model and these options alone.
//
// With a context, prompts are filled with distractors up to so many tokens: the tasks themselves
// stay the same, so scores at several lengths are of the same questions.
//
// One thread calls. Failures: those of AnswerChat, such as a tokenizer without K3's markers, and a
// context that is too short for a task or asked of kinds that take no distractors.

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "data/chat_tasks.h"
#include "engine/engine.h"

namespace k3::eval {

struct TaskSuiteOptions {
  int64_t cases_count = 200;  // of each kind
  uint64_t seed = 1;
  int64_t max_tokens = 256;  // of one answer
  std::vector<TaskKind> kinds{std::begin(kTaskKinds), std::end(kTaskKinds)};
  /// Tokens of a prompt, filled up with whole sentences and not passed; 0: as they are.
  int64_t context = 0;
  std::function<void(int64_t done, int64_t total)> progress;  // may be empty
};

struct TaskScore {
  TaskKind kind = TaskKind::kSum;
  int64_t cases_count = 0;
  int64_t right_count = 0;
  /// With kToolCall: the calls that were right, whatever was then made of the result.
  int64_t right_calls_count = 0;
  /// Tokens of all prompts together, of the answers' turns.
  int64_t prompt_tokens = 0;
  /// The first case that was wrong, for people: question, expected and found.
  std::string example;
};

Result<std::vector<TaskScore>> RunTaskSuite(Engine& engine, const TaskSuiteOptions& options);

}  // namespace k3::eval
