// Moments that cost next to nothing to take, and are made times of the clock later.
//
// Is: the count of the processor's time stamp counter where it goes on evenly and alike on all cores, else the clock; and the line
//     through two looks at both that makes a count nanoseconds of base/clock.hpp.
// Is not: a clock of its own, nor safe for threads: it belongs to whoever takes the moments.
//
//   ticks ──┬─────────────┬────●────┤    a count within reach of the last look: kReachNs, and no more than lies between the two
//         look          look
//   ns    ──┴─────────────┴────●────┤
//
// Invariants
//  - Off by less than 1 µs, however long it goes on: within kReachNs CLOCK_MONOTONIC, which is slewed by 500 ppm at most, strays 0.5 µs
//    at most from the line of another time, and each look is right to half of what it took (some 30 ns).
//  - Counts converted in their order give times in order.
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/clock.hpp"

namespace ccl_lab {

// Whether the processor says that its counter never changes its pace, and the system trusts it. Asked once.
bool has_even_ticks();

// One moment on both.
struct Look {
  std::int64_t ticks = 0;
  std::int64_t ns = 0;
};

// The line through two looks.
class TickScale {
 public:
  static constexpr std::int64_t kReachNs = 500'000;
  static constexpr std::int64_t kLeastNs = 20'000;  // between looks: nearer ones tell no pace

  explicit TickScale(Look first) : last_(first) {}

  bool reaches(std::int64_t ticks) const {
    return static_cast<std::uint64_t>(ticks) - static_cast<std::uint64_t>(last_.ticks) <= reach_;
  }
  // False where it is too near the one before to tell anything.
  bool add(Look look);
  // Of a count within reach, or just before the last look.
  std::int64_t ns_of(std::int64_t ticks) {
    const std::int64_t ns = last_.ns + static_cast<std::int64_t>(static_cast<double>(ticks - last_.ticks) * ns_per_tick_);
    return latest_ns_ = std::max(latest_ns_, ns);
  }

 private:
  Look last_;
  double ns_per_tick_ = 0;   // 0: not known yet
  std::uint64_t reach_ = 0;  // in ticks
  std::int64_t latest_ns_ = INT64_MIN;
};

class TickClock {
 public:
  TickClock() : counts_(has_even_ticks()), scale_(look()) {}

  std::int64_t now() const {
#if defined(__x86_64__)
    if (counts_) return static_cast<std::int64_t>(__rdtsc());
#endif
    return now_ns();
  }
  // False: look_again(), once all counts that were taken before have been converted.
  bool reaches(std::int64_t ticks) const { return !counts_ || scale_.reaches(ticks); }
  void look_again();
  std::int64_t ns_of(std::int64_t ticks) { return counts_ ? scale_.ns_of(ticks) : ticks; }

 private:
  Look look() const;

  bool counts_;
  TickScale scale_;
};

}  // namespace ccl_lab
