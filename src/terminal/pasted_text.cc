#include "terminal/pasted_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace k3::cli {
namespace {

/// 1234567 as "1,234,567", whatever the locale.
std::string WithCommas(int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string Counted(int64_t count, std::string_view unit) {
  return fmt::format("{} {}{}", WithCommas(count), unit, count == 1 ? "" : "s");
}

}  // namespace

std::string PastedText::Add(std::string_view word, std::string text) {
  const int64_t newlines = std::count(text.begin(), text.end(), '\n');
  const int64_t lines = newlines + (text.back() == '\n' ? 0 : 1);
  std::string placeholder = fmt::format("[{} #{}, {}, {}]", word, ++last_number_,
                                        Counted(lines, "line"), Counted(std::ssize(text), "byte"));
  pastes_.push_back({placeholder, std::move(text)});
  return placeholder;
}

std::string PastedText::Expand(std::string_view line) const {
  std::string out;
  while (!line.empty()) {
    const size_t bracket = std::min(line.find('['), line.size());
    out += line.substr(0, bracket);
    line.remove_prefix(bracket);
    if (line.empty()) break;
    const auto found = std::find_if(pastes_.begin(), pastes_.end(), [&](const Paste& paste) {
      return line.starts_with(paste.placeholder);
    });
    const size_t length = found == pastes_.end() ? 1 : found->placeholder.size();
    out += found == pastes_.end() ? line.substr(0, 1) : std::string_view(found->text);
    line.remove_prefix(length);
  }
  return out;
}

int64_t PastedText::PlaceholderAtEnd(std::string_view line) const {
  for (const Paste& paste : pastes_) {
    if (line.ends_with(paste.placeholder)) return std::ssize(paste.placeholder);
  }
  return 0;
}

int64_t PastedText::PlaceholderAtStart(std::string_view line) const {
  for (const Paste& paste : pastes_) {
    if (line.starts_with(paste.placeholder)) return std::ssize(paste.placeholder);
  }
  return 0;
}

}  // namespace k3::cli
