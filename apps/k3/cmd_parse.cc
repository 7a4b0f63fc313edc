// k3 parse: the token ids of an answer as reasoning, content and tool calls.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/limits.h"
#include "chat_files.h"
#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "sys/file.h"
#include "terminal/terminal.h"
#include "text/xtml_parser.h"

namespace k3::cli {
namespace {

// Output goes out in pieces of about this size.
constexpr size_t kWriteBytes = 64 << 10;

struct ParseOptions {
  std::string dir;
  std::string ids;
  std::string start = "think";
  std::string tools;
  bool stream = false;
};

Result<std::vector<int32_t>> ReadIds(FileSystem& files, const ParseOptions& options,
                                     const Tokenizer& tokenizer) {
  std::string text = options.ids;
  std::string where = "IDS";
  if (text == "-") {
    where = "standard input";
    K3_TRY(text, ReadStandardInput(limits::kPromptBytesMax));
  } else if (text.starts_with('@')) {
    where = text.substr(1);
    K3_TRY(text, ReadWholeFile(files, where, limits::kPromptBytesMax));
  }
  K3_TRY(std::vector<int32_t> ids, ParseTokenIds(text, where));
  if (ids.empty()) {
    return InvalidArgument(fmt::format("{}: expected at least one token id, found none", where));
  }
  // The parser would pass over them, which is right for a model and wrong for a mistyped number.
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < tokenizer.vocab_size()) continue;
    return InvalidArgument(fmt::format("{}: entry {}: expected a token id in [0, {}), found {}",
                                       where, i + 1, tokenizer.vocab_size(), ids[i]));
  }
  return ids;
}

JsonValue EventLine(const XtmlEvent& event) {
  JsonValue::Members line;
  const auto add_text = [&](std::string_view name) {
    line.emplace_back(name, JsonValue(event.text));
  };
  switch (event.kind) {
    case XtmlEvent::Kind::kReasoning:
      add_text("reasoning_content");
      return JsonValue(std::move(line));
    case XtmlEvent::Kind::kContent:
      add_text("content");
      return JsonValue(std::move(line));
    default:
      line.emplace_back("tool_call", JsonValue(int64_t{event.call}));
  }
  if (event.kind == XtmlEvent::Kind::kToolCallStart) add_text("name");
  if (event.kind == XtmlEvent::Kind::kToolCallArguments) add_text("arguments");
  if (event.kind == XtmlEvent::Kind::kToolCallEnd) line.emplace_back("end", JsonValue(true));
  return JsonValue(std::move(line));
}

Status WriteEvents(XtmlParser& parser, const std::vector<int32_t>& ids) {
  std::string out;
  std::vector<XtmlEvent> events;
  const auto take_events = [&](size_t bytes_max) {
    for (const XtmlEvent& event : events) out += DumpJson(EventLine(event)) + "\n";
    events.clear();
    if (out.size() <= bytes_max) return OkStatus();
    const Status written = WriteOutput(out);
    out.clear();
    return written;
  };
  for (const int32_t id : ids) {
    parser.Feed(id, events);
    K3_RETURN_IF_ERROR(take_events(kWriteBytes));
  }
  parser.Finish(events);
  return take_events(0);
}

/// The calls that are complete, or the others. A call keeps its number among all of them.
JsonValue::Items ListCalls(const ParsedAnswer& answer, bool complete) {
  JsonValue::Items list;
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    const ParsedToolCall& call = answer.tool_calls[i];
    if (call.complete != complete) continue;
    JsonValue::Members function;
    function.emplace_back("name", JsonValue(call.name));
    function.emplace_back("arguments", JsonValue(call.arguments));
    JsonValue::Members item;
    item.emplace_back("id", JsonValue(fmt::format("call_{}", i + 1)));
    item.emplace_back("type", JsonValue(std::string("function")));
    item.emplace_back("function", JsonValue(std::move(function)));
    list.emplace_back(std::move(item));
  }
  return list;
}

Status WriteAnswer(XtmlParser& parser, const std::vector<int32_t>& ids) {
  const ParsedAnswer answer = ReadAnswer(parser, ids);
  JsonValue::Members out;
  if (!answer.reasoning.empty()) {
    out.emplace_back("reasoning_content", JsonValue(answer.reasoning));
  }
  out.emplace_back("content", JsonValue(answer.content));
  for (const bool complete : {true, false}) {
    JsonValue::Items calls = ListCalls(answer, complete);
    if (calls.empty()) continue;
    out.emplace_back(complete ? "tool_calls" : "incomplete_tool_calls",
                     JsonValue(std::move(calls)));
  }
  out.emplace_back("ended", JsonValue(parser.ended()));
  return WriteOutput(DumpJson(JsonValue(std::move(out))) + "\n");
}

Result<int> Parse(const ParseOptions& options) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const Tokenizer tokenizer, OpenTokenizer(options.dir));
  const Result<XtmlMarkers> markers = XtmlMarkers::Find(tokenizer);
  if (!markers.ok()) return markers.status().WithContext(options.dir);
  K3_TRY(const std::vector<int32_t> ids, ReadIds(*files, options, tokenizer));
  JsonValue tools;
  if (!options.tools.empty()) {
    K3_TRY(tools, LoadTools(options.tools));
  }
  const XtmlChannel start = options.start == "think" ? XtmlChannel::kThink : XtmlChannel::kResponse;
  XtmlParser parser(tokenizer, *markers, {.start = start, .tools = &tools});
  K3_RETURN_IF_ERROR(options.stream ? WriteEvents(parser, ids) : WriteAnswer(parser, ids));
  return kExitOk;
}

}  // namespace

void AddParseCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<ParseOptions>();
  CLI::App* command = app.add_subcommand(
      "parse", "Read an answer's token ids as reasoning, content and tool calls.");
  AddModelArgument(*command, &options->dir, "The model's directory; only its tokenizer is read.");
  command
      ->add_option("IDS", options->ids,
                   "The token ids that the model generated, separated by commas, or @FILE with "
                   "them; - reads standard input. A whole assistant's message is taken, too.")
      ->required();
  command
      ->add_option("--start", options->start,
                   "The channel that the prompt opened: think, or response where thinking is off.")
      ->capture_default_str()
      ->check(CLI::IsMember({"think", "response"}).description(""))
      ->type_name("CHANNEL");
  command
      ->add_option("--tools", options->tools,
                   "A file with the request's tools, a JSON array: their schemas tell which "
                   "arguments are strings where the answer does not say.")
      ->type_name("FILE");
  command->add_flag("--stream", options->stream,
                    "Prints what each id adds, one JSON object a line, in place of the whole.");
  command->footer(
      "Tool calls that were cut off, or cannot be understood, are listed apart, as\n"
      "incomplete_tool_calls. Markup that a model got wrong is no error.\n\n"
      "Examples:\n"
      "  k3 parse models/kjv 72,105,1956,577,112,284,310,1957 --start response\n"
      "  k3 run models/kjv \"In the beginning\" --ids | k3 parse models/kjv - --stream");
  command->callback(
      [options, &invocation] { invocation.command = [options] { return Parse(*options); }; });
}

}  // namespace k3::cli
