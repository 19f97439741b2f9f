// A round of work on mapped memory, cut into tasks that any rank of the node may run for all.
//
// Is: the claims of one round: each rank owns a share of the tasks, and takes from other shares when its own is through,
//     so that ranks without a core cost nothing but their absence.
// Is not: aware of what a task does.
//
//   claim of rank r   phase << 32 | next task of r's share        swapped by whoever takes one
//   ran of rank r     phase << 32 | tasks that r has run          stored when no task of its share is left, and of others none
//
// A rank with a core of its own waits a little before it looks at the shares of others: whoever has a core is about to be through, and
// a claim that another core has looked at must be had back from there in the next round (far apart: 260 ns).
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
    published_ = kNothing;
    patience_ = core.n <= core.n_cores ? kPatience : 0;
  }

  // The next task to run; false when none is left, or none but of others who may still be at them.
  bool claim(const Core& core, std::uint64_t& task) {
    const std::uint64_t n_victims = patience_ > 0 ? 1 : n_;
    for (; victim_ < n_victims; ++victim_) {
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
    if (published_ != mine_) {
      core.own->ran.store(phase_ << 32 | mine_, std::memory_order_release);
      published_ = mine_;
      if (mine_ > 0 && core.parking.anyone()) core.wake_all();
    }
    std::uint64_t total = 0;
    for (const Member& member : core.members) {
      const std::uint64_t ran = member.board->ran.load(std::memory_order_acquire);
      const auto ahead = static_cast<std::int32_t>(static_cast<std::uint32_t>(ran >> 32) - static_cast<std::uint32_t>(phase_));
      if (ahead > 0) return true;
      if (ahead == 0) total += ran & 0xffffffffu;
    }
    if (total == n_tasks_) return true;
    if (patience_ > 0) --patience_;
    return false;
  }

  std::uint64_t phase() const { return phase_; }
  // Whose share the last claim was from.
  std::uint64_t owner() const { return owner_; }

 private:
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  static constexpr int kPatience = 64;  // 2 us

  std::uint64_t phase_ = 0;
  std::uint64_t n_tasks_ = 0;
  std::uint64_t n_ = 1;
  std::uint64_t victim_ = 0;
  std::uint64_t mine_ = 0;
  std::uint64_t owner_ = 0;
  std::uint64_t published_ = kNothing;
  int patience_ = 0;                // looks at the others' counts that are left before their shares are looked at
};

}  // namespace ccl_lab::node
