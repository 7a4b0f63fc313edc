#pragma once
// Numbers on the command line. CLI11 alone cuts what does not fit to the nearest number that does,
// reads a leading 0 as octal and lets NaN through every range; with these an option takes what it
// can hold, written in decimal, and anything else is a usage error that says what was expected.
//
//   command.add_option("--seed", seed, "...")->transform(WholeNumber(UINT64_MAX));
//
// To be given to transform(), not check(): leading zeros are taken off before CLI11 converts. The
// validators own what they need. One thread.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace k3::cli {

/// What a fraction must be, and how a message says it.
struct NumberRange {
  bool (*holds)(float value);
  const char* expected;
};

/// A whole number from 0 to `most`.
CLI::Validator WholeNumber(uint64_t most);

/// A fraction that `range` holds; NaN goes to it as well.
CLI::Validator Number(NumberRange range);

/// All of `text` as a decimal number; nothing when it is none or does not fit.
std::optional<uint64_t> ParseWholeNumber(std::string_view text);
std::optional<float> ParseNumber(std::string_view text);

}  // namespace k3::cli
