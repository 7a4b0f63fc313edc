#pragma once
// PastedText: the pastes of the line being edited that show as a placeholder in it.
//
// A placeholder is plain text with a number of its own, such as "[pasted #1, 35 lines, 1,024
// bytes]", and stands for its text as long as it is in the line unchanged. Editing within it leaves
// plain text and drops the paste. A value that owns the texts; one thread; nothing fails.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3::cli {

/// A paste with a newline, or with more characters than this, shows as a placeholder.
inline constexpr int64_t kInlineCharactersMax = 1000;

class PastedText {
 public:
  /// Keeps `text`, which must not be empty, and gives the placeholder that stands for it: "[WORD
  /// #2, ...]".
  std::string Add(std::string_view word, std::string text);

  /// `line` with the text in place of each placeholder. Text that is put in is not looked at again.
  std::string Expand(std::string_view line) const;

  /// The length of the placeholder that `line` ends or begins with, or 0.
  int64_t PlaceholderAtEnd(std::string_view line) const;
  int64_t PlaceholderAtStart(std::string_view line) const;

  /// Forgets the texts. Numbers go on, so that an old placeholder never stands for a new text.
  void Clear() { pastes_.clear(); }

 private:
  struct Paste {
    std::string placeholder;
    std::string text;
  };
  std::vector<Paste> pastes_;
  int64_t last_number_ = 0;
};

}  // namespace k3::cli
