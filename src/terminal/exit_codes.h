#pragma once
// Exit codes of the program, for what ends it from inside and from a signal alike.

namespace k3::cli {

inline constexpr int kExitOk = 0;  // also when the reader of standard output went away
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

}  // namespace k3::cli
