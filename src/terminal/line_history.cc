#include "terminal/line_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "sys/file.h"
#include "terminal/terminal.h"
#include "text/utf8.h"

namespace k3::cli {
namespace {

constexpr mode_t kOwnerOnly = 0600;

std::string Escape(std::string_view text) {
  std::string line;
  for (const char byte : text) {
    if (byte == '\n') {
      line += "\\n";
    } else if (byte == '\r') {
      line += "\\r";
    } else if (byte == '\\') {
      line += "\\\\";
    } else {
      line += byte;
    }
  }
  return line;
}

/// The inverse. A backslash before anything else stands for itself: someone wrote it by hand.
std::string Unescape(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const char next = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (next == 'n' || next == 'r' || next == '\\') {
      text += next == 'n' ? '\n' : next == 'r' ? '\r' : '\\';
      ++i;
    } else {
      text += line[i];
    }
  }
  return text;
}

Status Failed(std::string_view what, const std::string& path, int error) {
  return IoError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

/// Writes all of `text` and closes. One write where the system takes it, so that lines of two
/// programs do not mix.
Status WriteAndClose(int fd, std::string_view text, bool sync, const std::string& path) {
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && sync && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? OkStatus() : Failed("cannot write", path, error);
}

}  // namespace

LineHistory::LineHistory(std::string file) : file_(std::move(file)) {
  if (!file_.empty()) Report(Load());
}

void LineHistory::Add(std::string_view text) {
  if (text.find_first_not_of(" \t\n") == std::string_view::npos) return;
  if (std::ssize(text) > kEntryBytesMax || (!entries_.empty() && entries_.back() == text)) return;
  entries_.emplace_back(text);
  if (size() > kEntriesMax) entries_.pop_front();
  if (!file_.empty()) {
    Report(entries_in_file_ >= 2 * kEntriesMax ? Replace() : Append(text));
  }
}

Status LineHistory::Load() {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  if (!files->Exists(file_)) return OkStatus();
  K3_TRY(const std::string content, ReadWholeFile(*files, file_, kFileBytesMax));
  if (FindInvalidUtf8(content) >= 0 || content.find('\0') != std::string::npos) {
    return Corruption(file_ + ": expected lines of UTF-8 text, found other bytes; remove the file");
  }
  std::string_view rest = content;
  ends_in_line_ = !rest.empty() && rest.back() != '\n';
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    entries_.push_back(Unescape(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++entries_in_file_;
    if (size() > kEntriesMax) entries_.pop_front();
  }
  return entries_in_file_ > kEntriesMax ? Replace() : OkStatus();
}

Status LineHistory::Append(std::string_view text) {
  const std::filesystem::path folder = std::filesystem::path(file_).parent_path();
  std::error_code ignored;  // the open tells
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  // Without blocking, because a FIFO would wait for a reader.
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
  const int fd = open(file_.c_str(), flags, kOwnerOnly);
  if (fd < 0) return Failed("cannot open", file_, errno);
  const std::string line = (ends_in_line_ ? "\n" : "") + Escape(text) + "\n";
  K3_RETURN_IF_ERROR(WriteAndClose(fd, line, false, file_));
  ends_in_line_ = false;
  ++entries_in_file_;
  return OkStatus();
}

Status LineHistory::Replace() {
  // A link stays a link: what it names is replaced.
  std::error_code ignored;
  const std::filesystem::path real = std::filesystem::weakly_canonical(file_, ignored);
  const std::string target = real.empty() ? file_ : real.string();
  const std::string partial = PartialPath(target);
  const int fd =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly);
  if (fd < 0) return Failed("cannot create", partial, errno);
  std::string content;
  for (const std::string& text : entries_) content += Escape(text) + "\n";
  Status status = WriteAndClose(fd, content, true, partial);
  if (status.ok() && rename(partial.c_str(), target.c_str()) != 0) {
    status = Failed("cannot rename to " + target, partial, errno);
  }
  if (!status.ok()) {
    // The failure above is the one to report, whether or not this works.
    (void)unlink(partial.c_str());
    return status;
  }
  entries_in_file_ = size();
  ends_in_line_ = false;
  return OkStatus();
}

void LineHistory::Report(const Status& status) {
  if (status.ok()) return;
  PrintNotice("the history is kept in memory only: " + status.message());
  file_.clear();
}

}  // namespace k3::cli
