#include "task_kinds_option.h"

#include <fmt/format.h>

namespace k3::cli {

CLI::Option* AddTaskKindsOption(CLI::App& command, std::vector<std::string>* names) {
  return command
      .add_option("--kinds", *names, fmt::format("Some of {}; else all.", TaskKindNames()))
      ->type_name("NAME");
}

Result<std::vector<TaskKind>> ParseTaskKinds(const std::vector<std::string>& names) {
  std::vector<TaskKind> kinds;
  for (const std::string& name : names) {
    const std::optional<TaskKind> kind = ParseTaskKind(name);
    if (!kind.has_value()) {
      return InvalidArgument(fmt::format("--kinds: expected some of {}, found {}", TaskKindNames(),
                                         QuoteForMessage(name)));
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

}  // namespace k3::cli
