#include "help_formatter.h"

#include <fmt/format.h>

#include <sstream>

namespace k3::cli {
namespace {

constexpr size_t kLeftColumns = 24;
constexpr size_t kColumnsMax = 80;

/// `left`, and `text` in the right column: on the same line if there is room.
std::string TwoColumns(const std::string& left, const std::string& text) {
  const std::string right = Wrap(text, kLeftColumns, kColumnsMax);
  if (left.size() + 2 > kLeftColumns) return fmt::format("{}\n{}\n", left, right);
  return fmt::format("{:<{}}{}\n", left, kLeftColumns, right.substr(kLeftColumns));
}

}  // namespace

std::string Wrap(const std::string& text, size_t indent, size_t columns) {
  std::istringstream words(text);
  std::string out;
  std::string line(indent, ' ');
  bool empty = true;
  for (std::string word; words >> word; empty = false) {
    if (!empty && line.size() + 1 + word.size() > columns) {
      out += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
  }
  return out + line;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = "  " + option->get_name(is_positional, !is_positional);
  if (!is_positional && option->get_type_size() != 0) left += " " + option->get_type_name();
  std::string text = option->get_description();
  const std::string& standard = option->get_default_str();
  if (!standard.empty()) text += fmt::format(" Default: {}.", standard);
  if (option->get_required() && !is_positional) text += " Required.";
  return TwoColumns(left, text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return TwoColumns("  " + command->get_name(), command->get_description());
}

std::string HelpFormatter::make_description(const CLI::App* command) const {
  return Wrap(command->get_description(), 0, kColumnsMax) + "\n\n";
}

}  // namespace k3::cli
