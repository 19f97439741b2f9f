// The one clock of the native code.
//
// Is: CLOCK_MONOTONIC in nanoseconds, equal in all processes of a host.
// Is not: wall-clock time, and not for state machines: those are handed `now_ns` by their driver.
#pragma once

#include <time.h>

#include <cstdint>

namespace ccl_lab {

inline std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace ccl_lab
