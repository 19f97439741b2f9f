// What to do after a look that found nothing: look again, let others run, or sleep.
//
// Is: the spin of one driver, adapted to how long its waits last.
// Is not: a clock or a sleeper: times are handed in, and the driver does what is said.
//
//   enough cores   looks for a quarter of `limit`, then yields between looks until the limit, then sleeps. A sleep that was
//                  over soon should have been waited through: the limit doubles, up to `most` times the configured
//                  spin; a long sleep halves it again.
//   busy cores     a yield that took long gave the core to somebody who computes, for a whole slice of time. Who sleeps is
//                  let back in as soon as it is woken: for the next waits, sleeps where it would have yielded.
//   too few        whoever is waited for may need this core: yields at once, a few times, then sleeps.
//   one core       no other rank wants it: a yield that took long let the system move this rank's bytes, and is what to do again.
//                  (Soft RoCE of a machine of one core: 0.35 GB/s in messages of 1 MiB, 0.27 where it slept instead.)
//
// Even with enough cores the system often puts a rank that was woken on the core of the one that woke it. Two that only
// look would wait there for each other's whole spin, time and again (438 µs for 8 bytes where it should be 4).
//
// Invariants
//  - Never looks without yielding with more ranks than cores, nor with a configured spin of 0.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/cores.hpp"

namespace ccl_lab {

class Patience {
 public:
  enum class Next : std::uint8_t { look, yield, sleep };

  static constexpr int kYields = 16;
  static constexpr int kYieldsToSystem = 64;

  // `most`: how many times spin_ns the limit may become.
  Patience(std::int64_t spin_ns, Sharing with, int most)
      : least_ns_(with == Sharing::nobody ? spin_ns : 0), most_ns_(least_ns_ * most), limit_ns_(least_ns_),
        yields_(with == Sharing::nobody ? 0 : with == Sharing::ranks ? kYields : kYieldsToSystem), judges_(with != Sharing::system) {}

  // Something happened.
  void reset(std::int64_t now_ns) {
    judge_yield(now_ns);
    since_ns_ = 0;
    yielded_ = 0;
  }

  Next next(std::int64_t now_ns) {
    judge_yield(now_ns);
    if (since_ns_ == 0) since_ns_ = now_ns;
    const std::int64_t waited_ns = now_ns - since_ns_;
    if (waited_ns < least_ns_ / 4) return Next::look;
    if (dear_ > 0 || (waited_ns >= limit_ns_ && yielded_ >= yields_)) return Next::sleep;
    ++yielded_;
    yield_ns_ = now_ns;
    return Next::yield;
  }

  void slept(std::int64_t now_ns, std::int64_t for_ns) {
    dear_ = std::max(dear_ - 1, 0);
    if (for_ns < most_ns_) limit_ns_ = std::min(2 * limit_ns_, most_ns_);
    else limit_ns_ = std::max(limit_ns_ / 2, least_ns_);
    reset(now_ns);
  }

  std::int64_t limit_ns() const { return limit_ns_; }

 private:
  static constexpr std::int64_t kDearNs = 500'000;  // several ranks may take their turn in one yield; no slice is shorter
  static constexpr int kDearSleeps = 256;

  void judge_yield(std::int64_t now_ns) {
    if (judges_ && yield_ns_ != 0 && now_ns - yield_ns_ > kDearNs) dear_ = kDearSleeps;
    yield_ns_ = 0;
  }

  std::int64_t least_ns_;
  std::int64_t most_ns_;
  std::int64_t limit_ns_;
  int yields_;
  bool judges_;                // whether yields may be dear
  std::int64_t since_ns_ = 0;
  int yielded_ = 0;
  std::int64_t yield_ns_ = 0;  // when the last yield began; 0: it was judged
  int dear_ = 0;               // sleeps to do instead of yields
};

}  // namespace ccl_lab
