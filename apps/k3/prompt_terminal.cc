#include "prompt_terminal.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

namespace k3::cli {
namespace {

constexpr std::string_view kMarkPastes = "\033[?2004h";
constexpr std::string_view kLeaveEditing = "\033[?2004l";
constexpr std::string_view kNewLine = "\r\n";
constexpr std::string_view kEndStyle = "\033[0m";

/// All that the signal handler knows.
struct Shared {
  std::atomic<int> wake_fd{-1};
  std::atomic<bool> editing{false};  // `mode` is what to put back
  std::atomic<bool> styled{false};
  termios mode{};
};

// style-ok(global-state): a signal handler can reach nothing but a global.
Shared shared;

void Write(std::string_view text) {
  // There is nowhere to report that the terminal is gone.
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
}

void Wake(char event) {
  // A full pipe has woken the reader already; without one nobody waits.
  [[maybe_unused]] const ssize_t written = write(shared.wake_fd, &event, 1);
}

/// Whether the terminal is ours. Setting that of another job would stop this one.
bool InForeground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

/// Back to how Begin found it. Whether there was anything to do.
bool LeaveEditing() {
  if (!shared.editing || !InForeground()) return false;
  Write(kLeaveEditing);
  tcsetattr(STDIN_FILENO, TCSANOW, &shared.mode);
  return true;
}

/// Lets the signal do what it does by default. Comes back if that does not end the process.
void DoDefault(int signal) {
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, &before);
  sigset_t set;
  sigset_t mask;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, &mask);
  raise(signal);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  sigaction(signal, &before, nullptr);
}

void OnSignal(int signal) {
  const int error = errno;
  switch (signal) {
    case SIGINT:
      Wake('i');
      break;
    case SIGWINCH:
      Wake('w');
      break;
    case SIGCONT:
      Wake('c');
      break;
    case SIGTSTP:
      LeaveEditing();
      DoDefault(signal);
      Wake('c');
      break;
    default:
      RestoreTerminal();
      DoDefault(signal);
  }
  errno = error;
}

}  // namespace

void RestoreTerminal() {
  const bool left = LeaveEditing();
  if (shared.styled) Write(kEndStyle);
  // What comes next does not stand in the middle of a row.
  if (left || shared.styled) Write(kNewLine);
}

void SetTextStyled(bool styled) { shared.styled = styled; }

Result<std::unique_ptr<PromptTerminal>> PromptTerminal::Make() {
  std::unique_ptr<PromptTerminal> terminal(new PromptTerminal);
  if (pipe2(terminal->pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return IoError(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return terminal;
}

PromptTerminal::~PromptTerminal() {
  for (const int fd : pipe_) {
    if (fd >= 0) close(fd);
  }
}

void PromptTerminal::Begin(bool editing) {
  shared.wake_fd = pipe_[1];
  if (editing) shared.editing = tcgetattr(STDIN_FILENO, &shared.mode) == 0;
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    // What the parent has switched off stays off, and plain lines need no more than Ctrl-C.
    const bool ignored = before_[i].sa_handler == SIG_IGN;
    if (!ignored && (editing || kSignals[i] == SIGINT)) sigaction(kSignals[i], &action, nullptr);
  }
}

void PromptTerminal::End() {
  if (shared.editing) {
    Write(kLeaveEditing);
    // Not to lose what is typed ahead, input is not flushed.
    while (tcsetattr(STDIN_FILENO, TCSADRAIN, &shared.mode) != 0 && errno == EINTR) continue;
  }
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  shared.editing = false;
  shared.wake_fd = -1;
}

void PromptTerminal::MarkPastes() { Write(kMarkPastes); }

void PromptTerminal::Stop() { kill(0, SIGTSTP); }

PromptTerminal::Events PromptTerminal::TakeEvents() {
  Events events;
  std::array<char, 64> bytes;
  ssize_t n = 0;
  while ((n = read(pipe_[0], bytes.data(), bytes.size())) > 0) {
    for (ssize_t i = 0; i < n; ++i) {
      events.interrupted |= bytes[static_cast<size_t>(i)] == 'i';
      events.resized |= bytes[static_cast<size_t>(i)] == 'w';
      events.resumed |= bytes[static_cast<size_t>(i)] == 'c';
    }
  }
  return events;
}

}  // namespace k3::cli
