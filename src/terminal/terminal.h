#pragma once
// Standard output, standard error and standard input of the program: output that notices a full
// disk and a reader that went away, notices, a progress bar, what the terminal can show, and
// Ctrl-C. One thread. Lines that the user types: line_editor.h.

#include <signal.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/utf8_stream.h"

namespace k3::cli {

/// Writes to standard output at once. Cancelled when its reader went away, which ends the program
/// quietly; ResourceExhausted for a full disk, IoError for the rest.
Status WriteOutput(std::string_view text);

/// "k3: text" on standard error.
void PrintNotice(std::string_view text);

/// All of standard input. InvalidArgument beyond `bytes_max`.
Result<std::string> ReadStandardInput(int64_t bytes_max);

/// The text an argument stands for: "-" is standard input, anything else itself. With a file name,
/// that file instead. At most limits::kPromptBytesMax bytes.
Result<std::string> ReadTextArgument(const std::string& text, const std::string& file);

/// One line on standard error that is redrawn as work goes on and wiped when all is done. Draws
/// nothing unless standard error is a terminal and the work has taken half a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { Clear(); }

  void Update(int64_t done, int64_t total);
  /// Wipes the line; a later update draws it again.
  void Clear();

 private:
  std::string label_;
  bool enabled_;
  bool drawn_ = false;
  int64_t start_ns_;
  int64_t next_draw_ns_;
};

bool IsTerminal(int fd);

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};
/// Of the terminal on standard output; 80 x 24 where there is none or it does not say.
TerminalSize GetTerminalSize();

/// Whether colours and the like may be printed on standard output: it is a terminal, TERM is not
/// "dumb" and NO_COLOR is not set (no-color.org).
bool StylingAllowed();

/// Makes text from outside, such as a model's, safe to print on a terminal: no control character
/// but newline and tab is left that could move the cursor, change colours or make the terminal
/// type. Controls show as ^[ for ESC, those beyond ASCII and what is not UTF-8 as U+FFFD, and CR LF
/// as a newline. However the bytes are split over calls, the joined output is the same.
class TerminalText {
 public:
  /// Takes the next bytes; holds back an unfinished character and a CR.
  std::string Feed(std::string_view bytes);
  /// What was held back. Ready for reuse.
  std::string Finish();

 private:
  std::string Clean(std::string_view text);

  Utf8Stream utf8_;
  bool after_return_ = false;
};

/// The same for text that is all there.
std::string ForTerminal(std::string_view text);

/// From now on the first Ctrl-C only raises WasInterrupted; a second one ends the process.
void CatchInterrupt();
/// The same for Ctrl-C and SIGTERM, for work that saves before it ends.
void CatchTermination();
bool WasInterrupted();

/// While one lives, the first Ctrl-C raises WasInterrupted, and a second one ends the process with
/// exit code 130 and the terminal as it should be: stopping may take minutes. When it ends, Ctrl-C
/// does what it did before and WasInterrupted is false, so the next one can be interrupted again.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  struct sigaction before_{};
};

/// To be called first. Standard streams that are closed become empty ones. A closed pipe or a file
/// beyond its limit is reported by the write to it, not by a signal. A mapped file that is cut
/// while in use ends the program with a message.
void PrepareProcess();

/// "1.50 GiB", "980 B".
std::string FormatBytes(int64_t bytes);

}  // namespace k3::cli
