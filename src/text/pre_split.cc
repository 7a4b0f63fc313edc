#include "text/pre_split.h"

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace k3 {
namespace {

constexpr int64_t kNoMatch = -1;

// Matches on the bytes themselves. ASCII, most of most texts, is one look into a small table.
class Matcher {
 public:
  Matcher(const CharacterClasses& classes, std::string_view text)
      : classes_(classes), text_(text.data()), size_(static_cast<int64_t>(text.size())) {}

  /// The end of the piece that starts at `at`. Every character is matched by some alternative.
  int64_t Match(int64_t at) const {
    const Character first = CharacterAt(at);
    if (first.flags & kHanFlag) return SkipWhile(kHanFlag, at);
    // Numbers and newlines can neither open a word nor be the character before one.
    if (!(first.flags & (kNumberFlag | kNewlineFlag))) {
      const int64_t end = MatchWord(at, first);
      if (end != kNoMatch) return SkipContraction(end);
    }
    if (first.flags & kNumberFlag) return MatchNumber(at);
    const int64_t end = MatchSymbols(at);
    return end != kNoMatch ? end : MatchSpaces(at);
  }

 private:
  struct Character {
    uint8_t flags;
    int32_t length;  // bytes
  };

  Character CharacterAt(int64_t at) const {
    const auto first = static_cast<uint8_t>(text_[at]);
    if (first < 0x80) return {classes_.AsciiFlags(first), 1};
    const Utf8Step step = ReadValidUtf8(text_ + at);
    return {classes_.Flags(step.code_point), step.length};
  }
  int64_t SkipWhile(uint8_t mask, int64_t at) const {
    while (at < size_) {
      const Character character = CharacterAt(at);
      if (!(character.flags & mask)) break;
      at += character.length;
    }
    return at;
  }

  // Alternatives 2 and 3 before C, each first with the optional character in front.
  int64_t MatchWord(int64_t at, Character first) const {
    const bool may_prefix = !(first.flags & kLetterFlag);
    int64_t end = may_prefix ? MatchLowerWord(at + first.length) : kNoMatch;
    if (end == kNoMatch) end = MatchLowerWord(at);
    if (end == kNoMatch && may_prefix) end = MatchUpperWord(at + first.length);
    if (end == kNoMatch) end = MatchUpperWord(at);
    return end;
  }

  // U*W+: if nothing of W follows the longest U*, it gives back up to its last character that is in
  // W too. What stood behind that character is not in W, so W+ takes it alone.
  int64_t MatchLowerWord(int64_t at) const {
    int64_t given_back_end = kNoMatch;
    while (at < size_) {
      const Character character = CharacterAt(at);
      if (!(character.flags & kUpperFlag)) {
        return character.flags & kLowerFlag ? SkipWhile(kLowerFlag, at + character.length)
                                            : given_back_end;
      }
      at += character.length;
      if (character.flags & kLowerFlag) given_back_end = at;
    }
    return given_back_end;
  }

  // U+W*.
  int64_t MatchUpperWord(int64_t at) const {
    const int64_t upper_end = SkipWhile(kUpperFlag, at);
    return upper_end == at ? kNoMatch : SkipWhile(kLowerFlag, upper_end);
  }

  // C?: no two of its alternatives start alike, so no order matters.
  int64_t SkipContraction(int64_t at) const {
    if (FoldedLetter(at) != '\'') return at;
    // Of the characters that fold to an ASCII letter, only U+017F (long s) meets one that C uses.
    if (std::string_view(text_ + at + 1, static_cast<size_t>(size_ - at - 1))
            .starts_with("\xC5\xBF")) {
      return at + 3;
    }
    const char first = FoldedLetter(at + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    const char second = first == '\0' ? '\0' : FoldedLetter(at + 2);
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    return at;
  }

  // The byte as C compares it, 0 behind the end.
  char FoldedLetter(int64_t at) const {
    if (at >= size_) return '\0';
    const char c = text_[at];
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }

  int64_t MatchNumber(int64_t at) const {
    for (int i = 0; i < 3 && at < size_; ++i) {
      const Character character = CharacterAt(at);
      if (!(character.flags & kNumberFlag)) break;
      at += character.length;
    }
    return at;
  }

  int64_t MatchSymbols(int64_t at) const {
    const int64_t start = text_[at] == ' ' ? at + 1 : at;
    int64_t end = start;
    while (end < size_) {
      const Character character = CharacterAt(end);
      if (character.flags & (kSpaceFlag | kLetterFlag | kNumberFlag)) break;
      end += character.length;
    }
    return end == start ? kNoMatch : SkipWhile(kNewlineFlag, end);
  }

  // Alternatives 6 to 8: up to the last newline of the run; else all but the last character, which
  // goes with the word behind it, unless nothing follows or it is the only one.
  int64_t MatchSpaces(int64_t at) const {
    int64_t end = at;
    int64_t last = at;
    int64_t newline_end = kNoMatch;
    while (end < size_) {
      const Character character = CharacterAt(end);
      if (!(character.flags & kSpaceFlag)) break;
      last = end;
      end += character.length;
      if (character.flags & kNewlineFlag) newline_end = end;
    }
    if (newline_end != kNoMatch) return newline_end;
    return end == size_ || last == at ? end : last;
  }

  const CharacterClasses& classes_;
  const char* text_;
  int64_t size_;
};

// Every character has one byte that does not continue another.
int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// The bytes of the first kSliceCharactersMax characters, or of all.
size_t SliceBytes(std::string_view text) {
  constexpr size_t kStep = 4096;
  if (static_cast<int64_t>(text.size()) <= kSliceCharactersMax) return text.size();
  int64_t left = kSliceCharactersMax;
  size_t at = 0;
  while (at + kStep <= text.size()) {
    const int64_t characters = CountCharacters(text.substr(at, kStep));
    if (characters > left) break;
    left -= characters;
    at += kStep;
  }
  for (; at < text.size(); ++at) {
    if (CountCharacters(text.substr(at, 1)) == 0) continue;
    if (left == 0) break;
    --left;
  }
  return at;
}

struct Step {
  bool is_space;
  size_t length;
};

Step StepAt(const CharacterClasses& classes, std::string_view text, size_t at) {
  const Utf8Step step = DecodeUtf8(text.substr(at));
  K3_CHECK(step.kind == Utf8Step::Kind::kValid, "text to cut must be valid UTF-8");
  return {(classes.Flags(step.code_point) & kPythonSpaceFlag) != 0,
          static_cast<size_t>(step.length)};
}

// The last place in (begin, end] where an ASCII white character ends before one that is not white;
// `begin` if there is none. A run starts there.
size_t LastWordStart(const CharacterClasses& classes, std::string_view text, size_t begin,
                     size_t end) {
  for (size_t at = end; at > begin; --at) {
    const auto before = static_cast<uint8_t>(text[at - 1]);
    if (before < 0x80 && (classes.AsciiFlags(before) & kPythonSpaceFlag) &&
        !StepAt(classes, text, at).is_space) {
      return at;
    }
  }
  return begin;
}

}  // namespace

std::string_view SegmentCutter::Next() {
  if (slice_.empty()) {
    slice_ = rest_.substr(0, SliceBytes(rest_));
    rest_.remove_prefix(slice_.size());
  }
  const std::string_view segment = slice_.substr(0, CutRun());
  slice_.remove_prefix(segment.size());
  return segment;
}

// Where the slice has to be cut for its first run that is too long; its size if none is. In fewer
// bytes than the limit no run reaches it, so ordinary text needs a look at few of its bytes: from
// the start of one run to the start of the last within the limit.
size_t SegmentCutter::CutRun() const {
  constexpr auto kBytes = static_cast<size_t>(kRunCharactersMax);
  size_t start = 0;  // of a run
  while (slice_.size() - start > kBytes) {
    const size_t window_end = start + kBytes;
    const size_t next = LastWordStart(classes_, slice_, start, window_end);
    if (next > start) {
      start = next;
      continue;
    }
    // One by one, to the first run that starts behind the window.
    size_t at = start;
    bool run_is_space = false;
    for (int64_t characters = 0; at < slice_.size(); ++characters) {
      const Step step = StepAt(classes_, slice_, at);
      if (step.is_space != run_is_space) {
        if (at > window_end) break;
        characters = 0;
      }
      run_is_space = step.is_space;
      if (characters == kRunCharactersMax) return at;
      at += step.length;
    }
    start = at;
  }
  return slice_.size();
}

void SplitSegment(const CharacterClasses& classes, std::string_view segment,
                  std::vector<uint32_t>* ends) {
  K3_CHECK(FindInvalidUtf8(segment) < 0, "text to split must be valid UTF-8");
  SplitValidSegment(classes, segment, ends);
}

void SplitValidSegment(const CharacterClasses& classes, std::string_view segment,
                       std::vector<uint32_t>* ends) {
  K3_CHECK(segment.size() <= UINT32_MAX, "a segment is at most 4 GiB");
  const Matcher matcher(classes, segment);
  const auto size = static_cast<int64_t>(segment.size());
  for (int64_t at = 0; at < size;) {
    const int64_t end = matcher.Match(at);
    K3_CHECK(end > at, "the pattern matches every character");
    ends->push_back(static_cast<uint32_t>(end));
    at = end;
  }
}

}  // namespace k3
