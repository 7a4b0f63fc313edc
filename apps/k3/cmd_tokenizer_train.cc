// k3 tokenizer-train: a byte-level tokenizer from texts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "commands.h"
#include "config/json.h"
#include "data/bpe_trainer.h"
#include "number_check.h"
#include "sys/file.h"
#include "terminal/terminal.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace k3::cli {
namespace {

constexpr std::string_view kModelName = "tiktoken.model";
constexpr std::string_view kConfigName = "tokenizer_config.json";

struct TokenizerTrainOptions {
  std::vector<std::string> text_files;
  std::string out_dir;
  std::string special_tokens = "default";
  int64_t ranks = 0;
};

/// How many ids behind the ranks are control tokens, named or reserved.
constexpr int64_t kControlIdsCount = 96;
constexpr int64_t kModelLengthMax = 1'048'576;

struct ControlToken {
  int64_t offset;  // behind the ranks
  std::string_view content;
  bool special;
};

// The names of the release, at the places that they have in models/kjv.
constexpr ControlToken kControlTokens[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|end_of_msg|>", true},
    {3, "<|open|>", false},
    {4, "<|close|>", false},
    {5, "<|sep|>", false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {kControlIdsCount - 2, "[UNK]", true},
    {kControlIdsCount - 1, "[PAD]", true},
};

std::string ConfigFile(int64_t ranks_count) {
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  for (const ControlToken& token : kControlTokens) {
    tokens[std::to_string(ranks_count + token.offset)] = {
        {"content", token.content}, {"special", token.special}, {"normalized", false},
        {"lstrip", false},          {"rstrip", false},          {"single_word", false}};
  }
  nlohmann::ordered_json json;
  json["tokenizer_class"] = "TikTokenTokenizer";
  json["bos_token"] = "[BOS]";
  json["eos_token"] = "[EOS]";
  json["unk_token"] = "[UNK]";
  json["pad_token"] = "[PAD]";
  json["added_tokens_decoder"] = tokens;
  json["model_max_length"] = kModelLengthMax;
  return json.dump(1) + "\n";
}

/// Before any work: neither file may be there yet.
Status CheckNothingIsReplaced(FileSystem& files, const std::string& dir) {
  for (const std::string_view name : {kModelName, kConfigName}) {
    const std::string path = JoinPath(dir, name);
    if (!files.Exists(path)) continue;
    return InvalidArgument(fmt::format(
        "{}: expected no tokenizer, found this file, which is not overwritten; remove it or give "
        "another directory to --out",
        path));
  }
  return OkStatus();
}

Result<std::vector<std::string>> ReadTexts(FileSystem& files,
                                           const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (const std::string& path : paths) {
    K3_TRY(std::string text, ReadWholeFile(files, path, limits::kPromptBytesMax));
    if (const int64_t invalid = FindInvalidUtf8(text); invalid >= 0) {
      return InvalidArgument(fmt::format(
          "{}: expected text in UTF-8, found other bytes at byte offset {}; convert the file or "
          "leave it out",
          path, invalid));
    }
    bytes += text.size();
    texts.push_back(std::move(text));
  }
  if (bytes == 0) {
    return InvalidArgument(fmt::format("{}: expected text to train on, found {}", paths[0],
                                       paths.size() == 1 ? "an empty file" : "only empty files"));
  }
  return texts;
}

/// Tokens of all texts, by the tokenizer that other commands will make of the files.
Result<int64_t> CountTokens(const TokenizerSource& source, const std::vector<std::string>& texts) {
  K3_TRY(const Tokenizer tokenizer, Tokenizer::Create(source));
  int64_t count = 0;
  for (const std::string& text : texts) {
    K3_TRY(const std::vector<int32_t> ids, tokenizer.Encode(text));
    count += static_cast<int64_t>(ids.size());
  }
  return count;
}

Status WriteTokenizer(const std::string& dir, const TokenizerSource& source, FileSystem& files) {
  K3_RETURN_IF_ERROR(files.MakeDirectories(dir));
  // Again, because training takes a while.
  K3_RETURN_IF_ERROR(CheckNothingIsReplaced(files, dir));
  const std::string config_path = JoinPath(dir, kConfigName);
  K3_RETURN_IF_ERROR(WriteFileAtomically(files, config_path, source.config));
  const Status status = WriteFileAtomically(files, JoinPath(dir, kModelName), source.model);
  // One file alone is no tokenizer and would be in the way of the next attempt.
  if (!status.ok() && !files.Remove(config_path).ok()) {
    return status.WithContext(fmt::format("{} was written and could not be removed", config_path));
  }
  return status;
}

Result<int> TokenizerTrain(const TokenizerTrainOptions& options) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_RETURN_IF_ERROR(CheckNothingIsReplaced(*files, options.out_dir));
  K3_TRY(const std::vector<std::string> texts, ReadTexts(*files, options.text_files));
  const int64_t start_ns = MonotonicNanoseconds();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  K3_TRY(const std::vector<std::string> tokens, TrainBpe(views, {.ranks = options.ranks}));
  const double seconds = SecondsBetween(start_ns, MonotonicNanoseconds());

  const auto ranks_count = static_cast<int64_t>(tokens.size());
  const std::string model = FormatTiktokenFile(tokens);
  const std::string config = ConfigFile(ranks_count);
  const TokenizerSource source{
      .model = model, .config = config, .vocab_size = ranks_count + kControlIdsCount};
  K3_TRY(const int64_t tokens_count, CountTokens(source, texts));
  K3_RETURN_IF_ERROR(WriteTokenizer(options.out_dir, source, *files));

  if (ranks_count < options.ranks) {
    PrintNotice(fmt::format(
        "{} ranks instead of {}: no pair of tokens stands twice in the texts any more; more text "
        "gives more ranks",
        ranks_count, options.ranks));
  }
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  K3_RETURN_IF_ERROR(WriteOutput(
      fmt::format("{}: {} ranks, vocab_size {}, {:.3f} bytes per token on {} bytes, {:.2f} s\n",
                  options.out_dir, ranks_count, source.vocab_size,
                  static_cast<double>(bytes) / static_cast<double>(tokens_count), bytes, seconds)));
  return kExitOk;
}

}  // namespace

void AddTokenizerTrainCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto options = std::make_shared<TokenizerTrainOptions>();
  CLI::App* command =
      app.add_subcommand("tokenizer-train", "Train a byte-level tokenizer on text files.");
  command
      ->add_option("FILE", options->text_files,
                   "Texts in UTF-8, at most 1 GiB each; no token reaches from one into the next.")
      ->required()
      ->type_name("FILE...");
  command
      ->add_option("--ranks", options->ranks,
                   "How many byte strings the tokenizer knows, 256 to 1000000: the single bytes "
                   "and the most frequent longer ones.")
      ->required()
      ->type_name("N")
      ->transform(WholeNumber(kBpeRanksMax))
      ->check(CLI::Range(kBpeRanksMin, kBpeRanksMax).description(""));
  command
      ->add_option("--out", options->out_dir,
                   "The directory to write, made if need be; it must hold no tokenizer.")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--special-tokens", options->special_tokens,
                   "The control tokens behind the ranks; default: the names of the release.")
      ->type_name("SET")
      ->capture_default_str()
      ->check(CLI::IsMember({"default"}).description(""));
  command->footer(
      "Writes tiktoken.model and tokenizer_config.json. The vocab_size that a model's config.json\n"
      "needs is printed: the ranks and 96 ids for control tokens.\n\n"
      "Example:\n"
      "  k3 tokenizer-train models/kjv/heldout.txt --ranks 1952 --out tokenizer");
  command->callback([options, &invocation] {
    invocation.command = [options] { return TokenizerTrain(*options); };
  });
}

}  // namespace k3::cli
