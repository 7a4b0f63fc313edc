// Lines edited on a terminal: what each key does, the history, pastes, and what happens to the
// terminal meanwhile. The line itself is EditedLine's, its picture LinePainter's.

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/limits.h"
#include "terminal/edited_line.h"
#include "terminal/key_decoder.h"
#include "terminal/line_editor_internal.h"
#include "terminal/line_history.h"
#include "terminal/line_picture.h"
#include "terminal/pasted_text.h"
#include "terminal/prompt_terminal.h"
#include "terminal/terminal.h"
#include "terminal/text_steps.h"
#include "terminal/wide_text.h"

namespace k3::cli {
namespace {

using Command = EditCommand;

/// Every change takes time that grows with the line.
constexpr int64_t kTypedCharactersMax = 1 << 20;
/// What is read at once when there is more and more.
constexpr int64_t kBurstBytesMax = 1 << 20;

class TerminalLineEditor : public LineEditor {
 public:
  TerminalLineEditor(Options options, std::unique_ptr<PromptTerminal> terminal,
                     std::unique_ptr<EditedLine> line)
      : terminal_(std::move(terminal)),
        line_(std::move(line)),
        history_(std::move(options.history_file)),
        commands_(std::move(options.commands)) {}

  Result<Line> Read(std::string_view prompt) override;
  void AddHistory(std::string_view text) override { history_.Add(ValidUtf8(text)); }
  void DiscardInput() override {
    tcflush(STDIN_FILENO, TCIFLUSH);
    keys_.Clear();
  }
  bool edits() const override { return true; }

 private:
  Command NextCommand();
  Command Handle(const Key& key);
  Command HandleEdit(Key::Kind kind);

  // What keys do to the line.
  void Insert(std::string_view text);
  void InsertPaste(std::string text);
  void EraseBefore();
  void EraseAfter();
  void KillBefore(int64_t characters);
  void KillAfter(int64_t characters);
  void Up();
  void Down();
  void ShowEntry(int64_t index);
  void Complete();
  /// False when the line goes on.
  bool Accept();
  void Finish(Line::Kind kind, std::string_view text);

  // The terminal.
  bool WaitForInput();
  bool ReadBurst();
  LinePicture Picture(TerminalSize size) const;
  void Paint();
  void ShowBelow(std::string_view text);
  /// That the terminal is gone shows in the next read.
  static void Show(std::string_view text) { (void)WriteOutput(text); }
  void Resume();

  const std::unique_ptr<PromptTerminal> terminal_;
  const std::unique_ptr<EditedLine> line_;
  LinePainter painter_;
  LineHistory history_;
  const std::vector<std::string> commands_;
  KeyDecoder keys_;
  std::wstring killed_;  // comes back with Ctrl-Y
  PastedText pastes_;

  // Of the line being read.
  std::wstring prompt_;
  Line result_;
  Status failure_;
  bool stale_ = true;   // the picture of the line is
  int64_t entry_ = 0;   // the history's entry that shows; its size: none
  std::wstring draft_;  // what was typed before going through the history
};

Result<LineEditor::Line> TerminalLineEditor::Read(std::string_view prompt) {
  prompt_ = ToWide(prompt);
  result_ = Line();
  failure_ = OkStatus();
  entry_ = history_.size();
  draft_.clear();
  painter_.Forget();
  stale_ = true;
  terminal_->Begin(/*editing=*/true);
  // In this order: keys that answer the prompt must not meet the driver's own line editing.
  line_->SetMode();
  terminal_->MarkPastes();
  line_->Run([this] { return NextCommand(); });
  terminal_->End();
  pastes_.Clear();
  K3_RETURN_IF_ERROR(failure_);
  return std::move(result_);
}

Command TerminalLineEditor::NextCommand() {
  while (true) {
    if (const std::optional<Key> key = keys_.Next()) return Handle(*key);
    // Not before everything has been done that is known, so that a burst is drawn once.
    if (stale_) Paint();
    if (!WaitForInput()) return Command::kEndOfInput;
  }
}

Command TerminalLineEditor::Handle(const Key& key) {
  stale_ = true;
  switch (key.kind) {
    case Key::Kind::kText:
      Insert(key.text);
      break;
    case Key::Kind::kPaste:
      InsertPaste(key.text);
      break;
    case Key::Kind::kPasteTooLong:
      ShowBelow(fmt::format("The paste is longer than {}; give it as a file.",
                            FormatBytes(limits::kLineBytesMax)));
      break;
    case Key::Kind::kTab:
      Complete();
      break;
    case Key::Kind::kEnter:
      if (Accept()) return Command::kAccept;
      break;
    case Key::Kind::kNewline:
      Insert("\n");
      break;
    case Key::Kind::kInterrupt:
      Finish(Line::Kind::kInterrupted, "^C");
      return Command::kAbandon;
    case Key::Kind::kEndOfInput:
      if (line_->Whole().empty()) {
        Finish(Line::Kind::kEnd, "");
        return Command::kAbandon;
      }
      EraseAfter();
      break;
    case Key::Kind::kSuspend:
      Show(painter_.Finish(""));
      terminal_->Stop();
      if (terminal_->TakeEvents().resumed) Resume();
      break;
    case Key::Kind::kClearScreen:
      Show(painter_.ClearScreen());
      break;
    case Key::Kind::kUp:
      Up();
      break;
    case Key::Kind::kDown:
      Down();
      break;
    case Key::Kind::kPreviousEntry:
      ShowEntry(entry_ - 1);
      break;
    case Key::Kind::kNextEntry:
      ShowEntry(entry_ + 1);
      break;
    default:
      return HandleEdit(key.kind);
  }
  return Command::kNone;
}

Command TerminalLineEditor::HandleEdit(Key::Kind kind) {
  switch (kind) {
    case Key::Kind::kBackspace:
      EraseBefore();
      break;
    case Key::Kind::kDelete:
      EraseAfter();
      break;
    case Key::Kind::kLeft:
      line_->Move(-CharacterBefore(line_->Before()));
      break;
    case Key::Kind::kRight:
      line_->Move(CharacterAfter(line_->After()));
      break;
    case Key::Kind::kHome:
      return Command::kToStart;
    case Key::Kind::kEnd:
      return Command::kToEnd;
    case Key::Kind::kWordLeft:
      line_->Move(-WordBefore(line_->Before()));
      break;
    case Key::Kind::kWordRight:
      line_->Move(WordAfter(line_->After()));
      break;
    case Key::Kind::kKillToStart:
      KillBefore(std::ssize(line_->Before()));
      break;
    case Key::Kind::kKillToEnd:
      KillAfter(std::ssize(line_->After()));
      break;
    case Key::Kind::kKillWordLeft: {
      const int64_t placeholder = pastes_.PlaceholderAtEnd(FromWide(line_->Before()));
      KillBefore(placeholder > 0 ? placeholder : WordBefore(line_->Before()));
      break;
    }
    case Key::Kind::kKillWordRight: {
      const int64_t placeholder = pastes_.PlaceholderAtStart(FromWide(line_->After()));
      KillAfter(placeholder > 0 ? placeholder : WordAfter(line_->After()));
      break;
    }
    case Key::Kind::kYank:
      Insert(FromWide(killed_));
      break;
    case Key::Kind::kTranspose:
      return Command::kTranspose;
    default:
      break;
  }
  return Command::kNone;
}

void TerminalLineEditor::Insert(std::string_view text) {
  const std::wstring wide = ToWide(text);
  if (std::ssize(line_->Whole()) + std::ssize(wide) > kTypedCharactersMax) {
    ShowBelow("The line is full; give long texts as a file.");
    return;
  }
  line_->Insert(wide);
}

void TerminalLineEditor::InsertPaste(std::string text) {
  if (text.empty()) return;
  const bool lines = text.find('\n') != std::string::npos;
  const bool shows = !lines && std::ssize(ToWide(text)) <= kInlineCharactersMax;
  Insert(shows ? text : pastes_.Add("pasted", std::move(text)));
}

/// A placeholder goes as a whole.
void TerminalLineEditor::EraseBefore() {
  const int64_t placeholder = pastes_.PlaceholderAtEnd(FromWide(line_->Before()));
  line_->EraseBefore(placeholder > 0 ? placeholder : CharacterBefore(line_->Before()));
}

void TerminalLineEditor::EraseAfter() {
  const int64_t placeholder = pastes_.PlaceholderAtStart(FromWide(line_->After()));
  const int64_t length = placeholder > 0 ? placeholder : CharacterAfter(line_->After());
  line_->Move(length);
  line_->EraseBefore(length);
}

void TerminalLineEditor::KillBefore(int64_t characters) {
  if (characters == 0) return;
  const std::wstring_view before = line_->Before();
  killed_ = before.substr(before.size() - static_cast<size_t>(characters));
  line_->EraseBefore(characters);
}

void TerminalLineEditor::KillAfter(int64_t characters) {
  line_->Move(characters);
  KillBefore(characters);
}

/// To the same place of the line above, or to the history from the first one.
void TerminalLineEditor::Up() {
  const std::wstring_view before = line_->Before();
  const size_t newline = before.rfind(L'\n');
  if (newline == std::wstring_view::npos) return ShowEntry(entry_ - 1);
  const std::wstring_view above = before.substr(0, newline);
  const size_t length = newline - (above.rfind(L'\n') + 1);
  const size_t column = before.size() - newline - 1;
  line_->Move(-static_cast<int64_t>(column + 1 + length - std::min(column, length)));
}

void TerminalLineEditor::Down() {
  const std::wstring_view before = line_->Before();
  const std::wstring_view after = line_->After();
  const size_t newline = after.find(L'\n');
  if (newline == std::wstring_view::npos) return ShowEntry(entry_ + 1);
  const size_t column = before.size() - (before.rfind(L'\n') + 1);
  const std::wstring_view below = after.substr(newline + 1);
  const size_t length = std::min(below.find(L'\n'), below.size());
  line_->Move(static_cast<int64_t>(newline + 1 + std::min(column, length)));
}

void TerminalLineEditor::ShowEntry(int64_t index) {
  if (index < 0 || index > history_.size()) return;
  if (entry_ == history_.size()) draft_ = line_->Whole();
  entry_ = index;
  if (index == history_.size()) return line_->Replace(draft_);
  const std::string& text = history_.entry(index);
  const std::wstring wide = ToWide(text);
  const TerminalSize size = GetTerminalSize();
  const bool fits = std::ssize(wide) <= kInlineCharactersMax &&
                    std::ssize(DrawLine(prompt_, wide, L"", size.columns).rows) < size.rows;
  line_->Replace(fits ? wide : ToWide(pastes_.Add("recalled", text)));
}

void TerminalLineEditor::Complete() {
  const std::string word = FromWide(line_->Before());
  const bool command = word.starts_with('/') && word.find_first_of(" \t\n") == std::string::npos;
  if (!command || commands_.empty()) return Insert("\t");
  std::vector<std::string> matches;
  for (const std::string& name : commands_) {
    if (name.starts_with(word)) matches.push_back(name);
  }
  if (matches.empty()) return;
  std::string common = matches[0];
  for (const std::string& name : matches) {
    const auto differ = std::mismatch(common.begin(), common.end(), name.begin(), name.end());
    common.erase(differ.first, common.end());
  }
  if (common.size() > word.size()) return Insert(common.substr(word.size()));
  if (matches.size() > 1) ShowBelow(fmt::format("{}", fmt::join(matches, "  ")));
}

bool TerminalLineEditor::Accept() {
  std::string text = FromWide(line_->Whole());
  if (GoesOn(text)) {
    line_->Move(std::ssize(line_->After()));
    line_->EraseBefore(1);
    Insert("\n");
    return false;
  }
  text = pastes_.Expand(text);
  if (std::ssize(text) > limits::kLineBytesMax) {
    ShowBelow(fmt::format("The text is longer than {}; give it as a file.",
                          FormatBytes(limits::kLineBytesMax)));
    return false;
  }
  Finish(Line::Kind::kText, "");
  result_.text = std::move(text);
  return true;
}

/// Ends the line with `text` behind it on the screen.
void TerminalLineEditor::Finish(Line::Kind kind, std::string_view text) {
  line_->Move(std::ssize(line_->After()));
  Paint();
  Show(painter_.Finish(text));
  result_.kind = kind;
}

/// False at the end of input, and with failure_ set when reading failed.
bool TerminalLineEditor::WaitForInput() {
  std::array<pollfd, 2> entries = {pollfd{STDIN_FILENO, POLLIN, 0},
                                   pollfd{terminal_->wake_fd(), POLLIN, 0}};
  const int ready = poll(entries.data(), entries.size(), keys_.waiting() ? kKeyWaitMs : -1);
  const PromptTerminal::Events events = terminal_->TakeEvents();
  if (events.resumed) Resume();
  if (events.resized) {
    const TerminalSize size = GetTerminalSize();
    Show(painter_.Move(Picture(size), size));
    stale_ = true;
  }
  if (events.interrupted) {
    keys_.Clear();
    keys_.Push("\003");
  } else if (ready == 0) {
    keys_.Settle();
  } else if (ready > 0 && entries[0].revents != 0) {
    return ReadBurst();
  }
  return true;
}

/// Takes all that is there, so that text that comes fast is one edit for many pieces.
bool TerminalLineEditor::ReadBurst() {
  std::array<char, 64 << 10> bytes;
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  int64_t total = 0;
  do {
    const ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n < 0 && errno != EIO) {
      failure_ = IoError(fmt::format("standard input: cannot read: {}", std::strerror(errno)));
    }
    if (n <= 0) return false;
    keys_.Push(std::string_view(bytes.data(), static_cast<size_t>(n)));
    total += n;
  } while (total > 1 && total < kBurstBytesMax && poll(&entry, 1, 0) > 0);
  return true;
}

LinePicture TerminalLineEditor::Picture(TerminalSize size) const {
  return DrawLine(prompt_, line_->Before(), line_->After(), size.columns);
}

void TerminalLineEditor::Paint() {
  const TerminalSize size = GetTerminalSize();
  Show(painter_.Paint(Picture(size), size));
  stale_ = false;
}

void TerminalLineEditor::ShowBelow(std::string_view text) {
  Paint();
  Show(painter_.Finish("") + std::string(text) + "\r\n");
  stale_ = true;
}

void TerminalLineEditor::Resume() {
  line_->SetMode();
  terminal_->MarkPastes();
  painter_.Forget();
  stale_ = true;
}

}  // namespace

Result<std::unique_ptr<LineEditor>> OpenTerminalLineEditor(LineEditor::Options options) {
  K3_TRY(std::unique_ptr<PromptTerminal> terminal, PromptTerminal::Make());
  K3_TRY(std::unique_ptr<EditedLine> line, EditedLine::Open());
  return std::unique_ptr<LineEditor>(std::make_unique<TerminalLineEditor>(
      std::move(options), std::move(terminal), std::move(line)));
}

}  // namespace k3::cli
