// The exact tier for partners that swap many blocks at every step, lane by lane: ranks need not be in step.
//
// Is: events, one for all puts of a lane (a channel of a rank) that come in a row, in the static order (batch, turn, op) of order.hpp; batches as
// in flow.hpp. Is not: the check of what lanes do (ccl_lab/simulator/swap_lanes.py). Invariant: where the status is ok all times are those of exact.cpp.
//
// Copies and sums take a batch each. Those of several channels of a rank meet in its memory: all that come up to some batch are evaluated once
// one of them ends there, since nothing can come before that any more. Where sums are put one by one each put takes another batch: they are
// evaluated at once, and until the last of these batches memory and links must be used by nobody else.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"
#include "swap_links.hpp"

namespace ccl_lab::sim {

// give: sums, each of which is put, as the next row says, before the next one.
enum class SwapStep : std::uint8_t { put = 0, wait = 1, work = 2, give = 3 };

// What lanes do, a row for each call of the planner; a rank does it on all channels, or not at all.
struct SwapsInput {
  std::int64_t ranks = 0, channels = 0, alpha_ps = 0;
  std::span<const std::uint8_t> step;
  std::span<const std::int64_t> times, some;    // how often: all ranks alike, or, where some >= 0, a row of `by_rank`; 0: not at all
  std::span<const std::int64_t> apart;          // peers: rank xor `apart`
  std::span<const std::int64_t> raise, raises;  // of a wait: the first row, and how many, of puts of its peer that it waits for, all of them
  std::span<const std::int64_t> nbytes, ticks;  // [rows][channels]; ticks: of a put, in nominal time
  std::span<const std::int64_t> blocks;         // of a row: a row of `by_rank`, of how many times as many bytes and ticks; -1: once
  std::span<const std::int32_t> by_rank;        // [..][ranks]
  std::span<const std::int64_t> tier;           // of a put: a row of `tier_of` [..][channels][ranks], of `tier_ps`; -1: none
  std::span<const std::uint8_t> tier_of;
  std::span<const std::int64_t> tier_ps;        // what switches add to latencies
  std::span<const std::int32_t> node_of, tx, rx;          // tx, rx: [channels][ranks], NICs as links
  std::span<const std::int64_t> bytes_per_s, latency_ps;  // by link: ranks' tx, rx, memory, then NICs
  std::span<const std::int64_t> late_ps;                  // [ranks]
  ChangeColumns changes = {};
};

// finish_ps [ranks]: when each rank ends.
[[nodiscard]] SwapStatus simulate_swaps(const SwapsInput& in, std::span<std::int64_t> finish_ps) noexcept;

}  // namespace ccl_lab::sim
