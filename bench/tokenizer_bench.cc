// Google Benchmark of the tokenizer, one thread: how long it takes to load, and how many bytes of a
// text it encodes in a second.
//
//   cmake --preset release -DK3_BUILD_BENCH=ON && ninja -C build/release k3_tokenizer_bench
//   build/release/bench/k3_tokenizer_bench models/nano corpus/kjv.txt corpus/jargon-file.txt
//
// The first argument is a directory with a tokenizer, the others are texts in UTF-8.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace k3 {
namespace {

/// The contents, or nothing after a message.
std::optional<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fmt::print(stderr, "{}: cannot be opened\n", path);
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The number of lines, which is that of the ranks, and room for the release's control tokens.
int64_t VocabSize(const std::string& model) {
  constexpr int64_t kControlTokens = 96;
  return std::count(model.begin(), model.end(), '\n') + kControlTokens;
}

void Load(benchmark::State& state, const TokenizerSource& source) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::Create(source));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(source.model.size()));
}

void Encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  size_t ids = 0;
  for (auto _ : state) {
    const Result<std::vector<int32_t>> encoded = tokenizer.Encode(text);
    if (!encoded.ok()) return state.SkipWithError(encoded.status().ToString().c_str());
    ids = encoded->size();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes_per_id"] =
      static_cast<double>(text.size()) / static_cast<double>(std::max<size_t>(ids, 1));
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 2) {
    fmt::print(stderr, "Usage: k3_tokenizer_bench DIR TEXT...\n");
    return 2;
  }
  const std::string dir = argv[1];
  const std::optional<std::string> model = ReadAll(dir + "/tiktoken.model");
  const std::optional<std::string> config = ReadAll(dir + "/tokenizer_config.json");
  if (!model || !config) return 1;
  const TokenizerSource source{.model = *model, .config = *config, .vocab_size = VocabSize(*model)};
  const Result<Tokenizer> tokenizer = Tokenizer::Create(source);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}: {}\n", dir, tokenizer.status().ToString());
    return 1;
  }
  benchmark::RegisterBenchmark("load", [&](benchmark::State& state) {
    Load(state, source);
  })->Unit(benchmark::kMillisecond);
  std::map<std::string, std::string> texts;  // by path; entries stay where they are
  for (int i = 2; i < argc; ++i) {
    std::optional<std::string> text = ReadAll(argv[i]);
    if (!text) return 1;
    texts.insert_or_assign(argv[i], std::move(*text));
  }
  for (const auto& [path, text] : texts) {
    benchmark::RegisterBenchmark(("encode/" + path).c_str(), [&tokenizer, &contents = text](
                                                                 benchmark::State& state) {
      Encode(state, *tokenizer, contents);
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace k3

int main(int argc, char** argv) { return k3::Main(argc, argv); }
