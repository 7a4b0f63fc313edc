#pragma once
// The K3 pre-splitter: cuts text into the pieces inside which byte pairs are merged.
//
//   SegmentCutter cutter(classes, text);
//   for (auto segment = cutter.Next(); !segment.empty(); segment = cutter.Next()) {
//     ends.clear();
//     SplitSegment(classes, segment, &ends);
//   }
//
// Text is first cut into segments that bound the work of a regular expression (400,000 characters,
// and 25,000 in a row that are all white or all not); each is then matched alone, so lookahead ends
// with it. SplitSegment is the release's pattern written by hand, with the semantics of a
// backtracking engine (leftmost alternative first, U* gives back so that W+ can match):
//
//   1 [\p{Han}]+                         5  ?[^\s\p{L}\p{N}]+[\r\n]*
//   2 [^\r\n\p{L}\p{N}]?U*W+C?           6 \s*[\r\n]+
//   3 [^\r\n\p{L}\p{N}]?U+W*C?           7 \s+(?!\S)
//   4 \p{N}{1,3}                         8 \s+
//   U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]], W = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
//   C = (?i:'s|'t|'re|'ve|'m|'ll|'d), folded in Unicode: U+017F counts as s
//
// Time is linear: a character is looked at a bounded number of times whatever the text. Text must
// be valid UTF-8. Views are the caller's; the functions are pure and may run on any thread. Source:
// the tokenizer code of the K3 release.

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/character_classes.h"

namespace k3 {

/// Code points in a slice; slices are independent of each other.
inline constexpr int64_t kSliceCharactersMax = 400'000;
/// Consecutive code points of one kind (white or not, by str.isspace) in a segment.
inline constexpr int64_t kRunCharactersMax = 25'000;

class SegmentCutter {
 public:
  /// Both arguments must outlive the cutter.
  SegmentCutter(const CharacterClasses& classes, std::string_view text)
      : classes_(classes), rest_(text) {}

  /// The next segment, empty at the end of the text.
  std::string_view Next();

 private:
  size_t CutRun() const;

  const CharacterClasses& classes_;
  std::string_view slice_;  // what is left of the slice
  std::string_view rest_;   // of the text, behind the slice
};

/// Appends the byte offset behind each piece of `segment` to `ends`; the last is its size. A
/// segment is at most 4 GiB.
void SplitSegment(const CharacterClasses& classes, std::string_view segment,
                  std::vector<uint32_t>* ends);

/// The same without a look whether the segment is valid UTF-8; the caller knows that it is.
void SplitValidSegment(const CharacterClasses& classes, std::string_view segment,
                       std::vector<uint32_t>* ends);

}  // namespace k3
