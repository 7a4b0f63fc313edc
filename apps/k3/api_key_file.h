#pragma once
// The file of API keys that `k3 serve` demands and `k3 chat --server` presents: a key a line; empty
// lines and those that begin with # do not count.

#include <string>
#include <vector>

#include "base/status.h"

namespace k3::cli {

/// At least one key. InvalidArgument when there is none or there are too many, else the file's
/// failures.
Result<std::vector<std::string>> ReadApiKeys(const std::string& path);

}  // namespace k3::cli
