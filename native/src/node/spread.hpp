// Ranks that share cores, spread over them evenly, and what a rank knows of those on its own core.
//
// Is: where each rank runs, as its board shows; a rank that finds its core too full moves to one that is not, and may be moved
//     again by the system at once: its affinity is what it was. The system itself evens such ranks out late, or never for some
//     microseconds' work: seven of eight on one of two cores take twice the time of four and four.
// Is not: pinning, nor anything on the way of a message: it is asked where a rank waits.
//
// Invariants
//  - Of the ranks on a core only one moves at a time, the last of them, and only where it leaves both cores evener.
//  - Who finds others than ranks where it has moved to, and so waits for their slices of time, waits long before it moves again: the
//    system gives such a core to whom it likes.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "node/core.hpp"

namespace ccl_lab::node {

class Spread {
 public:
  static constexpr int kWaitsPerLook = 64;
  static constexpr std::int64_t kSliceNs = 1'000'000;  // who keeps a core so long is no rank that waits

  // Of a node of `n` ranks.
  explicit Spread(std::size_t n) : cores_(n) { mates_.reserve(n); }

  // `cores[place]` is where a rank runs, -1 if that is not known; `allowed` is what `place` may use. Where it should go; -1: it stays.
  static int better_core(const std::vector<int>& cores, int place, const cpu_set_t& allowed);

  // Once in a while, where this rank waits: shows its core, learns who is on it, moves if that is better.
  void look(const Core& core, std::int64_t now_ns);
  // This rank had its core back only now, `ns` after it gave it away.
  void away(std::int64_t ns, std::int64_t now_ns) {
    if (ns > kSliceNs) disturbed(now_ns);
  }
  // A look is due after so many waits.
  bool due() { return --waits_ <= 0; }
  // Whether all on this rank's core, as far as it knows, have entered the running collective: to give the core up helps nobody then.
  bool all_here_entered(const Core& core) const {
    for (const int mate : mates_)
      if (!same_number(core.header(mate).tag.load(std::memory_order_acquire), core.tag)) return false;
    return known_;
  }

 private:
  void disturbed(std::int64_t now_ns);
  void move(const Core& core, int target, const cpu_set_t& allowed, std::int64_t now_ns);

  static constexpr std::int64_t kFirstHoldNs = 2'000'000;

  std::vector<int> cores_, mates_;  // of all places; the other places on this core
  bool known_ = false;
  int waits_ = 1;
  std::int64_t moved_ns_ = 0, next_ns_ = 0;  // the last move; none before
  std::int64_t hold_ns_ = kFirstHoldNs;      // between moves
};

}  // namespace ccl_lab::node
