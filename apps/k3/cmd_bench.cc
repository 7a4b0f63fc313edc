// k3 bench: how fast a model runs here.

#include <CLI/CLI.hpp>

#include "commands.h"

namespace k3::cli {

void AddBenchCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("bench", "Measure how fast a model runs here.");
  command->callback([&invocation] {
    invocation.command = []() -> Result<int> { return Unimplemented("bench is not built in"); };
  });
}

}  // namespace k3::cli
