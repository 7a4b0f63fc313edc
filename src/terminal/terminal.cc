#include "terminal/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/limits.h"
#include "sys/file.h"
#include "terminal/exit_codes.h"
#include "terminal/prompt_terminal.h"

namespace k3::cli {
namespace {

constexpr int64_t kDrawDelayNs = 500'000'000;
constexpr int64_t kRedrawNs = 100'000'000;
constexpr int64_t kBarColumns = 30;

// style-ok(global-state): a signal handler can reach nothing but a global.
volatile sig_atomic_t interrupted = 0;

void OnInterrupt(int /*signal*/) { interrupted = 1; }

/// Writes to standard error as well as it goes: there is nowhere to report that this failed.
void WriteError(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void WaitUntilWritable() {
  pollfd entry{STDOUT_FILENO, POLLOUT, 0};
  // Whatever comes back, the next write tells.
  (void)poll(&entry, 1, -1);
}

}  // namespace

Status WriteOutput(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) {
      WaitUntilWritable();
      continue;
    }
    if (error == EPIPE) return Cancelled("the reader of standard output went away");
    std::string message = fmt::format("standard output: cannot write: {}", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT) return ResourceExhausted(std::move(message));
    return IoError(std::move(message));
  }
  return OkStatus();
}

void PrintNotice(std::string_view text) {
  // A message may quote what came from outside, such as a file's name.
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  WriteError(fmt::format("k3: {}\n", is_terminal ? ForTerminal(text) : std::string(text)));
}

Result<std::string> ReadStandardInput(int64_t bytes_max) {
  std::string text;
  std::array<char, 64 << 10> buffer;
  while (true) {
    const ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return IoError(fmt::format("standard input: cannot read: {}", std::strerror(errno)));
    }
    if (n == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
    if (std::ssize(text) > bytes_max) {
      return InvalidArgument(
          fmt::format("standard input: expected at most {} bytes, found more", bytes_max));
    }
  }
}

Result<std::string> ReadTextArgument(const std::string& text, const std::string& file) {
  if (!file.empty()) {
    const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
    return ReadWholeFile(*files, file, limits::kPromptBytesMax);
  }
  if (text == "-") return ReadStandardInput(limits::kPromptBytesMax);
  return text;
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      enabled_(isatty(STDERR_FILENO) != 0),
      start_ns_(MonotonicNanoseconds()),
      next_draw_ns_(start_ns_ + kDrawDelayNs) {}

void ProgressBar::Update(int64_t done, int64_t total) {
  if (!enabled_ || total <= 0) return;
  if (done >= total) return Clear();
  const int64_t now_ns = MonotonicNanoseconds();
  if (now_ns < next_draw_ns_) return;
  next_draw_ns_ = now_ns + kRedrawNs;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const size_t filled = static_cast<size_t>(share * kBarColumns);
  std::string rest;
  if (share > 0) {
    const double seconds = SecondsBetween(start_ns_, now_ns) * (1 - share) / share;
    rest = fmt::format("{:.0f} s left", seconds);
  }
  WriteError(fmt::format("\r{} [{}{}] {:3.0f} % {}\033[K", label_, std::string(filled, '='),
                         std::string(kBarColumns - filled, ' '), share * 100, rest));
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (drawn_) WriteError("\r\033[K");
  drawn_ = false;
}

bool IsTerminal(int fd) { return isatty(fd) != 0; }

TerminalSize GetTerminalSize() {
  TerminalSize size;
  winsize found{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) == 0) {
    if (found.ws_col > 0) size.columns = found.ws_col;
    if (found.ws_row > 0) size.rows = found.ws_row;
  }
  return size;
}

bool StylingAllowed() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool wanted = no_color == nullptr || *no_color == '\0';
  const bool able = term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
  return wanted && able && IsTerminal(STDOUT_FILENO);
}

std::string TerminalText::Feed(std::string_view bytes) { return Clean(utf8_.Feed(bytes)); }

std::string TerminalText::Finish() {
  std::string text = Clean(utf8_.Finish());
  if (after_return_) text += "^M";
  after_return_ = false;
  return text;
}

/// `text` is whole characters.
std::string TerminalText::Clean(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (after_return_ && byte != '\n') clean += "^M";
    after_return_ = byte == '\r';
    if (byte == '\r') continue;
    if (byte == 0xC2) {
      // U+0080 to U+00BF, of which the first half are controls.
      const auto next = static_cast<uint8_t>(text[++i]);
      clean += next < 0xA0 ? kReplacement : text.substr(i - 1, 2);
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      clean += {'^', static_cast<char>(byte ^ 0x40)};
    } else {
      clean += text[i];
    }
  }
  return clean;
}

std::string ForTerminal(std::string_view text) {
  TerminalText stream;
  std::string safe = stream.Feed(text);
  return safe + stream.Finish();
}

namespace {

void CatchSignal(int signal) {
  struct sigaction action{}, before{};
  action.sa_handler = OnInterrupt;
  // The default comes back at once, so that a second one ends a pass that takes minutes.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  SetUnlessIgnored(signal, action, &before);
}

}  // namespace

void CatchInterrupt() { CatchSignal(SIGINT); }

void CatchTermination() {
  CatchSignal(SIGINT);
  CatchSignal(SIGTERM);
  CatchSignal(SIGHUP);
}

bool WasInterrupted() { return interrupted != 0; }

namespace {

void OnInterruptInScope(int /*signal*/) {
  if (interrupted != 0) {
    RestoreTerminal();
    _exit(kExitInterrupted);
  }
  interrupted = 1;
}

}  // namespace

InterruptScope::InterruptScope() {
  interrupted = 0;
  SetTextStyled(StylingAllowed());
  struct sigaction action{};
  action.sa_handler = OnInterruptInScope;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &before_, nullptr);
  SetTextStyled(false);
  interrupted = 0;
}

namespace {

/// A mapped file that shrank, or a disk that failed to read, ends here. Only calls that a signal
/// handler may make.
void EndOnMappingFault(int /*signal*/) {
  constexpr std::string_view kMessage =
      "k3: IoError: a file of the model could not be read: it was cut while in use, or the disk "
      "failed; check it and start again\n";
  RestoreTerminal();
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(1);
}

}  // namespace

namespace {

/// A descriptor that the caller closed would otherwise be given to the next file that is opened.
void OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      // The lowest free number is this one.
      [[maybe_unused]] const int opened =
          open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
    }
  }
}

}  // namespace

void PrepareProcess() {
  OpenStandardStreams();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGBUS, EndOnMappingFault);
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace k3::cli
