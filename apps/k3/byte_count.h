#pragma once
// Sizes on the command line: a whole number of bytes, or of KiB, MiB, GiB or TiB.

#include <cstdint>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace k3::cli {

/// Declares `name`, whose value is a size such as 4096, 512M or 8GiB.
CLI::Option* AddBytesOption(CLI::App& command, const std::string& name, int64_t* value,
                            const std::string& description);

}  // namespace k3::cli
