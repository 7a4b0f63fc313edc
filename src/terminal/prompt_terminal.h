#pragma once
// PromptTerminal: the terminal while the user edits a line, and how it is left whatever happens.
//
// Between Begin and End the terminal on standard input may be in any mode: End puts back the one
// that Begin found, and so does a signal that ends or stops the process in between (SIGTERM,
// SIGHUP, SIGQUIT, SIGTSTP, and through RestoreTerminal whoever else ends it). Signals that the
// editor has to act on wake its poll. While it lives, Ctrl-C between End and the next Begin is an
// event of that one, but a second in a row, a moment later, ends the process: whatever is busy
// there does not stop. One thread owns it; signals may be taken on any. There is at most one in a
// program.

#include <signal.h>

#include <array>
#include <memory>

#include "base/status.h"

namespace k3::cli {

/// Installs the action, unless the parent has the signal ignored, under nohup or in the background:
/// that stays so. `before` gets what stood there.
void SetUnlessIgnored(int signal, const struct sigaction& action, struct sigaction* before);

/// Puts back what is changed at the terminal now, for whoever is about to end the process. A signal
/// handler may call it.
void RestoreTerminal();

/// Whether RestoreTerminal also ends a text style, which may be on while an answer is printed.
void SetTextStyled(bool styled);

class PromptTerminal {
 public:
  struct Events {
    bool interrupted = false;  // SIGINT
    bool resized = false;      // SIGWINCH
    bool resumed = false;      // after a stop: the terminal is as at Begin
  };

  /// IoError when no file descriptors are left.
  static Result<std::unique_ptr<PromptTerminal>> Make();
  PromptTerminal(const PromptTerminal&) = delete;
  PromptTerminal& operator=(const PromptTerminal&) = delete;
  ~PromptTerminal();

  /// Catches signals, and with `editing` remembers the mode.
  void Begin(bool editing);
  /// Puts back the mode, and has pastes no longer marked.
  void End();

  /// Asks the terminal to mark pastes: also after a stop.
  void MarkPastes();

  /// Stops the process and its group, as Ctrl-Z does; comes back when it goes on.
  void Stop();

  /// Readable when there are events.
  int wake_fd() const { return pipe_[0]; }
  Events TakeEvents();

 private:
  PromptTerminal() = default;

  static constexpr std::array kSignals = {SIGWINCH, SIGCONT, SIGTSTP, SIGTERM, SIGHUP, SIGQUIT};

  std::array<int, 2> pipe_ = {-1, -1};
  struct sigaction interrupt_before_{};
  std::array<struct sigaction, kSignals.size()> before_{};
  bool caught_ = false;  // kSignals
};

}  // namespace k3::cli
