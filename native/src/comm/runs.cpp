// Who may overlap with whom; see runs.hpp.
#include "comm/runs.hpp"

#include <cstdint>

namespace ccl_lab {

bool clash(const Work& one, const Work& other) {
  if (!one.program().writes() && !other.program().writes()) return false;
  for (std::size_t a = 0; a < kBufferCount; ++a) {
    const auto begin = reinterpret_cast<std::uintptr_t>(one.binding().base[a]);
    const std::uint64_t nbytes = one.program().bytes(static_cast<Buffer>(a));
    for (std::size_t b = 0; b < kBufferCount; ++b) {
      const auto other_begin = reinterpret_cast<std::uintptr_t>(other.binding().base[b]);
      const std::uint64_t other_nbytes = other.program().bytes(static_cast<Buffer>(b));
      if (nbytes > 0 && other_nbytes > 0 && begin < other_begin + other_nbytes && other_begin < begin + nbytes) return true;
    }
  }
  return false;
}

// Of the oldest `n`.
bool Runs::apart(const Work& next, std::size_t n) const {
  for (std::size_t i = 0; i < n; ++i)
    if (clash(*draining(i).work, next)) return false;
  return true;
}

bool Runs::may_begin(const Work& next) const {
  if (n_draining_ == 0 || n_announced_ > 0) return true;  // what was announced was judged then
  return n_draining_ < kMost && next.overlaps() && apart(next, n_draining_);
}

bool Runs::may_drain(const Work& next) const {
  if (!running_ || n_draining_ + 1 == kMost || !now().work->overlaps() || !now().executor.drainable()) return false;
  return n_announced_ > 0 || (next.overlaps() && apart(next, n_draining_ + 1));
}

bool Runs::may_announce(const Work& next) const {
  if (!running_ || !now().work->overlaps() || !now().executor.entered()) return false;
  const std::size_t n = n_draining_ + 1 + n_announced_;
  return n < kMost && next.overlaps() && next.stall() == nullptr && apart(next, n);
}

void Runs::begin(std::shared_ptr<Work> work) {
  if (n_announced_ > 0) --n_announced_;
  running_ = true;
  now().work = std::move(work);
}

Run& Runs::announce(std::shared_ptr<Work> work) {
  Run& run = announced(n_announced_++);
  run.work = std::move(work);
  return run;
}

void Runs::set_aside() {
  running_ = false;
  ++n_draining_;
}

std::shared_ptr<Work> Runs::take_current() {
  running_ = false;
  std::shared_ptr<Work> work = std::move(now().work);
  if (n_announced_ > 0) first_ = (first_ + 1) % kMost;  // else the same executor again, which has grown to what it needs
  return work;
}

std::shared_ptr<Work> Runs::take_drained() {
  return n_draining_ > 0 && at(0).executor.done() ? take_draining() : nullptr;
}

std::shared_ptr<Work> Runs::take_draining() {
  if (n_draining_ == 0) return nullptr;
  std::shared_ptr<Work> work = std::move(at(0).work);
  first_ = (first_ + 1) % kMost;
  --n_draining_;
  return work;
}

void Runs::withdraw() {
  for (; n_announced_ > 0; --n_announced_) {
    Run& run = announced(n_announced_ - 1);
    run.executor.withdraw();
    run.work.reset();
  }
}

}  // namespace ccl_lab
