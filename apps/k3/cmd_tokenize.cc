// k3 tokenize: text to token ids and back.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

struct TokenizeOptions {
  std::string dir;
  std::string text;
  std::string file;
  std::string decode;
  bool has_text = false;
  bool has_decode = false;
  bool pieces = false;
  bool json = false;
};

/// A token's bytes as they print: what is not UTF-8 shows as U+FFFD.
std::string JsonText(std::string_view bytes) {
  return nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string FormatIds(const TokenizeOptions& options, const Tokenizer& tokenizer,
                      const std::vector<int32_t>& ids) {
  std::string out;
  if (options.json) {
    std::string pieces;
    for (const int32_t id : ids) {
      pieces += fmt::format("{}{}", pieces.empty() ? "" : ", ", JsonText(tokenizer.TokenBytes(id)));
    }
    return fmt::format("{{\"ids\": [{}], \"pieces\": [{}]}}\n", fmt::join(ids, ", "), pieces);
  }
  if (!options.pieces) return fmt::format("{}\n", fmt::join(ids, ","));
  for (const int32_t id : ids) {
    out += fmt::format("{}\t{}\n", id, JsonText(tokenizer.TokenBytes(id)));
  }
  return out;
}

Result<int> Tokenize(const TokenizeOptions& options) {
  if (!options.has_text && options.file.empty() && !options.has_decode) {
    return InvalidArgument("expected a text, --file or --decode, found none of them");
  }
  K3_TRY(const Tokenizer tokenizer, OpenTokenizer(options.dir));
  if (options.has_decode) {
    K3_TRY(const std::vector<int32_t> ids, ParseTokenIds(options.decode, "--decode"));
    K3_TRY(const std::string text, tokenizer.Decode(ids));
    K3_RETURN_IF_ERROR(WriteOutput(options.json ? JsonText(text) + "\n" : text));
    return kExitOk;
  }
  K3_TRY(const std::string text, ReadTextArgument(options.text, options.file));
  const Result<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return ids.status().WithContext(options.file.empty() ? "TEXT" : options.file);
  K3_RETURN_IF_ERROR(WriteOutput(FormatIds(options, tokenizer, *ids)));
  return kExitOk;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, or ids into text.");
  AddModelArgument(*command, &options->dir, "The model's directory; only its tokenizer is read.");
  CLI::Option* text =
      command->add_option("TEXT", options->text,
                          "The text; - reads standard input; after -- it may start with a dash.");
  CLI::Option* file = command->add_option("--file", options->file, "Reads the text from this file.")
                          ->type_name("FILE")
                          ->excludes(text);
  CLI::Option* decode =
      command
          ->add_option("--decode", options->decode,
                       "Prints the bytes of these ids, separated by commas, and nothing more.")
          ->type_name("IDS")
          ->excludes(text)
          ->excludes(file);
  command->add_flag("--pieces", options->pieces, "Prints an id and its piece on each line.");
  command->add_flag("--json", options->json, "Prints JSON.");
  command->footer(
      "Names of control tokens, such as <|open|>, are ordinary text here.\n\n"
      "Examples:\n"
      "  k3 tokenize models/kjv \"In the beginning\" --pieces\n"
      "  k3 tokenize models/kjv --decode 1147,258,1805,1243");
  command->callback([options, text, decode, &invocation] {
    options->has_text = text->count() > 0;
    options->has_decode = decode->count() > 0;
    invocation.command = [options] { return Tokenize(*options); };
  });
}

}  // namespace k3::cli
