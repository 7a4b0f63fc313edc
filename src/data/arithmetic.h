#pragma once
// How the tasks of chat_tasks.h work out sums and differences: digit by digit from the right, as on
// paper. Plain functions of numbers that are not negative; any thread; nothing fails.

#include <cstdint>
#include <string>

namespace k3::tasks {

/// "7+5=12, 4+8+1=13, 3+0+1=4. So 432." for 347 + 85.
std::string WorkOutSum(int64_t a, int64_t b);

/// "7-5=2, 14-8=6, 3-0-1=2. So 262." for 347 - 85; the other way round it starts with
/// "347 - 85 turned round: " and ends with -262.
std::string WorkOutDifference(int64_t a, int64_t b);

}  // namespace k3::tasks
