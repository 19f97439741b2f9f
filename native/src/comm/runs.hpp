// The runs of one rank that peers may know of: one at a time runs its program, those around it overlap with it.
//
// Is: who is where, and which works may overlap at all. Each run has an executor of its own.
// Is not: what drives them (progress.hpp).
//
//   draining, draining │ current │ announced          oldest first
//   over, but not       its turn   READY is out: what peers put is there when its turn comes
//   confirmed yet
//
// So a sender fills its NICs while the end of the message before it is confirmed, and finds READY there already.
//
// Invariants
//  - Works begin and end in the order of their start.
//  - Of two that overlap neither changes memory that the other uses: what is unconfirmed may be sent again, and what is
//    announced may be written at any time.
//  - No more runs than READYs of a peer have room here: before one enters, the READY that had its slot was used.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/segment.hpp"
#include "comm/work.hpp"
#include "exec/executor.hpp"

namespace ccl_lab {

struct Run {
  Executor executor;
  std::shared_ptr<Work> work;
};

// Whether one of them changes bytes that the other one uses.
bool clash(const Work& one, const Work& other);

class Runs {
 public:
  static constexpr std::size_t kMost = kReadyDepth;

  // Null where none runs.
  const std::shared_ptr<Work>& current() const { return running_ ? now().work : nobody_; }
  Run& now() { return at(n_draining_); }
  const Run& now() const { return runs_[(first_ + n_draining_) % kMost]; }
  std::size_t n_draining() const { return n_draining_; }
  Run& draining(std::size_t i) { return at(i); }
  const Run& draining(std::size_t i) const { return runs_[(first_ + i) % kMost]; }
  std::size_t n_announced() const { return n_announced_; }
  Run& announced(std::size_t i) { return at(n_draining_ + (running_ ? 1 : 0) + i); }

  // Whether `next` may begin although some are draining.
  bool may_begin(const Work& next) const;
  // Whether the current one need not be waited for before `next` begins.
  bool may_drain(const Work& next) const;
  // Whether `next`, which follows all that entered, may enter.
  bool may_announce(const Work& next) const;

  void begin(std::shared_ptr<Work> work);
  Run& announce(std::shared_ptr<Work> work);
  // The current one is over: what is left of it drains.
  void set_aside();
  // The current one is over, and so are all before it.
  std::shared_ptr<Work> take_current();
  // The oldest, where nothing of it is left; null: something is.
  std::shared_ptr<Work> take_drained();
  // The oldest, whatever is left; null: none drains.
  std::shared_ptr<Work> take_draining();
  // Announced ones will not begin.
  void withdraw();

 private:
  Run& at(std::size_t i) { return runs_[(first_ + i) % kMost]; }
  bool apart(const Work& next, std::size_t n) const;

  static_assert(kMost == 4, "one executor for each below");
  std::array<Run, kMost> runs_{Run{Executor(0, kMost), nullptr}, Run{Executor(1, kMost), nullptr}, Run{Executor(2, kMost), nullptr},
                               Run{Executor(3, kMost), nullptr}};
  std::size_t first_ = 0;
  std::size_t n_draining_ = 0;
  std::size_t n_announced_ = 0;
  bool running_ = false;
  const std::shared_ptr<Work> nobody_;
};

}  // namespace ccl_lab
