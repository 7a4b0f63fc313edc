#pragma once
// LineEditor: reads what the user types, a line at a time, and lets them edit it.
//
//   K3_TRY(std::unique_ptr<LineEditor> editor, LineEditor::Open({.history_file = path}));
//   K3_TRY(LineEditor::Line line, editor->Read("> "));
//
// On a terminal (standard input and output both, TERM not "dumb") lines are edited: arrow keys and
// those of emacs, a history, completion of commands, pastes as one edit. Otherwise lines are read
// as they are, without a prompt and without a history. In both ways a line that ends with a
// backslash (an odd number of them) goes on in the next one, joined with "\n".
//
// Owns all its state. One thread, and one editor in a program. It may read ahead, so nothing else
// should read standard input meanwhile; what is left of a file is there again once it is gone.
// While Read waits it catches Ctrl-C, resizing and stops, and whatever ends the process puts the
// terminal back as it was. Open sets the locale's LC_CTYPE to one with UTF-8.
//
// Failures: IoError when reading fails, InvalidArgument for a line beyond limits::kLineBytesMax.
// A history file that cannot be used is a notice. Source: editline(3).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3::cli {

class LineEditor {
 public:
  struct Options {
    std::string history_file;           // empty: the history ends with the program
    std::vector<std::string> commands;  // such as "/help": Tab completes them at the line's start
  };

  struct Line {
    enum class Kind {
      kText,
      kInterrupted,  // Ctrl-C at the prompt: the line is dropped
      kEnd,          // Ctrl-D on an empty line, or no more input
    };
    Kind kind = Kind::kEnd;
    std::string text;  // valid UTF-8, without the newline that ended it
  };

  static Result<std::unique_ptr<LineEditor>> Open(Options options);
  virtual ~LineEditor() = default;

  /// Waits for a line. The cursor must be at the start of a row. `prompt` may hold colours
  /// (ESC [ ... m); other controls in it have no effect.
  virtual Result<Line> Read(std::string_view prompt) = 0;

  /// Arrow keys find `text` from now on. It may have several lines.
  virtual void AddHistory(std::string_view text) = 0;

  /// Forgets what was typed or pasted ahead on a terminal, as after an interrupted answer. What a
  /// file or a program feeds stays.
  virtual void DiscardInput() = 0;

  /// Whether lines are edited on a terminal, where a prompt shows.
  virtual bool edits() const = 0;
};

}  // namespace k3::cli
