#pragma once
// Random text over alphabets chosen to hurt a tokenizer; linked into tests and fuzzers only.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace k3 {

/// Valid UTF-8 of `characters` draws from cases, scripts, marks, digits, spaces, contractions,
/// emoji and now and then any code point at all. Neighbours tend to come from the same group.
std::string RandomText(Random& random, int64_t characters);

/// `count` copies of `unit`.
std::string Repeat(std::string_view unit, int64_t count);

}  // namespace k3
