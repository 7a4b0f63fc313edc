#include "engine_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/limits.h"
#include "config/json.h"
#include "sys/file.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr const char* kTargetVariable = "K3_TARGET";

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void AddModelArgument(CLI::App& command, std::string* dir, const std::string& description) {
  // An empty name would be joined to "/config.json", the root of the file system.
  const CLI::Validator not_empty(
      [](const std::string& text) {
        return text.empty() ? std::string("expected a directory, found an empty name") : "";
      },
      "");
  command.add_option("DIR", *dir, description)->required()->check(not_empty);
}

void AddThreadsOption(CLI::App& command, int* threads) {
  command
      .add_option("--threads", *threads,
                  "Threads to compute with; 0 takes every core this process may use. Results do "
                  "not depend on it.")
      ->capture_default_str()
      ->check(CLI::Range(0, static_cast<int>(limits::kThreadsCountMax)).description(""))
      ->type_name("N");
}

Result<std::optional<SimdTarget>> TargetFromEnvironment() {
  const char* name = std::getenv(kTargetVariable);
  if (name == nullptr) return std::optional<SimdTarget>();
  const std::optional<SimdTarget> target = ParseSimdTarget(name);
  if (!target.has_value()) {
    return InvalidArgument(fmt::format("{}: expected scalar, avx2 or avx512, found {}",
                                       kTargetVariable, QuoteForMessage(name)));
  }
  if (!IsSupported(*target)) {
    return InvalidArgument(fmt::format("{}: this processor has no {}; the widest it has is {}",
                                       kTargetVariable, name, SimdTargetName(BestSimdTarget())));
  }
  PrintNotice(fmt::format("{} forces the SIMD target {}", kTargetVariable, name));
  return target;
}

Result<EngineOptions> MakeEngineOptions(int threads, bool needs_tokenizer) {
  EngineOptions options;
  options.threads = threads;
  options.needs_tokenizer = needs_tokenizer;
  K3_TRY(options.target, TargetFromEnvironment());
  return options;
}

Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view where) {
  std::vector<int32_t> ids;
  const auto skip_space = [&](size_t at) {
    while (at < text.size() && IsSpace(text[at])) ++at;
    return at;
  };
  size_t at = skip_space(0);
  while (at < text.size()) {
    size_t end = at;
    while (end < text.size() && !IsSpace(text[end]) && text[end] != ',') ++end;
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0) {
      return InvalidArgument(fmt::format("{}: entry {}: expected a token id from 0, found {}",
                                         where, ids.size() + 1, QuoteForMessage(word)));
    }
    ids.push_back(id);
    at = skip_space(end);
    if (at == text.size() || text[at] != ',') continue;
    // A comma promises another id: one that was dropped must not go unnoticed.
    const size_t after = skip_space(at + 1);
    if (after == text.size()) {
      return InvalidArgument(
          fmt::format("{}: expected a token id after the last comma, found none", where));
    }
    at = after;
  }
  return ids;
}

Result<Tokenizer> OpenTokenizer(const std::string& dir) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string path = JoinPath(dir, kConfigFileName);
  K3_TRY(const std::string json, ReadWholeFile(*files, path, limits::kConfigFileBytesMax));
  K3_TRY(const ModelConfig config, ParseModelConfig(json, path));
  return LoadTokenizer(dir, config.vocab_size);
}

Result<int64_t> ParsePrefillChunk(const std::string& text) {
  if (text == "all") return std::numeric_limits<int64_t>::max();
  int64_t chunk = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), chunk);
  if (error != std::errc() || stop != text.data() + text.size() || chunk < 1) {
    return InvalidArgument(fmt::format("--prefill-chunk: expected a number from 1 or all, found {}",
                                       QuoteForMessage(text)));
  }
  return chunk;
}

}  // namespace k3::cli
