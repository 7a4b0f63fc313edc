#include "terminal/prompt_terminal.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "terminal/exit_codes.h"

namespace k3::cli {
namespace {

constexpr std::string_view kMarkPastes = "\033[?2004h";
constexpr std::string_view kLeaveEditing = "\033[?2004l";
constexpr std::string_view kNewLine = "\r\n";
constexpr std::string_view kEndStyle = "\033[0m";
/// A key held down for a moment is one interrupt.
constexpr int64_t kRepeatNs = 200'000'000;

/// All that the signal handler knows.
struct Shared {
  std::atomic<int> wake_fd{-1};
  std::atomic<bool> reading{false};
  std::atomic<int64_t> interrupted_ns{0};  // the first time since the last Begin or End
  std::atomic<bool> editing{false};        // `mode` is what to put back
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

void OnInterrupt() {
  int64_t first_ns = 0;
  const int64_t now_ns = MonotonicNanoseconds();
  const bool again = !shared.interrupted_ns.compare_exchange_strong(first_ns, now_ns);
  if (again && !shared.reading && now_ns - first_ns > kRepeatNs) {
    RestoreTerminal();
    _exit(kExitInterrupted);
  }
  Wake('i');
}

void OnSignal(int signal) {
  const int error = errno;
  switch (signal) {
    case SIGINT:
      OnInterrupt();
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

void Catch(int signal, struct sigaction* before) {
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  SetUnlessIgnored(signal, action, before);
}

}  // namespace

void SetUnlessIgnored(int signal, const struct sigaction& action, struct sigaction* before) {
  sigaction(signal, nullptr, before);
  if (before->sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

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
  shared.wake_fd = terminal->pipe_[1];
  shared.interrupted_ns = 0;
  Catch(SIGINT, &terminal->interrupt_before_);
  return terminal;
}

PromptTerminal::~PromptTerminal() {
  if (pipe_[0] >= 0) sigaction(SIGINT, &interrupt_before_, nullptr);
  shared.wake_fd = -1;
  for (const int fd : pipe_) {
    if (fd >= 0) close(fd);
  }
}

void PromptTerminal::Begin(bool editing) {
  shared.reading = true;
  shared.interrupted_ns = 0;
  if (!editing) return;
  shared.editing = tcgetattr(STDIN_FILENO, &shared.mode) == 0;
  for (size_t i = 0; i < kSignals.size(); ++i) Catch(kSignals[i], &before_[i]);
  caught_ = true;
}

void PromptTerminal::End() {
  if (shared.editing) {
    Write(kLeaveEditing);
    // Not to lose what is typed ahead, input is not flushed.
    while (tcsetattr(STDIN_FILENO, TCSADRAIN, &shared.mode) != 0 && errno == EINTR) continue;
  }
  for (size_t i = 0; caught_ && i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
  caught_ = false;
  shared.editing = false;
  shared.interrupted_ns = 0;
  shared.reading = false;
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
