#include "terminal/edited_line.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace k3::cli {
namespace {

struct Binding {
  EditCommand command;
  const wchar_t* function;
};

constexpr const wchar_t* kNoneName = L"k3-none";

constexpr std::array kBindings = {
    Binding{EditCommand::kNone, kNoneName},
    Binding{EditCommand::kAccept, L"ed-newline"},
    Binding{EditCommand::kAbandon, L"ed-end-of-file"},
    Binding{EditCommand::kToStart, L"ed-move-to-beg"},
    Binding{EditCommand::kToEnd, L"ed-move-to-end"},
    Binding{EditCommand::kTranspose, L"ed-transpose-chars"},
};

struct CloseFile {
  void operator()(FILE* file) const { (void)std::fclose(file); }
};

struct EndEditLine {
  void operator()(EditLine* edit) const {
    // Without editing, el_end leaves the terminal alone; it would throw typed-ahead input away.
    el_wset(edit, EL_EDITMODE, 0);
    el_end(edit);
  }
};

unsigned char DoNothing(EditLine* /*edit*/, wint_t /*key*/) { return CC_NORM; }

class LibeditLine : public EditedLine {
 public:
  Status Start();
  void Run(NextCommand next) override;
  std::wstring_view Before() const override;
  std::wstring_view After() const override;
  void Move(int64_t characters) override { el_cursor(edit_.get(), static_cast<int>(characters)); }
  void Insert(const std::wstring& text) override { el_winsertstr(edit_.get(), text.c_str()); }
  void EraseBefore(int64_t characters) override;
  void SetMode() override;

 private:
  // What libedit calls.
  static LibeditLine* Of(EditLine* edit);
  static int NextCharacter(EditLine* edit, wchar_t* out) noexcept;

  std::unique_ptr<FILE, CloseFile> silence_;
  std::unique_ptr<EditLine, EndEditLine> edit_;
  NextCommand next_;
};

Status LibeditLine::Start() {
  // What libedit draws goes nowhere, and so do its messages about terminals it does not know.
  silence_.reset(std::fopen("/dev/null", "we"));
  if (silence_ == nullptr) return IoError("/dev/null: cannot open it for the line editor");
  termios mode{};
  const bool known = tcgetattr(STDIN_FILENO, &mode) == 0;
  edit_.reset(el_init_fd("k3", stdin, silence_.get(), silence_.get(), STDIN_FILENO, STDOUT_FILENO,
                         STDERR_FILENO));
  // el_init changes the mode, which is only for Run to do.
  if (known) tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
  if (edit_ == nullptr) return IoError("libedit cannot be set up");
  EditLine* edit = edit_.get();
  el_wset(edit, EL_CLIENTDATA, this);
  el_wset(edit, EL_EDITOR, L"emacs");
  el_wset(edit, EL_SIGNAL, 0);
  el_wset(edit, EL_GETCFN, NextCharacter);
  // Every byte comes as it is: the driver makes no signals, holds nothing up, swaps no line ends.
  el_wset(edit, EL_SETTY, L"-d", L"-isig", L"-ixon", L"-icrnl", L"-inlcr", L"-istrip", nullptr);
  el_wset(edit, EL_ADDFN, kNoneName, L"Do nothing", DoNothing);
  for (const Binding& binding : kBindings) {
    const wchar_t key[] = {static_cast<wchar_t>(binding.command), L'\0'};
    el_wset(edit, EL_BIND, key, binding.function, nullptr);
  }
  return OkStatus();
}

void LibeditLine::Run(NextCommand next) {
  next_ = std::move(next);
  int count = 0;
  (void)el_wgets(edit_.get(), &count);
}

LibeditLine* LibeditLine::Of(EditLine* edit) {
  void* self = nullptr;
  el_wget(edit, EL_CLIENTDATA, &self);
  return static_cast<LibeditLine*>(self);
}

int LibeditLine::NextCharacter(EditLine* edit, wchar_t* out) noexcept {
  *out = static_cast<wchar_t>(Of(edit)->next_());
  return *out == L'\0' ? 0 : 1;
}

std::wstring_view LibeditLine::Before() const {
  const LineInfoW* info = el_wline(edit_.get());
  return {info->buffer, static_cast<size_t>(info->cursor - info->buffer)};
}

std::wstring_view LibeditLine::After() const {
  const LineInfoW* info = el_wline(edit_.get());
  return {info->cursor, static_cast<size_t>(info->lastchar - info->cursor)};
}

void LibeditLine::EraseBefore(int64_t characters) {
  el_deletestr(edit_.get(), static_cast<int>(std::min(characters, std::ssize(Before()))));
}

void LibeditLine::SetMode() {
  // libedit may believe that it is set, and does nothing then without the first call.
  el_wset(edit_.get(), EL_PREP_TERM, 0);
  el_wset(edit_.get(), EL_PREP_TERM, 1);
}

}  // namespace

Result<std::unique_ptr<EditedLine>> EditedLine::Open() {
  auto line = std::make_unique<LibeditLine>();
  K3_RETURN_IF_ERROR(line->Start());
  return std::unique_ptr<EditedLine>(std::move(line));
}

void EditedLine::Replace(const std::wstring& text) {
  Move(std::ssize(After()));
  EraseBefore(std::ssize(Before()));
  if (!text.empty()) Insert(text);
}

}  // namespace k3::cli
