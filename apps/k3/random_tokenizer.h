#pragma once
// WriteRandomTokenizer: a tokenizer for a checkpoint of random numbers, so that every command works
// on it and every id prints: the 256 bytes, then made-up words ("aa", "ab", ...), then control
// tokens in the order of the release, beginning at the lowest id that the configuration names.
//
// Writes tiktoken.model and tokenizer_config.json. Failures: InvalidArgument when the vocabulary is
// too small for the 256 bytes, else the file system's.

#include <string>

#include "base/status.h"
#include "config/model_config.h"
#include "sys/file.h"

namespace k3::cli {

Status WriteRandomTokenizer(FileSystem& files, const std::string& dir, const ModelConfig& config);

}  // namespace k3::cli
