// Lines from a file, a pipe, or a terminal that only scrolls.

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/limits.h"
#include "terminal/line_editor_internal.h"
#include "terminal/prompt_terminal.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

class PlainLineReader : public LineEditor {
 public:
  /// `terminal` is null where standard input is none.
  explicit PlainLineReader(std::unique_ptr<PromptTerminal> terminal)
      : terminal_(std::move(terminal)) {}

  ~PlainLineReader() override {
    // Whoever has the same file open goes on behind the last line that was read.
    if (at_ < buffer_.size()) {
      (void)lseek(STDIN_FILENO, -static_cast<off_t>(buffer_.size() - at_), SEEK_CUR);
    }
  }

  Result<Line> Read(std::string_view /*prompt*/) override {
    // Elsewhere Ctrl-C ends the program, as it should where nobody is typing.
    if (terminal_ == nullptr) return ReadJoined();
    terminal_->Begin(/*editing=*/false);
    Result<Line> line = ReadJoined();
    terminal_->End();
    return line;
  }

  void AddHistory(std::string_view /*text*/) override {}

  void DiscardInput() override {
    if (terminal_ == nullptr) return;
    tcflush(STDIN_FILENO, TCIFLUSH);
    buffer_.clear();
    at_ = 0;
  }

  bool edits() const override { return false; }

 private:
  enum class Ending { kNewline, kEnd, kInterrupted };

  Result<Line> ReadJoined() {
    std::string text;
    for (bool goes_on = false;;) {
      K3_TRY(const Ending ending, AppendLine(text));
      if (ending == Ending::kInterrupted) return Line{Line::Kind::kInterrupted, ""};
      if (ending == Ending::kEnd) {
        if (goes_on && text.back() == '\n') text.pop_back();  // nothing follows
        if (text.empty() && !goes_on) return Line{Line::Kind::kEnd, ""};
        break;
      }
      if (text.ends_with('\r')) text.pop_back();
      if (!GoesOn(text)) break;
      goes_on = true;
      text.back() = '\n';
    }
    return Line{Line::Kind::kText, ValidUtf8(text)};
  }

  /// Appends one line without its newline.
  Result<Ending> AppendLine(std::string& text) {
    ++line_number_;
    while (true) {
      const size_t newline = buffer_.find('\n', at_);
      const size_t end = std::min(newline, buffer_.size());
      if (static_cast<int64_t>(text.size() + (end - at_)) > limits::kLineBytesMax) {
        return InvalidArgument(fmt::format(
            "standard input: line {}: expected at most {} bytes, found more; give long texts as "
            "a file",
            line_number_, limits::kLineBytesMax));
      }
      text.append(buffer_, at_, end - at_);
      at_ = std::min(end + 1, buffer_.size());
      if (newline != std::string::npos) return Ending::kNewline;
      K3_TRY(const std::optional<Ending> ending, Fill());
      if (ending.has_value()) return *ending;
    }
  }

  /// Reads more into the buffer, which is used up; or says why there is none.
  Result<std::optional<Ending>> Fill() {
    std::array<char, 64 << 10> bytes;
    while (true) {
      std::array<pollfd, 2> entries = {pollfd{STDIN_FILENO, POLLIN, 0},
                                       pollfd{terminal_ ? terminal_->wake_fd() : -1, POLLIN, 0}};
      // What goes wrong here shows in the read as well.
      (void)poll(entries.data(), entries.size(), -1);
      if (terminal_ != nullptr && terminal_->TakeEvents().interrupted) {
        buffer_.clear();
        at_ = 0;
        return std::optional(Ending::kInterrupted);
      }
      if (entries[0].revents == 0) continue;
      ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n < 0 && errno == EIO && terminal_ != nullptr) n = 0;  // the terminal is gone
      if (n < 0) {
        return IoError(fmt::format("standard input: cannot read: {}", std::strerror(errno)));
      }
      if (n == 0) return std::optional(Ending::kEnd);
      buffer_.assign(bytes.data(), static_cast<size_t>(n));
      at_ = 0;
      return std::optional<Ending>();
    }
  }

  std::unique_ptr<PromptTerminal> terminal_;
  std::string buffer_;
  size_t at_ = 0;  // bytes before are used up
  int64_t line_number_ = 0;
};

}  // namespace

Result<std::unique_ptr<LineEditor>> OpenPlainLineReader() {
  std::unique_ptr<PromptTerminal> terminal;
  if (IsTerminal(STDIN_FILENO)) {
    K3_TRY(terminal, PromptTerminal::Make());
  }
  return std::unique_ptr<LineEditor>(std::make_unique<PlainLineReader>(std::move(terminal)));
}

}  // namespace k3::cli
