// k3 tasks: synthetic conversations with one right answer, a chat request a line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/limits.h"
#include "commands.h"
#include "config/json.h"
#include "data/chat_tasks.h"
#include "number_check.h"
#include "task_kinds_option.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct TasksFlags {
  uint64_t seed = 1;
  int64_t count = 10;
  int64_t first = 0;
  bool held_out = false;
  std::vector<std::string> kinds;
  ConversationShape shape;
};

Result<int> Tasks(const TasksFlags& flags) {
  TaskOptions options;
  if (!flags.kinds.empty()) {
    K3_TRY(options.kinds, ParseTaskKinds(flags.kinds));
  }
  const TaskGenerator generator(
      flags.seed, flags.held_out ? TaskSplit::kHeldOut : TaskSplit::kTraining, std::move(options));
  // A single task is told what it is and what its answer is; a conversation has several.
  const bool single = flags.shape == ConversationShape{};
  for (int64_t n = flags.first; n < flags.first + flags.count; ++n) {
    K3_RETURN_IF_ERROR(WriteOutput(single ? TaskLine(generator.Make(n))
                                          : TaskLine(generator.MakeConversation(n, flags.shape))));
  }
  return kExitOk;
}

}  // namespace

void AddTasksCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto flags = std::make_shared<TasksFlags>();
  CLI::App* command = app.add_subcommand(
      "tasks", "Write synthetic conversations to train on, a chat request a line.");
  command->add_option("--count", flags->count, "How many.")
      ->transform(WholeNumber(uint64_t{1} << 32))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--first", flags->first, "The number of the first one, from 0.")
      ->transform(WholeNumber(uint64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Others.")
      ->transform(WholeNumber(UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--held-out", flags->held_out,
                    "Tasks that never occur in training, whatever the seeds.");
  AddTaskKindsOption(*command, &flags->kinds);
  command
      ->add_option("--turns", flags->shape.turns_max,
                   "Conversations of 1 to so many tasks: more answers in as many tokens.")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, limits::kTaskTurnsMax).description(""));
  command
      ->add_option("--distractors", flags->shape.distractors_max,
                   "In half the conversations that begin with copying or a look-up, up to so many "
                   "sentences that say nothing.")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, limits::kTaskDistractorsMax).description(""));
  command
      ->add_option(
          "--words", flags->shape.words_max,
          "If more than 8: half the copying is of words to be said several times, up to so "
          "many in all, and half the look-ups are of 1 to 6 names.")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{8}, limits::kTaskWordsMax).description(""));
  command->add_flag("--made-up-names", flags->shape.makes_up_names,
                    "Half the copying of words said once is of names that nobody has met.");
  command->footer(
      "A line of a single task has the members `task`, its kind, and `answer`, the content of the\n"
      "last message if it is right, beside the request.\n\n"
      "Example:\n"
      "  k3 tasks --count 20000 --kinds sum difference --turns 8 > sums.jsonl\n"
      "  k3 train CONFIG --chat sums.jsonl --out run");
  command->callback(
      [flags, &invocation] { invocation.command = [flags] { return Tasks(*flags); }; });
}

}  // namespace k3::cli
