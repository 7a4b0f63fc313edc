#include "byte_count.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>

#include "number_check.h"

namespace k3::cli {
namespace {

std::optional<int64_t> ParseByteCount(std::string text) {
  constexpr std::string_view kUnits = "KMGT";
  int shift = 0;
  if (text.ends_with("iB")) {
    text.resize(text.size() - 2);
    // "5iB" is no size.
    if (text.empty() || kUnits.find(text.back()) == std::string_view::npos) return {};
  }
  if (!text.empty()) {
    if (const size_t unit = kUnits.find(text.back()); unit != std::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      text.pop_back();
    }
  }
  const std::optional<uint64_t> count = ParseWholeNumber(text);
  const uint64_t most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) >> shift;
  if (!count.has_value() || *count > most) return {};
  return static_cast<int64_t>(*count << shift);
}

}  // namespace

CLI::Option* AddBytesOption(CLI::App& command, const std::string& name, int64_t* value,
                            const std::string& description) {
  return command.add_option(name, *value, description)
      ->transform(CLI::Validator(
          [](std::string& text) {
            const std::optional<int64_t> bytes = ParseByteCount(text);
            if (!bytes.has_value()) {
              return "expected a number of bytes such as 1048576, 512M or 8GiB, found " + text;
            }
            text = std::to_string(*bytes);
            return std::string();
          },
          ""))
      ->type_name("BYTES");
}

}  // namespace k3::cli
