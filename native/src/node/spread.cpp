// Where the ranks of a node run; see spread.hpp.
#include "node/spread.hpp"

#include <algorithm>
#include <array>

namespace ccl_lab::node {

namespace {

constexpr std::int64_t kLongestHoldNs = 4'000'000'000;
constexpr std::int64_t kBadIfWithinNs = 20'000'000;   // of a move
constexpr std::int64_t kGoodAfterNs = 1'000'000'000;

}  // namespace

int Spread::better_core(const std::vector<int>& cores, int place, const cpu_set_t& allowed) {
  const int mine = cores[static_cast<std::size_t>(place)];
  if (mine < 0 || std::find(cores.begin() + place + 1, cores.end(), mine) != cores.end()) return -1;
  std::array<int, CPU_SETSIZE> ranks{};
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE) ++ranks[static_cast<std::size_t>(core)];
  int best = -1;
  int least = mine < CPU_SETSIZE ? ranks[static_cast<std::size_t>(mine)] - 1 : 0;  // so many others are here: elsewhere must be fewer
  for (std::size_t core = 0; core < CPU_SETSIZE && least > 0; ++core) {
    if (!CPU_ISSET(core, &allowed) || ranks[core] >= least) continue;
    best = static_cast<int>(core);
    least = ranks[core];
  }
  return best;
}

void Spread::look(const Core& core, std::int64_t now_ns) {
  waits_ = kWaitsPerLook;
  const int mine = ::sched_getcpu();
  if (core.own->core.load(std::memory_order_relaxed) != mine + 1) core.own->core.store(mine + 1, std::memory_order_relaxed);
  mates_.clear();
  known_ = mine >= 0;
  for (int place = 0; place < core.n; ++place) {
    const int at = place == core.place ? mine : core.members[static_cast<std::size_t>(place)].board->core.load(std::memory_order_relaxed) - 1;
    cores_[static_cast<std::size_t>(place)] = at;
    known_ = known_ && at >= 0;
    if (place != core.place && at == mine) mates_.push_back(place);
  }
  if (!known_ || mates_.empty() || now_ns < next_ns_) return;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int target = better_core(cores_, core.place, allowed);
  if (target < 0) return;
  move(core, target, allowed, now_ns);
}

void Spread::move(const Core& core, int target, const cpu_set_t& allowed, std::int64_t now_ns) {
  if (moved_ns_ != 0 && now_ns - moved_ns_ > kGoodAfterNs) hold_ns_ = kFirstHoldNs;
  moved_ns_ = now_ns;
  next_ns_ = now_ns + hold_ns_;
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(static_cast<std::size_t>(target), &there);
  if (::sched_setaffinity(0, sizeof there, &there) != 0) return;
  ::sched_setaffinity(0, sizeof allowed, &allowed);
  core.own->core.store(::sched_getcpu() + 1, std::memory_order_relaxed);
}

void Spread::disturbed(std::int64_t now_ns) {
  if (moved_ns_ != 0 && now_ns - moved_ns_ < kBadIfWithinNs) {
    hold_ns_ = std::min(8 * hold_ns_, kLongestHoldNs);
    moved_ns_ = 0;
  }
  next_ns_ = std::max(next_ns_, now_ns + hold_ns_);
}

}  // namespace ccl_lab::node
