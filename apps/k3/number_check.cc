#include "number_check.h"

#include <fmt/format.h>

#include <charconv>

#include "config/json.h"

namespace k3::cli {
namespace {

template <typename T>
std::optional<T> ParseAll(std::string_view text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<uint64_t> ParseWholeNumber(std::string_view text) { return ParseAll<uint64_t>(text); }

std::optional<float> ParseNumber(std::string_view text) { return ParseAll<float>(text); }

CLI::Validator WholeNumber(uint64_t most) {
  const auto check = [most](std::string& text) -> std::string {
    const std::optional<uint64_t> value = ParseWholeNumber(text);
    if (!value.has_value() || *value > most) {
      return fmt::format("expected a whole number from 0 to {}, found {}", most,
                         QuoteForMessage(text));
    }
    text = fmt::format("{}", *value);
    return "";
  };
  return CLI::Validator(check, "");
}

CLI::Validator Number(NumberRange range) {
  const auto check = [range](std::string& text) -> std::string {
    const std::optional<float> value = ParseNumber(text);
    if (value.has_value() && range.holds(*value)) return "";
    return fmt::format("expected {}, found {}", range.expected, QuoteForMessage(text));
  };
  return CLI::Validator(check, "");
}

}  // namespace k3::cli
