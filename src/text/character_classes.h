#pragma once
// CharacterClasses: the Unicode properties that the K3 pre-split pattern asks for, one byte of
// flags for each code point in a two-stage table of about 40 KB. Built once from ICU's data
// (Unicode 15 in ICU 72) by the constructor and owned by the Tokenizer; immutable afterwards, any
// thread.

#include <cstdint>
#include <vector>

namespace k3 {

/// Flags of one code point. The pattern's other sets follow from these.
enum CharacterFlag : uint8_t {
  kLetterFlag = 1,         // \p{L}
  kNumberFlag = 2,         // \p{N}
  kSpaceFlag = 4,          // \s, which is White_Space
  kNewlineFlag = 8,        // \r or \n
  kUpperFlag = 16,         // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
  kLowerFlag = 32,         // [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
  kHanFlag = 64,           // \p{Han}, which is Script=Han
  kPythonSpaceFlag = 128,  // str.isspace(): White_Space and U+001C to U+001F
};

class CharacterClasses {
 public:
  CharacterClasses();

  /// The flags of a code point up to U+10FFFF.
  uint8_t Flags(char32_t code_point) const {
    return blocks_[block_of_[code_point / kBlockSize] * kBlockSize + code_point % kBlockSize];
  }
  /// The same of a code point below 128.
  uint8_t AsciiFlags(uint8_t ascii) const { return blocks_[ascii]; }

 private:
  static constexpr uint32_t kBlockSize = 256;

  std::vector<uint16_t> block_of_;  // [0x110000 / kBlockSize]
  std::vector<uint8_t> blocks_;     // [distinct blocks, kBlockSize], that of ASCII first
};

}  // namespace k3
