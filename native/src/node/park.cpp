// Futexes and barriers of waiting ranks; see park.hpp.
#include "node/park.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace ccl_lab::node {

namespace {

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

bool has_membarrier() {
  static const bool found = [] {
    const long commands = membarrier(MEMBARRIER_CMD_QUERY);
    const long wanted = MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    return commands > 0 && (commands & wanted) == wanted &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  }();
  return found;
}

}  // namespace

void Parking::connect(Board* own, Board* leader) {
  own_ = own;
  leader_ = leader;
  fences_ = !has_membarrier();
}

void Parking::announce(Sleep how) const {
  own_->parked.store(static_cast<std::uint32_t>(how), std::memory_order_relaxed);
  leader_->n_parked.fetch_add(1, std::memory_order_seq_cst);
  if (!fences_) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void Parking::sleep(std::int64_t longest_ns) const {
  const std::int64_t ns = std::clamp<std::int64_t>(longest_ns, 0, kLongestNs);
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  futex(&own_->parked, FUTEX_WAIT, static_cast<std::uint32_t>(Sleep::futex), &timeout);
}

void Parking::take_back() const {
  own_->parked.store(0, std::memory_order_relaxed);
  leader_->n_parked.fetch_sub(1, std::memory_order_relaxed);
}

Sleep Parking::wake(Board& board) {
  const auto how = static_cast<Sleep>(board.parked.load(std::memory_order_relaxed));
  if (how == Sleep::awake) return how;
  board.parked.exchange(0, std::memory_order_acq_rel);
  if (how == Sleep::futex) futex(&board.parked, FUTEX_WAKE, 1, nullptr);
  return how;
}

}  // namespace ccl_lab::node
