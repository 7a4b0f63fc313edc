#pragma once
// The subcommands of k3. Each Add function declares one on the application and, when the user asks
// for it, leaves what to do in `invocation`; main() runs that once parsing has succeeded. Options
// live as long as the application. One thread.

#include <functional>
#include <string>

#include "base/status.h"
#include "terminal/exit_codes.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct Invocation {
  /// Gives the exit code; a failure is printed by main() and exits with kExitFailure.
  std::function<Result<int>()> command;
};

void AddRunCommand(CLI::App& app, Invocation& invocation);
void AddChatCommand(CLI::App& app, Invocation& invocation);
void AddServeCommand(CLI::App& app, Invocation& invocation);
void AddCacheCommand(CLI::App& app, Invocation& invocation);
void AddInspectCommand(CLI::App& app, Invocation& invocation);
void AddLogitsCommand(CLI::App& app, Invocation& invocation);
void AddEvalCommand(CLI::App& app, Invocation& invocation);
void AddTokenizeCommand(CLI::App& app, Invocation& invocation);
void AddTokenizerTrainCommand(CLI::App& app, Invocation& invocation);
void AddRenderCommand(CLI::App& app, Invocation& invocation);
void AddParseCommand(CLI::App& app, Invocation& invocation);
void AddInitCommand(CLI::App& app, Invocation& invocation);
void AddExportGgufCommand(CLI::App& app, Invocation& invocation);
void AddBenchCommand(CLI::App& app, Invocation& invocation);
void AddTrainCommand(CLI::App& app, Invocation& invocation);
void AddTasksCommand(CLI::App& app, Invocation& invocation);
void AddBalanceSimCommand(CLI::App& app, Invocation& invocation);

/// What `k3 --version` prints. InvalidArgument when K3_TARGET asks for what there is not.
Result<std::string> VersionText();

}  // namespace k3::cli
