// k3 render: a chat request as the prompt that the model sees.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "chat_files.h"
#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "terminal/terminal.h"
#include "text/xtml_renderer.h"

namespace k3::cli {
namespace {

struct RenderOptions {
  std::string dir;
  std::string request;
  bool segments = false;
  bool ids = false;
};

std::string FormatSegments(const std::vector<XtmlSegment>& segments) {
  std::string out;
  for (const XtmlSegment& segment : segments) {
    JsonValue::Members members;
    members.emplace_back(segment.is_marker ? "marker" : "text", JsonValue(segment.text));
    out += fmt::format("{} {}", out.empty() ? "" : ",\n", DumpJson(JsonValue(std::move(members))));
  }
  return fmt::format("[{}]\n", out);
}

Result<int> Render(const RenderOptions& options) {
  const std::string where = options.request == "-" ? "standard input" : options.request;
  K3_TRY(const ChatRequest request, LoadChatRequest(options.request));
  const Result<std::vector<XtmlSegment>> segments = RenderXtml(request);
  if (!segments.ok()) return segments.status().WithContext(where);
  std::string out;
  if (options.ids) {
    K3_TRY(const Tokenizer tokenizer, OpenTokenizer(options.dir));
    K3_TRY(const std::vector<int32_t> ids, EncodeXtml(tokenizer, *segments));
    out = fmt::format("{}\n", fmt::join(ids, ","));
  } else {
    out = options.segments ? FormatSegments(*segments) : JoinXtml(*segments);
  }
  K3_RETURN_IF_ERROR(WriteOutput(out));
  return kExitOk;
}

}  // namespace

void AddRenderCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<RenderOptions>();
  CLI::App* command = app.add_subcommand("render", "Show the prompt that a chat request becomes.");
  AddModelArgument(*command, &options->dir,
                   "The model's directory; only its tokenizer is read, and only for --ids.");
  command
      ->add_option("REQUEST", options->request,
                   "A file with an OpenAI-style request: messages, tools, tool_choice, "
                   "response_format, reasoning_effort, chat_template_kwargs; - reads standard "
                   "input.")
      ->required();
  CLI::Option* segments = command->add_flag(
      "--segments", options->segments,
      "Prints a JSON array of markers and texts, each of which is tokenised on its own.");
  command->add_flag("--ids", options->ids, "Prints token ids, separated by commas.")
      ->excludes(segments);
  command->footer(
      "Without a flag the segments are printed joined, with nothing added. Those bytes are for\n"
      "reading: tokenised as one text they would give other ids.\n\n"
      "Examples:\n"
      "  k3 render models/kjv request.json\n"
      "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | k3 render models/kjv "
      "- "
      "--ids");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Render(*options); }; });
}

}  // namespace k3::cli
