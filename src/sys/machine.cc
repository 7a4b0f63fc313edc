#include "sys/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "base/clock.h"

namespace k3 {
namespace {

/// The number after `key` in a /proc file, in bytes when the line says kB; -1 when absent.
int64_t ProcValue(const char* path, const std::string& key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(key, 0) != 0) continue;
    std::istringstream fields(line.substr(key.size()));
    int64_t value = -1;
    std::string unit;
    fields >> value >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return -1;
}

/// The number in a one-line file; -1 when absent or "max".
int64_t FileValue(const char* path) {
  std::ifstream in(path);
  int64_t value = -1;
  if (!(in >> value)) return -1;
  return value;
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    cores = std::max(CPU_COUNT(&set), 1);
  } else {
    cores = static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  }
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) {
    cores = static_cast<int>(std::clamp<int64_t>((quota + period - 1) / period, 1, cores));
  }
  return cores;
}

MemoryFacts ReadMemoryFacts() {
  MemoryFacts facts;
  facts.total_bytes = std::max<int64_t>(ProcValue("/proc/meminfo", "MemTotal:"), 0);
  facts.available_bytes = std::max<int64_t>(ProcValue("/proc/meminfo", "MemAvailable:"), 0);
  const int64_t limit = FileValue("/sys/fs/cgroup/memory.max");
  const int64_t used = FileValue("/sys/fs/cgroup/memory.current");
  if (limit > 0) {
    facts.total_bytes = std::min(facts.total_bytes, limit);
    // Page cache counts as used but is given back on demand.
    const int64_t cached =
        std::max<int64_t>(ProcValue("/sys/fs/cgroup/memory.stat", "inactive_file "), 0);
    if (used >= 0) {
      facts.available_bytes =
          std::min(facts.available_bytes, std::max<int64_t>(limit - used + cached, 0));
    }
  }
  return facts;
}

int64_t PeakResidentBytes() {
  return std::max<int64_t>(ProcValue("/proc/self/status", "VmHWM:"), 0);
}

int64_t ProcessStartNanoseconds() {
  const int64_t now = MonotonicNanoseconds();
  std::ifstream in("/proc/self/stat");
  std::string line;
  std::getline(in, line);
  // The program's name, in parentheses, may hold spaces; field 22 counts from the one behind it.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return now;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    if (!(fields >> field)) return now;
  }
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double age = static_cast<double>(since_boot.tv_sec) +
                     static_cast<double>(since_boot.tv_nsec) * 1e-9 -
                     std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return now - static_cast<int64_t>(std::max(age, 0.0) * 1e9);
}

}  // namespace k3
