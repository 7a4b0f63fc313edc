#pragma once
// K3_CHECK(condition, message): aborts with the place and the message when an invariant of this
// program is broken. Never for bad input, which is a Status. Stays on in release builds.

namespace k3 {

/// Prints the failed check to stderr and aborts. `message` may be null.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);

}  // namespace k3

#define K3_CHECK(condition, message)                                \
  do {                                                              \
    if (!(condition)) [[unlikely]] {                                \
      ::k3::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                               \
  } while (false)
