#pragma once
// Facts about the machine and this process: cores and memory that may really be used (affinity and
// cgroup limits included), and peak memory. Any thread; a fact that cannot be read has its
// documented fallback, never an error.

#include <cstdint>

namespace k3 {

/// Cores this process may run on (affinity mask, rounded-up cgroup quota); at least 1.
int UsableCores();

struct MemoryFacts {
  int64_t total_bytes = 0;      // installed, or the cgroup limit where that is lower
  int64_t available_bytes = 0;  // MemAvailable, or what the cgroup still allows where that is lower
};
MemoryFacts ReadMemoryFacts();

/// The largest resident size this process has had, mapped files included (VmHWM).
int64_t PeakResidentBytes();

/// When this process started, on the clock of MonotonicNanoseconds, to within 10 ms; now when the
/// system does not say.
int64_t ProcessStartNanoseconds();

}  // namespace k3
