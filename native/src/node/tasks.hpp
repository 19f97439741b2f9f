// A round of work on mapped memory, cut into tasks that any rank of the node may run for all.
//
// Is: the claims of one round: each rank owns a share of the tasks, and takes from other shares when its own is through,
//     so that ranks without a core cost nothing but their absence.
// Is not: aware of what a task does.
//
//   claim of rank r   phase << 32 | next task of r's share        swapped by whoever takes one
//   ran of rank r     phase << 32 | tasks that r has run          stored once, when no task is left for r
//
// Invariants
//  - Every task of a round is run exactly once: a claim carries the round, so a late rank cannot take from the next one.
//  - The round is over when the counts add up, or when a rank is seen in a later round.
#pragma once

#include <cstdint>

#include "node/core.hpp"

namespace ccl_lab::node {

class Round {
 public:
  // Before the header, or whatever else lets the peers in, is published.
  void open(Core& core, std::uint64_t n_tasks) {
    phase_ = ++core.phase;
    resize(core, n_tasks);
    core.own->claim.store(phase_ << 32, std::memory_order_release);
  }
  // Where the number of tasks is known only once the headers were seen.
  void resize(const Core& core, std::uint64_t n_tasks) {
    n_tasks_ = n_tasks;
    n_ = static_cast<std::uint64_t>(core.n);
    victim_ = 0;
    mine_ = 0;
    published_ = false;
  }

  // The next task to run; false when none is left.
  bool claim(const Core& core, std::uint64_t& task) {
    for (; victim_ < n_; ++victim_) {
      const std::uint64_t owner = (static_cast<std::uint64_t>(core.place) + victim_) % n_;
      const std::uint64_t first = owner * n_tasks_ / n_;
      const std::uint64_t size = (owner + 1) * n_tasks_ / n_ - first;
      if (size == 0) continue;
      std::atomic<std::uint64_t>& word = core.members[owner].board->claim;
      std::uint64_t seen = word.load(std::memory_order_acquire);
      while (seen >> 32 == (phase_ & 0xffffffffu) && (seen & 0xffffffffu) < size) {
        if (!word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
        ++mine_;
        task = first + (seen & 0xffffffffu);
        owner_ = owner;
        return true;
      }
    }
    return false;
  }

  // True once all tasks have been run; call when claim() returned false.
  bool over(Core& core) {
    if (!published_) {
      core.own->ran.store(phase_ << 32 | mine_, std::memory_order_release);
      published_ = true;
      if (mine_ > 0 && core.parking.anyone()) core.wake_all();
    }
    std::uint64_t total = 0;
    for (const Member& member : core.members) {
      const std::uint64_t ran = member.board->ran.load(std::memory_order_acquire);
      const auto ahead = static_cast<std::int32_t>(static_cast<std::uint32_t>(ran >> 32) - static_cast<std::uint32_t>(phase_));
      if (ahead > 0) return true;
      if (ahead == 0) total += ran & 0xffffffffu;
    }
    return total == n_tasks_;
  }

  std::uint64_t phase() const { return phase_; }
  // Whose share the last claim was from.
  std::uint64_t owner() const { return owner_; }

 private:
  std::uint64_t phase_ = 0;
  std::uint64_t n_tasks_ = 0;
  std::uint64_t n_ = 1;
  std::uint64_t victim_ = 0;
  std::uint64_t mine_ = 0;
  std::uint64_t owner_ = 0;
  bool published_ = false;
};

}  // namespace ccl_lab::node
