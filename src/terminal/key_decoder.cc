#include "terminal/key_decoder.h"

#include <algorithm>
#include <array>

#include "base/limits.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace k3::cli {
namespace {

using Kind = Key::Kind;

constexpr char kEscape = '\033';
constexpr char kInterruptByte = '\003';
constexpr std::string_view kPasteEnd = "\033[201~";
constexpr char32_t kReplacement = 0xFFFD;
/// A control sequence that is longer is noise.
constexpr size_t kSequenceBytesMax = 64;

bool IsControl(char byte) { return static_cast<uint8_t>(byte) < 0x20 || byte == '\177'; }

/// Ctrl-A is 1. Keys without a meaning here are ignored.
Kind ControlKey(char byte) {
  switch (byte) {
    case 'A' - '@':
      return Kind::kHome;
    case 'B' - '@':
      return Kind::kLeft;
    case kInterruptByte:
      return Kind::kInterrupt;
    case 'D' - '@':
      return Kind::kEndOfInput;
    case 'E' - '@':
      return Kind::kEnd;
    case 'F' - '@':
      return Kind::kRight;
    case '\b':
    case '\177':
      return Kind::kBackspace;
    case '\t':
      return Kind::kTab;
    // Both, because the terminal driver turns what is typed ahead of the prompt into newlines.
    case '\n':
    case '\r':
      return Kind::kEnter;
    case 'K' - '@':
      return Kind::kKillToEnd;
    case 'L' - '@':
      return Kind::kClearScreen;
    case 'N' - '@':
      return Kind::kNextEntry;
    case 'P' - '@':
      return Kind::kPreviousEntry;
    case 'T' - '@':
      return Kind::kTranspose;
    case 'U' - '@':
      return Kind::kKillToStart;
    case 'W' - '@':
      return Kind::kKillWordLeft;
    case 'Y' - '@':
      return Kind::kYank;
    case 'Z' - '@':
      return Kind::kSuspend;
    default:
      return Kind::kIgnored;
  }
}

Kind AltKey(char byte) {
  switch (byte) {
    case 'b':
    case 'B':
      return Kind::kWordLeft;
    case 'd':
    case 'D':
      return Kind::kKillWordRight;
    case 'f':
    case 'F':
      return Kind::kWordRight;
    case '\b':
    case '\177':
      return Kind::kKillWordLeft;
    case '\n':
    case '\r':
      return Kind::kNewline;
    default:
      return Kind::kIgnored;
  }
}

struct NamedSequence {
  std::string_view body;  // behind ESC [
  Kind kind;
};

constexpr std::array kSequences = {
    NamedSequence{"A", Kind::kUp},
    NamedSequence{"B", Kind::kDown},
    NamedSequence{"C", Kind::kRight},
    NamedSequence{"D", Kind::kLeft},
    NamedSequence{"F", Kind::kEnd},
    NamedSequence{"H", Kind::kHome},
    NamedSequence{"1~", Kind::kHome},
    NamedSequence{"7~", Kind::kHome},
    NamedSequence{"4~", Kind::kEnd},
    NamedSequence{"8~", Kind::kEnd},
    NamedSequence{"3~", Kind::kDelete},
    // With Alt (3) or Ctrl (5).
    NamedSequence{"1;3C", Kind::kWordRight},
    NamedSequence{"1;5C", Kind::kWordRight},
    NamedSequence{"1;3D", Kind::kWordLeft},
    NamedSequence{"1;5D", Kind::kWordLeft},
    NamedSequence{"3;3~", Kind::kKillWordRight},
    NamedSequence{"3;5~", Kind::kKillWordRight},
    // Enter with Shift (2) or Alt (3), as kitty and as xterm's modifyOtherKeys write it.
    NamedSequence{"13;2u", Kind::kNewline},
    NamedSequence{"13;3u", Kind::kNewline},
    NamedSequence{"27;2;13~", Kind::kNewline},
    NamedSequence{"27;3;13~", Kind::kNewline},
    NamedSequence{"200~", Kind::kPaste},
};

Kind SequenceKey(std::string_view body) {
  const auto* const found =
      std::find_if(kSequences.begin(), kSequences.end(),
                   [&](const NamedSequence& sequence) { return sequence.body == body; });
  return found == kSequences.end() ? Kind::kIgnored : found->kind;
}

struct Escape {
  Kind kind;
  size_t length;  // 0: more bytes are needed
};

/// ESC [ parameters, intermediates and a final byte.
Escape ReadControlSequence(std::string_view bytes) {
  size_t end = 2;
  // The Linux console's function keys are ESC [ [ and a letter.
  if (bytes.size() > 2 && bytes[2] == '[') {
    return {Kind::kIgnored, bytes.size() > 3 ? size_t{4} : size_t{0}};
  }
  while (end < bytes.size() && bytes[end] >= 0x20 && bytes[end] <= 0x3F) ++end;
  if (end >= kSequenceBytesMax) return {Kind::kIgnored, end};
  if (end == bytes.size()) return {Kind::kIgnored, 0};
  // A byte that cannot be in a sequence breaks it off and is read for itself.
  if (bytes[end] < 0x40 || bytes[end] > 0x7E) return {Kind::kIgnored, end};
  return {SequenceKey(bytes.substr(2, end - 1)), end + 1};
}

/// Reads what begins with ESC.
Escape ReadEscape(std::string_view bytes) {
  if (bytes.size() < 2) return {Kind::kIgnored, 0};
  if (bytes[1] == kEscape) return {Kind::kIgnored, 1};
  if (bytes[1] == '[') return ReadControlSequence(bytes);
  if (bytes[1] == 'O') {
    if (bytes.size() < 3) return {Kind::kIgnored, 0};
    if (bytes[2] < 0x40 || bytes[2] > 0x7E) return {Kind::kIgnored, 2};
    return {SequenceKey(bytes.substr(2, 1)), 3};
  }
  // Alt and a character that is not ASCII: the character alone.
  if (static_cast<uint8_t>(bytes[1]) >= 0x80) return {Kind::kIgnored, 1};
  return {AltKey(bytes[1]), 2};
}

/// Valid UTF-8 whose only line end is "\n" and that holds no NUL, which would end the line early.
std::string CleanPaste(std::string_view raw) {
  Utf8Stream stream;
  std::string text = stream.Feed(raw);
  text += stream.Finish();
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      clean += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else if (text[i] == '\0') {
      AppendUtf8(kReplacement, &clean);
    } else {
      clean += text[i];
    }
  }
  return clean;
}

}  // namespace

void KeyDecoder::Push(std::string_view bytes) {
  if (bytes.empty()) return;
  bytes_.erase(0, at_);
  at_ = 0;
  if (in_paste_ && paste_stalled_ && bytes[0] == kInterruptByte) Clear();
  paste_stalled_ = false;
  bytes_ += bytes;
}

std::optional<Key> KeyDecoder::Next() {
  while (at_ < bytes_.size()) {
    if (in_paste_) return NextPaste();
    if (bytes_[at_] == kEscape) {
      const Escape escape = ReadEscape(std::string_view(bytes_).substr(at_));
      if (escape.length == 0) return std::nullopt;
      at_ += escape.length;
      in_paste_ = escape.kind == Kind::kPaste;
      if (!in_paste_ && escape.kind != Kind::kIgnored) return Key{escape.kind, ""};
      continue;
    }
    // A tab before text is part of a burst, such as a paste into a terminal that does not mark it.
    const bool tab_in_text =
        bytes_[at_] == '\t' && at_ + 1 < bytes_.size() && !IsControl(bytes_[at_ + 1]);
    if (!IsControl(bytes_[at_]) || tab_in_text) return NextText();
    const Kind kind = ControlKey(bytes_[at_++]);
    if (kind != Kind::kIgnored) return Key{kind, ""};
  }
  return std::nullopt;
}

std::optional<Key> KeyDecoder::NextText() {
  Key key{Kind::kText, ""};
  while (at_ < bytes_.size()) {
    const char byte = bytes_[at_];
    const bool tab_in_text = byte == '\t' && at_ + 1 < bytes_.size() && !IsControl(bytes_[at_ + 1]);
    if (IsControl(byte) && !tab_in_text) break;
    const Utf8Step step = DecodeUtf8(std::string_view(bytes_).substr(at_, 4));
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    const bool valid = step.kind == Utf8Step::Kind::kValid;
    // The controls behind ASCII (C1) are no more text than those in it.
    const bool shown = valid && (step.code_point < 0x80 || step.code_point >= 0xA0);
    AppendUtf8(shown ? step.code_point : kReplacement, &key.text);
    at_ += static_cast<size_t>(step.length);
  }
  if (key.text.empty()) return std::nullopt;
  return key;
}

std::optional<Key> KeyDecoder::NextPaste() {
  const size_t end = bytes_.find(kPasteEnd, at_);
  // The last bytes may be the beginning of the end.
  const size_t held = std::min(bytes_.size() - at_, kPasteEnd.size() - 1);
  const size_t until = end != std::string::npos ? end : bytes_.size() - held;
  if (paste_.size() + (until - at_) > static_cast<size_t>(limits::kLineBytesMax)) {
    paste_too_long_ = true;
    paste_.clear();
  }
  if (!paste_too_long_) paste_.append(bytes_, at_, until - at_);
  at_ = until;
  if (end == std::string::npos) return std::nullopt;
  at_ += kPasteEnd.size();
  Key key{paste_too_long_ ? Kind::kPasteTooLong : Kind::kPaste, CleanPaste(paste_)};
  paste_ = std::string();
  in_paste_ = paste_too_long_ = false;
  return key;
}

void KeyDecoder::Settle() {
  if (in_paste_) {
    paste_stalled_ = true;
    return;
  }
  if (at_ == bytes_.size()) return;
  const bool sequence = bytes_[at_] == kEscape;
  bytes_.clear();
  at_ = 0;
  if (!sequence) AppendUtf8(kReplacement, &bytes_);
}

}  // namespace k3::cli
