// How a rank of the node waits when spinning would be wrong, and how it is woken.
//
// Is: a futex in the rank's board for a caller, or its doorbell for a progress thread that sleeps in ppoll.
// Is not: a policy: when to spin, yield or sleep is the driver's choice (group.cpp).
//
// A rank that publishes something pays one load of a line that nobody writes: `n_parked`. No wake-up is lost though
// publishing has no fence: the sleeper makes every processor pass one.
//
//   sleeper                                          publisher
//     parked = 1; ++n_parked                           line.tag = ...            (store)
//     membarrier on all cores, or a fence              [fence, where the kernel has no membarrier]
//     looks once more; nothing: sleeps                 n_parked != 0: wakes      (load)
//
// Invariants
//  - A sleep ends after kLongestNs whatever happens, so that aborts and deadlines are seen.
#pragma once

#include <atomic>
#include <cstdint>

#include "node/board.hpp"

namespace ccl_lab::node {

enum class Sleep : std::uint32_t { awake = 0, futex = 1, doorbell = 2 };

class Parking {
 public:
  static constexpr std::int64_t kLongestNs = 20'000'000;

  // `leader` is the board of the node's lowest rank.
  void connect(Board* own, Board* leader);

  bool fences() const { return fences_; }
  // True where somebody sleeps; call wake() then.
  bool anyone() const {
    // A read-modify-write is the fence that the thread sanitizer understands too.
    if (fences_) own_->n_parked.fetch_add(0, std::memory_order_seq_cst);
    return leader_->n_parked.load(std::memory_order_relaxed) != 0;
  }

  // The sleeper: announce, look again, then sleep or take it back.
  void announce(Sleep how) const;
  void sleep(std::int64_t longest_ns) const;
  void take_back() const;

  // Wakes the owner of `board` if it sleeps; returns how it slept.
  static Sleep wake(Board& board);

 private:
  Board* own_ = nullptr;
  Board* leader_ = nullptr;
  bool fences_ = true;
};

}  // namespace ccl_lab::node
