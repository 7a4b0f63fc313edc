#pragma once
// Standard output, standard error and standard input of the program: output that notices a full
// disk and a reader that went away, notices, a progress bar and Ctrl-C. One thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

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

/// One line on standard error that is redrawn as work goes on and wiped at the end. Draws nothing
/// unless standard error is a terminal and the work has taken half a second.
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

/// From now on the first Ctrl-C only raises WasInterrupted; a second one ends the process.
void CatchInterrupt();
bool WasInterrupted();

/// A closed pipe or a file beyond its limit is reported by the write to it, not by a signal. A
/// mapped file that is cut while in use ends the program with a message.
void PrepareSignals();

/// "1.50 GiB", "980 B".
std::string FormatBytes(int64_t bytes);

}  // namespace k3::cli
