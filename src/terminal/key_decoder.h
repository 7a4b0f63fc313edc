#pragma once
// KeyDecoder: bytes from a terminal become keys.
//
//   decoder.Push(bytes);
//   while (std::optional<Key> key = decoder.Next()) ...
//   if (decoder.waiting()) ... read on, and after kKeyWaitMs without a byte: decoder.Settle();
//
// However the bytes are split over calls, the keys are the same, but for text, which comes in as
// long runs as there are. Text is valid UTF-8 without control characters; what is not UTF-8 becomes
// U+FFFD. A paste comes whole and is never taken for keys, whatever is in it. Sequences of unknown
// keys are dropped. A value that owns its bytes; one thread; nothing fails.
// Source: ECMA-48 (control sequences), xterm's ctlseqs (keys, bracketed paste).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace k3::cli {

/// How long a sequence may stay unfinished, as in readline: Esc alone is then known to be Esc.
inline constexpr int kKeyWaitMs = 500;

struct Key {
  enum class Kind {
    kIgnored,  // never returned by Next
    kText,
    kPaste,         // `text` may hold newlines, tabs and control characters, but no CR and no NUL
    kPasteTooLong,  // beyond limits::kLineBytesMax: dropped
    kTab,
    kEnter,
    kNewline,  // Alt-Enter, Shift-Enter
    kInterrupt,
    kEndOfInput,  // Ctrl-D
    kSuspend,
    kClearScreen,
    kBackspace,
    kDelete,
    kLeft,
    kRight,
    kUp,
    kDown,
    kPreviousEntry,  // Ctrl-P
    kNextEntry,      // Ctrl-N
    kHome,
    kEnd,
    kWordLeft,
    kWordRight,
    kKillToStart,
    kKillToEnd,
    kKillWordLeft,
    kKillWordRight,
    kYank,
    kTranspose,
  };
  Kind kind = Kind::kIgnored;
  std::string text;
};

class KeyDecoder {
 public:
  void Push(std::string_view bytes);

  /// The next whole key; nothing when more bytes are needed for one.
  std::optional<Key> Next();

  /// Nothing came for a while. An unfinished sequence is dropped, an unfinished character becomes
  /// U+FFFD; a paste whose end is missing goes on, but Ctrl-C as the next byte drops it.
  void Settle();

  /// Forgets everything.
  void Clear() { *this = KeyDecoder(); }

  /// Whether an unfinished key is held back, so that its end is worth waiting for.
  bool waiting() const { return in_paste_ || at_ < bytes_.size(); }

 private:
  std::optional<Key> NextText();
  std::optional<Key> NextPaste();

  std::string bytes_;
  size_t at_ = 0;  // bytes before are used up
  std::string paste_;
  bool in_paste_ = false;
  bool paste_too_long_ = false;
  bool paste_stalled_ = false;
};

}  // namespace k3::cli
