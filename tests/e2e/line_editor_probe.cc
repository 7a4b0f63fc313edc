// line_editor_probe OUTPUT [HISTORY]: reads lines as a conversation does and appends one JSON
// object to OUTPUT for each, so that line_editor_test.py sees what the editor gave to the last
// byte. Some lines are commands: /work waits for Ctrl-C, /stuck waits and does not stop for it,
// /wait is busy for a moment, /wait2 for longer, /discard forgets what was typed ahead, /facts
// tells what is known of the terminal, /quit ends.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "terminal/line_editor.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

using nlohmann::json;

constexpr auto kTick = std::chrono::milliseconds(5);

void Say(std::string_view text) {
  // The test sees what is missing.
  (void)WriteOutput(text);
}

void Work(bool stops) {
  const InterruptScope scope;
  Say("working\n");
  bool told = false;
  while (!WasInterrupted() || !stops) {
    std::this_thread::sleep_for(kTick);
    if (WasInterrupted() && !told) Say("interrupted\n");
    told = WasInterrupted();
  }
  Say("stopped\n");
}

json Facts() {
  const TerminalSize size = GetTerminalSize();
  return {{"kind", "facts"},
          {"columns", size.columns},
          {"rows", size.rows},
          {"styling", StylingAllowed()}};
}

json Describe(const LineEditor::Line& line) {
  switch (line.kind) {
    case LineEditor::Line::Kind::kText:
      return {{"kind", "text"}, {"text", line.text}};
    case LineEditor::Line::Kind::kInterrupted:
      return {{"kind", "interrupted"}};
    case LineEditor::Line::Kind::kEnd:
      return {{"kind", "end"}};
  }
  return {};
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  PrepareProcess();
  std::ofstream output(argv[1], std::ios::app);
  LineEditor::Options options;
  options.commands = {"/help", "/history", "/quit"};
  if (argc > 2) options.history_file = argv[2];
  Result<std::unique_ptr<LineEditor>> opened = LineEditor::Open(options);
  if (!opened.ok()) {
    PrintNotice(opened.status().ToString());
    return 1;
  }
  LineEditor& editor = **opened;
  const std::string prompt = StylingAllowed() ? "\033[1m>\033[0m " : "> ";
  while (true) {
    const Result<LineEditor::Line> line = editor.Read(prompt);
    if (!line.ok()) {
      PrintNotice(line.status().ToString());
      return 1;
    }
    output << Describe(*line).dump() << std::endl;  // style-ok(endl): the test waits for the line
    if (line->kind == LineEditor::Line::Kind::kEnd || line->text == "/quit") return 0;
    editor.AddHistory(line->text);
    if (line->text == "/work" || line->text == "/stuck") Work(line->text == "/work");
    const bool discards = line->text == "/discard";
    const bool waits_long = line->text == "/wait2";
    if (line->text == "/wait" || waits_long || discards) {
      Say("busy\n");
      std::this_thread::sleep_for((waits_long ? 2000 : 40) * kTick);
    }
    if (discards) editor.DiscardInput();
    if (line->text == "/facts") output << Facts().dump() << std::endl;  // style-ok(endl): as above
  }
}

}  // namespace
}  // namespace k3::cli

int main(int argc, char** argv) {
  try {
    return k3::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    k3::cli::PrintNotice(error.what());
    return 1;
  }
}
