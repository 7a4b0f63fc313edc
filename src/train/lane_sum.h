#pragma once
// LaneSum: a sum of squares in float64 in one fixed order, on which neither threads nor the
// compiler have a say. Private to this room.

#include <array>
#include <cstdint>
#include <numeric>

namespace k3::train {

/// Sum of value(i)^2 over [begin, end): lane l takes every eighth element from begin + l on, lane 0
/// also what is left behind whole groups of eight, and the lanes are added in order.
template <typename Value>
double LaneSum(int64_t begin, int64_t end, const Value& value) {
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double x = value(i + lane);
      lanes[static_cast<size_t>(lane)] += x * x;
    }
  }
  for (; i < end; ++i) {
    const double x = value(i);
    lanes[0] += x * x;
  }
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

}  // namespace k3::train
