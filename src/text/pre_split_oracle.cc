#include "text/pre_split_oracle.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <string>

#include "base/check.h"

namespace k3 {
namespace {

// Every class is spelled out, because ICU's own \s and its set precedence are not the release's.
std::string PatternText() {
  const std::string upper = R"([[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]])";
  const std::string lower = R"([[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]])";
  const std::string prefix = R"([^\r\n\p{L}\p{N}]?)";
  const std::string contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  return R"([\p{Script=Han}]+|)" + prefix + upper + "*" + lower + "+" + contraction + "|" + prefix +
         upper + "+" + lower + "*" + contraction + R"(|\p{N}{1,3})" +
         R"(| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*)" + R"(|\p{White_Space}*[\r\n]+)" +
         R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";
}

}  // namespace

struct PreSplitOracle::Pattern {
  std::unique_ptr<icu::RegexPattern> compiled;
};

PreSplitOracle::PreSplitOracle() : pattern_(std::make_unique<Pattern>()) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::UnicodeString text = icu::UnicodeString::fromUTF8(PatternText());
  pattern_->compiled.reset(icu::RegexPattern::compile(text, 0, error));
  K3_CHECK(U_SUCCESS(error), u_errorName(error));
}

PreSplitOracle::~PreSplitOracle() = default;

std::vector<uint32_t> PreSplitOracle::Split(std::string_view segment) const {
  UErrorCode error = U_ZERO_ERROR;
  const icu::UnicodeString text = icu::UnicodeString::fromUTF8(
      icu::StringPiece(segment.data(), static_cast<int32_t>(segment.size())));
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern_->compiled->matcher(text, error));
  matcher->setStackLimit(0, error);
  std::vector<uint32_t> ends;
  uint32_t bytes = 0;
  int32_t units = 0;
  while (matcher->find(error)) {
    K3_CHECK(matcher->start(error) == units, "the pattern matches every character");
    std::string piece;
    text.tempSubStringBetween(units, matcher->end(error)).toUTF8String(piece);
    bytes += static_cast<uint32_t>(piece.size());
    units = matcher->end(error);
    ends.push_back(bytes);
  }
  K3_CHECK(U_SUCCESS(error) && units == text.length(), u_errorName(error));
  return ends;
}

}  // namespace k3
