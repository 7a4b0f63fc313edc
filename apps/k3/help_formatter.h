#pragma once
// HelpFormatter: lays out `--help`: an option and its value on one line, what it does below it or
// beside it, broken at 80 columns, with the default. Made once, for the application; subcommands
// inherit it. One thread.

#include <CLI/CLI.hpp>
#include <string>

namespace k3::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* command) const override;
};

/// `text` broken at spaces so that no line has more than `columns` columns.
std::string Wrap(const std::string& text, size_t indent, size_t columns);

}  // namespace k3::cli
