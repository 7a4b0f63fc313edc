#include "text/character_classes.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <array>
#include <map>
#include <string>
#include <string_view>

namespace k3 {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

// A cased letter belongs to one of the two word sets, a caseless one and a mark to both.
uint8_t CategoryFlags(UCharCategory category) {
  switch (category) {
    case U_UPPERCASE_LETTER:
    case U_TITLECASE_LETTER:
      return kLetterFlag | kUpperFlag;
    case U_LOWERCASE_LETTER:
      return kLetterFlag | kLowerFlag;
    case U_MODIFIER_LETTER:
    case U_OTHER_LETTER:
      return kLetterFlag | kUpperFlag | kLowerFlag;
    case U_NON_SPACING_MARK:
    case U_ENCLOSING_MARK:
    case U_COMBINING_SPACING_MARK:
      return kUpperFlag | kLowerFlag;
    case U_DECIMAL_DIGIT_NUMBER:
    case U_LETTER_NUMBER:
    case U_OTHER_NUMBER:
      return kNumberFlag;
    default:
      return 0;
  }
}

bool IsHan(UChar32 code_point) {
  UErrorCode error = U_ZERO_ERROR;
  return uscript_getScript(code_point, &error) == USCRIPT_HAN && U_SUCCESS(error);
}

// White space is of the categories that separate, or a control character.
bool MayBeSpace(UCharCategory category) {
  return category == U_SPACE_SEPARATOR || category == U_LINE_SEPARATOR ||
         category == U_PARAGRAPH_SEPARATOR || category == U_CONTROL_CHAR;
}

uint8_t FlagsOf(UChar32 code_point, UCharCategory category) {
  uint8_t flags = CategoryFlags(category);
  if (IsHan(code_point)) {
    flags = static_cast<uint8_t>((flags & ~(kUpperFlag | kLowerFlag)) | kHanFlag);
  }
  if (MayBeSpace(category) && u_isUWhiteSpace(code_point)) flags |= kSpaceFlag | kPythonSpaceFlag;
  if (code_point >= 0x1C && code_point <= 0x1F) flags |= kPythonSpaceFlag;
  if (code_point == '\r' || code_point == '\n') flags |= kNewlineFlag;
  return flags;
}

struct FlatTable {
  uint8_t* flags;  // [kCodePoints]
};

// Called by ICU for each range of one category. Unassigned, private and surrogate code points have
// none of the flags.
UBool FillRange(const void* context, UChar32 start, UChar32 limit, UCharCategory category) {
  if (category == U_UNASSIGNED || category == U_PRIVATE_USE_CHAR || category == U_SURROGATE) {
    return true;
  }
  const auto* table = static_cast<const FlatTable*>(context);
  for (UChar32 c = start; c < limit; ++c) table->flags[c] = FlagsOf(c, category);
  return true;
}

}  // namespace

CharacterClasses::CharacterClasses() {
  std::string flat(kCodePoints, '\0');
  const FlatTable table{reinterpret_cast<uint8_t*>(flat.data())};
  u_enumCharTypes(FillRange, &table);

  // Most blocks are of one value throughout, and those are few values.
  constexpr uint16_t kNone = UINT16_MAX;
  std::array<uint16_t, 256> uniform;
  uniform.fill(kNone);
  std::map<std::string_view, uint16_t> seen;
  for (uint32_t start = 0; start < kCodePoints; start += kBlockSize) {
    const std::string_view block = std::string_view(flat).substr(start, kBlockSize);
    const auto next = static_cast<uint16_t>(blocks_.size() / kBlockSize);
    const bool is_uniform = block.substr(1) == block.substr(0, kBlockSize - 1);
    uint16_t& number = is_uniform ? uniform[static_cast<uint8_t>(block[0])]
                                  : seen.try_emplace(block, kNone).first->second;
    if (number == kNone) {
      number = next;
      blocks_.insert(blocks_.end(), block.begin(), block.end());
    }
    block_of_.push_back(number);
  }
}

}  // namespace k3
