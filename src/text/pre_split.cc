#include "text/pre_split.h"

#include "base/check.h"
#include "text/utf8.h"

namespace k3 {
namespace {

// A segment as one byte of flags and one byte offset for each character.
struct Characters {
  std::string_view text;
  std::vector<uint8_t> flags;    // [n]
  std::vector<uint32_t> starts;  // [n + 1]
};

Characters ReadCharacters(const CharacterClasses& classes, std::string_view text) {
  Characters out{text, {}, {}};
  out.flags.reserve(text.size());
  out.starts.reserve(text.size() + 1);
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    K3_CHECK(step.kind == Utf8Step::Kind::kValid, "text to split must be valid UTF-8");
    out.flags.push_back(classes.Flags(step.code_point));
    out.starts.push_back(static_cast<uint32_t>(at));
    at += step.length;
  }
  out.starts.push_back(static_cast<uint32_t>(at));
  return out;
}

constexpr int64_t kNoMatch = -1;

class Matcher {
 public:
  explicit Matcher(const Characters& characters)
      : text_(characters.text),
        flags_(characters.flags.data()),
        starts_(characters.starts.data()),
        count_(static_cast<int64_t>(characters.flags.size())) {}

  /// The end of the piece that starts at `at`. Every character is matched by some alternative.
  int64_t Match(int64_t at) const {
    const uint8_t flags = flags_[at];
    if (flags & kHanFlag) return SkipWhile(kHanFlag, at);
    // Numbers and newlines can neither open a word nor be the character before one.
    if (!(flags & (kNumberFlag | kNewlineFlag))) {
      const int64_t end = MatchWord(at);
      if (end != kNoMatch) return SkipContraction(end);
    }
    if (flags & kNumberFlag) return MatchNumber(at);
    const int64_t end = MatchSymbols(at);
    return end != kNoMatch ? end : MatchSpaces(at);
  }

 private:
  bool Has(int64_t at, uint8_t mask) const { return at < count_ && (flags_[at] & mask); }
  bool IsSymbol(int64_t at) const {
    return at < count_ && !(flags_[at] & (kSpaceFlag | kLetterFlag | kNumberFlag));
  }
  int64_t SkipWhile(uint8_t mask, int64_t at) const {
    while (Has(at, mask)) ++at;
    return at;
  }

  // Alternatives 2 and 3 before C, each first with the optional character in front.
  int64_t MatchWord(int64_t at) const {
    const bool may_prefix = !(flags_[at] & kLetterFlag);
    int64_t end = may_prefix ? MatchLowerWord(at + 1) : kNoMatch;
    if (end == kNoMatch) end = MatchLowerWord(at);
    if (end == kNoMatch && may_prefix) end = MatchUpperWord(at + 1);
    if (end == kNoMatch) end = MatchUpperWord(at);
    return end;
  }

  // U*W+: if nothing of W follows the longest U*, it gives back up to its last character that is in
  // W too. What stood behind that character is not in W, so W+ takes it alone.
  int64_t MatchLowerWord(int64_t at) const {
    const int64_t upper_end = SkipWhile(kUpperFlag, at);
    if (Has(upper_end, kLowerFlag)) return SkipWhile(kLowerFlag, upper_end);
    for (int64_t i = upper_end; i > at; --i) {
      if (flags_[i - 1] & kLowerFlag) return i;
    }
    return kNoMatch;
  }

  // U+W*.
  int64_t MatchUpperWord(int64_t at) const {
    const int64_t upper_end = SkipWhile(kUpperFlag, at);
    return upper_end == at ? kNoMatch : SkipWhile(kLowerFlag, upper_end);
  }

  // C?: no two of its alternatives start alike, so no order matters.
  int64_t SkipContraction(int64_t at) const {
    if (FoldedLetter(at) != '\'') return at;
    const char first = FoldedLetter(at + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    const char second = first == '\0' ? '\0' : FoldedLetter(at + 2);
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    return at;
  }

  // The character as C compares it, 0 if it is none of C's. Of the characters that fold to an ASCII
  // letter, only U+017F (long s) meets one that C uses.
  char FoldedLetter(int64_t at) const {
    if (at >= count_) return '\0';
    const std::string_view bytes = text_.substr(starts_[at], starts_[at + 1] - starts_[at]);
    if (bytes.size() > 1) return bytes == "\xC5\xBF" ? 's' : '\0';
    const char c = bytes[0];
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }

  int64_t MatchNumber(int64_t at) const {
    int64_t end = at + 1;
    while (end < at + 3 && Has(end, kNumberFlag)) ++end;
    return end;
  }

  int64_t MatchSymbols(int64_t at) const {
    int64_t end = text_[starts_[at]] == ' ' ? at + 1 : at;
    if (!IsSymbol(end)) return kNoMatch;
    while (IsSymbol(end)) ++end;
    return SkipWhile(kNewlineFlag, end);
  }

  // Alternatives 6 to 8: up to the last newline of the run; else all but the last character, which
  // goes with the word behind it, unless nothing follows or it is the only one.
  int64_t MatchSpaces(int64_t at) const {
    int64_t end = at;
    int64_t newline_end = kNoMatch;
    for (; Has(end, kSpaceFlag); ++end) {
      if (flags_[end] & kNewlineFlag) newline_end = end + 1;
    }
    if (newline_end != kNoMatch) return newline_end;
    return end == count_ || end == at + 1 ? end : end - 1;
  }

  std::string_view text_;
  const uint8_t* flags_;
  const uint32_t* starts_;
  int64_t count_;
};

}  // namespace

std::string_view SegmentCutter::Next() {
  size_t at = 0;
  while (at < rest_.size()) {
    if (slice_characters_ == kSliceCharactersMax) {
      slice_characters_ = 0;
      run_characters_ = 0;
      break;
    }
    const Utf8Step step = DecodeUtf8(rest_.substr(at));
    K3_CHECK(step.kind == Utf8Step::Kind::kValid, "text to cut must be valid UTF-8");
    const bool is_space = classes_.Flags(step.code_point) & kPythonSpaceFlag;
    if (is_space != run_is_space_) run_characters_ = 0;
    run_is_space_ = is_space;
    if (run_characters_ == kRunCharactersMax) {
      run_characters_ = 0;
      break;
    }
    ++run_characters_;
    ++slice_characters_;
    at += step.length;
  }
  const std::string_view segment = rest_.substr(0, at);
  rest_.remove_prefix(at);
  return segment;
}

void SplitSegment(const CharacterClasses& classes, std::string_view segment,
                  std::vector<uint32_t>* ends) {
  K3_CHECK(segment.size() <= UINT32_MAX, "a segment is at most 4 GiB");
  const Characters characters = ReadCharacters(classes, segment);
  const Matcher matcher(characters);
  const auto count = static_cast<int64_t>(characters.flags.size());
  for (int64_t at = 0; at < count;) {
    const int64_t end = matcher.Match(at);
    K3_CHECK(end > at, "the pattern matches every character");
    ends->push_back(characters.starts[end]);
    at = end;
  }
}

}  // namespace k3
