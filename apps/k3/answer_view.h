#pragma once
// AnswerView: shows a chat answer on standard output while it comes. On a terminal thinking is dim,
// or folded into one line that counts; elsewhere the response stands alone, as it is, so that it
// can be piped. One answer a view; one thread.

#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/chat.h"
#include "terminal/terminal.h"

namespace k3::cli {

/// Tokens, reuse and speed of an answer, in one line.
std::string ChatStatsLine(const ChatAnswer& answer);

enum class ThinkingView { kShow, kFold, kHide };

class AnswerView : public ChatSink {
 public:
  /// `styled`: standard output is a terminal that takes colours and cursor movement.
  AnswerView(ThinkingView thinking, bool styled) : thinking_(thinking), styled_(styled) {}

  bool OnPrefillProgress(int64_t done, int64_t total) override;
  bool OnToken(const SampledToken& token) override;
  bool OnEvent(const XtmlEvent& event) override;

  /// Ends the last line and says why the answer is not whole. The first failure of any write.
  Status Finish(const ChatAnswer& answer);

 private:
  enum class Section { kNone, kThinking, kContent, kCall };

  void ShowThinking(std::string_view text);
  void Enter(Section section);
  void EndFold();
  void Note(std::string_view text);
  void Print(std::string_view text);

  ThinkingView thinking_;
  bool styled_;
  Section section_ = Section::kNone;
  bool at_line_start_ = true;
  int64_t thinking_tokens_ = 0;
  int64_t thinking_start_ns_ = 0;
  int64_t next_redraw_ns_ = 0;
  bool is_terminal_ = IsTerminal(STDOUT_FILENO);
  // A model's text must not drive the terminal.
  TerminalText clean_;
  ProgressBar bar_{"reading the prompt"};
  Status status_;
};

}  // namespace k3::cli
