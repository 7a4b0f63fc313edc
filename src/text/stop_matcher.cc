#include "text/stop_matcher.h"

#include <fmt/format.h>

namespace k3 {
namespace {

std::vector<int32_t> FindBorders(std::string_view bytes) {
  std::vector<int32_t> borders(bytes.size() + 1, 0);
  int32_t length = 0;
  for (size_t end = 1; end < bytes.size(); ++end) {
    while (length > 0 && bytes[static_cast<size_t>(length)] != bytes[end]) {
      length = borders[static_cast<size_t>(length)];
    }
    if (bytes[static_cast<size_t>(length)] == bytes[end]) ++length;
    borders[end + 1] = length;
  }
  return borders;
}

}  // namespace

Result<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stops) {
  if (std::ssize(stops) > kStopStringsMax) {
    return InvalidArgument(
        fmt::format("{} stop strings, expected at most {}", stops.size(), kStopStringsMax));
  }
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || std::ssize(stops[i]) > kStopStringBytesMax) {
      return InvalidArgument(fmt::format("stop string {} has {} bytes, expected 1 to {}", i + 1,
                                         stops[i].size(), kStopStringBytesMax));
    }
    matcher.stops_.push_back({stops[i], FindBorders(stops[i])});
  }
  return matcher;
}

std::string StopMatcher::Feed(std::string_view bytes) {
  if (matched_) return "";
  const std::string_view held = Held();
  // The stream's unseen end is held + bytes; the first `count` bytes of it go out.
  const auto first = [&](size_t count) {
    if (count <= held.size()) return std::string(held.substr(0, count));
    return std::string(held).append(bytes.substr(0, count - held.size()));
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!Step(bytes[i])) continue;
    return first(held.size() + i + 1 - stops_[*matched_].bytes.size());
  }
  return first(held.size() + bytes.size() - Held().size());
}

/// Takes one byte; true when it completes a match.
bool StopMatcher::Step(char byte) {
  std::optional<size_t> longest;
  for (size_t i = 0; i < stops_.size(); ++i) {
    Stop& stop = stops_[i];
    while (stop.reached > 0 && stop.bytes[stop.reached] != byte) {
      stop.reached = static_cast<size_t>(stop.borders[stop.reached]);
    }
    if (stop.bytes[stop.reached] == byte) ++stop.reached;
    if (stop.reached < stop.bytes.size()) continue;
    if (!longest || stop.bytes.size() > stops_[*longest].bytes.size()) longest = i;
  }
  if (longest) matched_ = longest;
  return longest.has_value();
}

/// The longest end of the stream that may still become a match, as the start of a stop string.
std::string_view StopMatcher::Held() const {
  std::string_view held;
  for (const Stop& stop : stops_) {
    if (stop.reached > held.size()) held = std::string_view(stop.bytes).substr(0, stop.reached);
  }
  return held;
}

std::string StopMatcher::Finish() {
  if (matched_) return "";
  std::string held(Held());
  for (Stop& stop : stops_) stop.reached = 0;
  return held;
}

}  // namespace k3
