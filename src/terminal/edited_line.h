#pragma once
// EditedLine: the line being edited, as libedit holds and changes it.
//
//   line->Run([&] { ... line->Insert(text); return EditCommand::kNone; });
//
// libedit asks for commands and not for keys: the caller makes of its keys what it likes, changes
// the line through the functions here, and says what libedit is to do next. So a burst of text is
// one edit, and no odd sequence of a terminal reaches a function that nobody meant. Nothing is
// drawn: that is the caller's (line_picture.h says why), and so is what is killed, because libedit
// takes for killed whatever is erased, and reads beyond its buffer when it kills behind the cursor.
// Owns all its state; one thread; standard input and output must be a terminal, and LC_CTYPE one
// with UTF-8. Source: editline(3), and libedit's read.c and chared.c.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace k3::cli {

/// Controls that are never text, each bound to a function of libedit.
enum class EditCommand : wchar_t {
  kEndOfInput = 0,  // the line ends at once
  kNone = 0x80,     // the caller has done it all
  kAccept,
  kAbandon,
  kToStart,
  kToEnd,
  kTranspose,
};

class EditedLine {
 public:
  /// Must not throw: it is called through libedit.
  using NextCommand = std::function<EditCommand()>;

  /// IoError when libedit cannot be set up. The terminal's mode stays as it is.
  static Result<std::unique_ptr<EditedLine>> Open();
  virtual ~EditedLine() = default;

  /// Sets the terminal's mode for editing: before Run, and again if something changed it. Putting
  /// back the old one is the caller's.
  virtual void SetMode() = 0;

  /// Edits an empty line until kAccept, kAbandon or kEndOfInput.
  virtual void Run(NextCommand next) = 0;

  // While Run asks for a command:

  /// The text before and behind the cursor, until the next change.
  virtual std::wstring_view Before() const = 0;
  virtual std::wstring_view After() const = 0;
  std::wstring Whole() const { return std::wstring(Before()) += After(); }

  /// Moves the cursor by so many characters, to the left when negative.
  virtual void Move(int64_t characters) = 0;
  /// Inserts before the cursor. No NUL in `text`.
  virtual void Insert(const std::wstring& text) = 0;
  /// Deletes before the cursor as many characters as there are, at most.
  virtual void EraseBefore(int64_t characters) = 0;
  /// Puts `text` in place of the whole line, the cursor behind it.
  void Replace(const std::wstring& text);
};

}  // namespace k3::cli
