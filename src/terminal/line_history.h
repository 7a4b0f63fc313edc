#pragma once
// LineHistory: what was entered before, newest last, kept in a file between runs.
//
// The file is text, one entry a line, with \n, \r and \\ for newline, return and backslash in an
// entry; only its owner can read it. Entries are appended one write each, so that two programs can
// share the file; beyond twice the limit it is replaced as a whole. A file that cannot be read or
// written is named in one notice on standard error and then left alone; the entries of this run
// stay in memory. Owns everything; one thread; nothing fails.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/status.h"

namespace k3::cli {

class LineHistory {
 public:
  static constexpr int64_t kEntriesMax = 1000;
  /// Entries and files beyond are not kept: a history is read at every start.
  static constexpr int64_t kEntryBytesMax = 256 << 10;
  static constexpr int64_t kFileBytesMax = 64 << 20;

  /// Reads `file`; an empty name keeps nothing beyond this run. A missing file is an empty history.
  explicit LineHistory(std::string file);

  /// Adds an entry that is not blank, not too long and not the same as the newest one.
  void Add(std::string_view text);

  int64_t size() const { return std::ssize(entries_); }
  /// 0 is the oldest one.
  const std::string& entry(int64_t index) const { return entries_[static_cast<size_t>(index)]; }

 private:
  Status Load();
  Status Append(std::string_view text);
  Status Replace();
  /// Reports the first failure and leaves the file alone from then on.
  void Report(const Status& status);

  std::string file_;  // empty: not kept
  std::deque<std::string> entries_;
  int64_t entries_in_file_ = 0;
  bool ends_in_line_ = false;  // the file's last line has no newline
};

}  // namespace k3::cli
