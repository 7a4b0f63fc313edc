#pragma once
// --kinds, which `k3 tasks` and `k3 eval` share.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/chat_tasks.h"

namespace k3::cli {

/// `names` outlives the command.
CLI::Option* AddTaskKindsOption(CLI::App& command, std::vector<std::string>* names);

/// Fails with the kinds there are when a name is none of them.
Result<std::vector<TaskKind>> ParseTaskKinds(const std::vector<std::string>& names);

}  // namespace k3::cli
