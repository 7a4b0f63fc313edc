#pragma once
// What the commands that load a model have in common: the thread count, the SIMD target that the
// environment may force, and token ids given on the command line.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace CLI {
class App;
}

namespace k3::cli {

/// Declares the first positional argument, the model's directory.
void AddModelArgument(CLI::App& command, std::string* dir, const std::string& description);

/// Declares --threads.
void AddThreadsOption(CLI::App& command, int* threads);

/// The target that K3_TARGET asks for, if it is set; says so on standard error. InvalidArgument for
/// an unknown name or one this processor cannot run.
Result<std::optional<SimdTarget>> TargetFromEnvironment();

/// Engine options from --threads and K3_TARGET.
Result<EngineOptions> MakeEngineOptions(int threads, bool needs_tokenizer);

/// Ids separated by commas or white space, as in "5,17,300". InvalidArgument for anything else.
Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view where);

/// A tokenizer and a configuration without their weights.
Result<Tokenizer> OpenTokenizer(const std::string& dir);

/// A count of tokens, or "all".
Result<int64_t> ParsePrefillChunk(const std::string& text);

}  // namespace k3::cli
