// k3 tasks: synthetic conversations with one right answer, a chat request a line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "config/json.h"
#include "data/chat_tasks.h"
#include "number_check.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct TasksFlags {
  uint64_t seed = 1;
  int64_t count = 10;
  int64_t first = 0;
  bool held_out = false;
  std::vector<std::string> kinds;
};

Result<int> Tasks(const TasksFlags& flags) {
  std::vector<TaskKind> kinds;
  for (const std::string& name : flags.kinds) {
    const std::optional<TaskKind> kind = ParseTaskKind(name);
    if (!kind.has_value()) {
      std::string known;
      for (TaskKind one : kTaskKinds) known += fmt::format(" {}", TaskKindName(one));
      return InvalidArgument(
          fmt::format("--kinds: expected some of{}, found {}", known, QuoteForMessage(name)));
    }
    kinds.push_back(*kind);
  }
  if (kinds.empty()) kinds.assign(std::begin(kTaskKinds), std::end(kTaskKinds));
  const TaskGenerator generator(flags.seed,
                                flags.held_out ? TaskSplit::kHeldOut : TaskSplit::kTraining, kinds);
  for (int64_t n = 0; n < flags.count; ++n) {
    K3_RETURN_IF_ERROR(WriteOutput(TaskLine(generator.Make(flags.first + n))));
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
  command
      ->add_option("--kinds", flags->kinds,
                   "Some of sum, difference, copy, reverse, sort, look-up, tool-call; else all.")
      ->type_name("NAME");
  command->footer(
      "Each line has the members `task`, its kind, and `answer`, the content of the last message\n"
      "if it is right, beside the request.\n\n"
      "Example:\n"
      "  k3 tasks --count 20000 --kinds sum difference > sums.jsonl\n"
      "  k3 train CONFIG --chat sums.jsonl --out run");
  command->callback(
      [flags, &invocation] { invocation.command = [flags] { return Tasks(*flags); }; });
}

}  // namespace k3::cli
