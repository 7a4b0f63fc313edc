// k3: the command line. Parses, runs one command, and turns every failure into one line on standard
// error and an exit code (commands.h).

#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "commands.h"
#include "config/json.h"
#include "help_formatter.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr const char* kDescription =
    "k3 runs models of the Kimi K3 architecture on CPUs, straight from their safetensors shards.";

constexpr const char* kFooter =
    "A model is a directory with config.json, safetensors shards (with their index if there are\n"
    "several), and for text tiktoken.model and tokenizer_config.json. Weights are mapped, not\n"
    "copied: they may be larger than memory.\n"
    "\n"
    "Examples:\n"
    "  k3 chat models/nano                         talk with a model\n"
    "  k3 run models/nano \"In the beginning\"       continue a text\n"
    "  k3 inspect models/nano                      what a checkpoint holds and needs\n"
    "  k3 eval models/nano --tasks                 how many tasks it answers right\n"
    "\n"
    "`k3 COMMAND --help` tells about one command.\n"
    "Environment: K3_TARGET=scalar|avx2|avx512 forces a SIMD target (results do not change).\n"
    "Exit codes: 0 done, 1 failed, 2 not parsed, 130 interrupted.";

int Report(const Status& status) {
  // A reader that has seen enough is no failure.
  if (status.code() == StatusCode::kCancelled) return kExitOk;
  PrintNotice(status.ToString());
  return kExitFailure;
}

int PrintText(const std::string& text) {
  const Status written = WriteOutput(text);
  return written.ok() ? kExitOk : Report(written);
}

/// What to print and return for what CLI11 throws: help and version are of that kind too.
int ReportParseError(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
      const Result<std::string> version = VersionText();
      return version.ok() ? PrintText(*version) : Report(version.status());
    }
    return PrintText(app.help());
  }
  const CLI::App* command = &app;
  for (const CLI::App* used : app.get_subcommands()) command = used;
  std::string problem = error.what();
  // A misspelt command is reported as a missing one.
  if (command == &app && app.remaining_size() > 0) {
    problem = fmt::format("there is no command {}", QuoteForMessage(app.remaining()[0]));
  }
  PrintNotice(fmt::format("Usage: {}\nRun `{} --help` to see what is possible.", problem,
                          command == &app ? "k3" : "k3 " + command->get_name()));
  return kExitUsage;
}

int Main(int argc, char** argv) {
  PrepareProcess();
  CLI::App app(kDescription, "k3");
  // Shared because CLI11 hands it on to the subcommands.
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Prints this and ends.");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "", "Prints version, commit and SIMD targets, and ends.");
  Invocation invocation;
  AddRunCommand(app, invocation);
  AddChatCommand(app, invocation);
  AddServeCommand(app, invocation);
  AddCacheCommand(app, invocation);
  AddInspectCommand(app, invocation);
  AddEvalCommand(app, invocation);
  AddLogitsCommand(app, invocation);
  AddTokenizeCommand(app, invocation);
  AddTokenizerTrainCommand(app, invocation);
  AddRenderCommand(app, invocation);
  AddParseCommand(app, invocation);
  AddInitCommand(app, invocation);
  AddExportGgufCommand(app, invocation);
  AddBenchCommand(app, invocation);
  AddTrainCommand(app, invocation);
  AddTasksCommand(app, invocation);
  AddBalanceSimCommand(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error);
  }
  const Result<int> exit_code = invocation.command();
  return exit_code.ok() ? *exit_code : Report(exit_code.status());
}

}  // namespace
}  // namespace k3::cli

int main(int argc, char** argv) {
  // A standard stream that is closed would be the next file that is opened.
  for (int fd = 0; fd <= 2; ++fd) {
    // Not to be written to, so that lost output is an error.
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) return k3::cli::kExitFailure;
  }
  try {
    return k3::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    k3::cli::PrintNotice(
        "ResourceExhausted: out of memory; take a smaller batch, chunk, context or model, or a "
        "machine with more");
  } catch (const std::exception& error) {
    k3::cli::PrintNotice(std::string("Internal: ") + error.what());
  }
  return k3::cli::kExitFailure;
}
