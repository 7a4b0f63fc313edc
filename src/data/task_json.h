#pragma once
// What the makers of tasks (chat_tasks.cc, tool_tasks.cc) share: JSON in short, and words to draw.
// Plain functions; any thread; nothing fails. The tables live as long as the program.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "config/json.h"

namespace k3::tasks {

inline JsonValue Text(std::string_view text) { return JsonValue(std::string(text)); }
inline JsonValue Integer(int64_t value) { return JsonValue(value); }
JsonValue Object(JsonValue::Members members);
JsonValue Array(JsonValue::Items items);

JsonValue UserMessage(std::string_view content);
/// Without reasoning when that is empty.
JsonValue AssistantMessage(std::string_view reasoning, std::string_view content);

/// Common English words, all different, in lower case.
std::span<const std::string_view> Words();
std::span<const std::string_view> Cities();

/// A name such as Drealtou, of two or three syllables: so many that one has to be copied and cannot
/// be known.
std::string MakeUpName(Random& random);

/// One of the cities or, half the time, a made-up name.
std::string DrawPlace(Random& random);

/// `count` different words, at most Words().size().
std::vector<std::string> DrawWords(Random& random, int64_t count);

/// A number from `low` to `high`, both included.
int64_t DrawBetween(Random& random, int64_t low, int64_t high);

template <typename T>
const T& DrawFrom(Random& random, std::span<const T> choices) {
  return choices[random.NextBelow(choices.size())];
}

template <typename T>
void Shuffle(Random& random, std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.NextBelow(i)]);
}

}  // namespace k3::tasks
