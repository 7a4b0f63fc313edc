#pragma once
// The pre-split pattern on ICU's regular expressions: slow, independent of pre_split.cc, and linked
// into tests and fuzzers only. One thread at a time; owns its compiled pattern.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace k3 {

class PreSplitOracle {
 public:
  PreSplitOracle();
  ~PreSplitOracle();

  /// The byte offset behind each piece of `segment`, which is valid UTF-8.
  std::vector<uint32_t> Split(std::string_view segment) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace k3
