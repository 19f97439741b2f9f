// The shared-link tier of the simulator: when each op of several schedules happens on links that all transfers share fairly.
//
// Is: a pure function over columns, from event to event. Is not: a checker beyond deadlock and ranges, nor where rates come from
// (sharing_rates.hpp). The meaning of time is written in ccl_lab/simulator/sharing.py; this file and the oracle of the tests follow
// that text. Invariants: no exception leaves; the order in which things of one picosecond are done changes nothing.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"

namespace ccl_lab::sim {

struct SharedInput {
  // All jobs one after the other. `rank` and `peer` are members: rank r of a job is its first member plus r, so that jobs share no
  // member; `late_ps` has a row per member. Links are those of the one topology.
  ExactInput ops;
  std::span<const std::int64_t> job_ops;   // number of ops of each job
  std::span<const std::int32_t> route_of;  // per op: its row of `routes`; -1 where nothing moves
  std::span<const std::int32_t> routes;    // `route_width` links a row, -1 where there are fewer
  std::size_t route_width = 0;
};

// Statuses as of simulate_exact. Cost: O(log ops) an op, and for each time at which flows begin or end, the links and routes that are
// joined to theirs by flows, times the logarithm of their number.
[[nodiscard]] ExactResult simulate_shared(const SharedInput& in, const ExactOutput& out) noexcept;

}  // namespace ccl_lab::sim
