#include "task_kinds_option.h"

#include <fmt/format.h>

namespace k3::cli {

void AddTaskKindsOption(CLI::App& command, std::vector<std::string>* names) {
  command
      .add_option("--kinds", *names,
                  "Some of sum, difference, copy, reverse, sort, look-up, tool-call; else all.")
      ->type_name("NAME");
}

Result<std::vector<TaskKind>> ParseTaskKinds(const std::vector<std::string>& names) {
  std::vector<TaskKind> kinds;
  for (const std::string& name : names) {
    const std::optional<TaskKind> kind = ParseTaskKind(name);
    if (!kind.has_value()) {
      std::string known;
      for (TaskKind one : kTaskKinds) known += fmt::format(" {}", TaskKindName(one));
      return InvalidArgument(
          fmt::format("--kinds: expected some of{}, found {}", known, QuoteForMessage(name)));
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

}  // namespace k3::cli
