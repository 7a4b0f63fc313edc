#pragma once
// Monotonic time for measuring. Any thread.

#include <cstdint>

namespace k3 {

/// Nanoseconds since an arbitrary fixed point; never goes back.
int64_t MonotonicNanoseconds();

/// Seconds between two readings of MonotonicNanoseconds.
inline double SecondsBetween(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) * 1e-9;
}

}  // namespace k3
