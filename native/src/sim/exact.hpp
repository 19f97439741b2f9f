// The exact tier of the simulator: when each op of a schedule happens on modelled links, in whole picoseconds.
//
// Is: a pure function over columns, one pass over the ops in a static order. Is not: a checker of schedules beyond
// deadlock and ranges, and not a model of sharing: a link serves one op at a time, in static order.
// The meaning of every kind of op is specified in ccl_lab/simulator/exact.py; this file and the oracle of the tests
// follow that text. Invariants: no exception leaves; outputs are written only where the status is ok (or deadlock, for
// `level`); time never depends on the order in which memory is visited.
#pragma once

#include <cstdint>
#include <span>

namespace ccl_lab::sim {

// Rates that change: from `from_ps` on the link has this rate. By link, then by time.
struct ChangeColumns {
  std::span<const std::int32_t> link;
  std::span<const std::int64_t> from_ps, bytes_per_s;
};

// One row per op, except the last block. Programs are given by op order within (rank, channel).
struct ExactInput {
  std::span<const std::int32_t> rank;
  std::span<const std::int32_t> channel;
  std::span<const std::uint8_t> kind;          // ccl_lab::Kind
  std::span<const std::int32_t> peer;          // -1: none
  std::span<const std::int32_t> sig_channel;   // -1: raises no counter
  std::span<const std::int32_t> value;         // of a wait
  std::span<const std::int64_t> work_bytes;    // bytes that the links or the memory engine move for this op
  std::span<const std::int64_t> hold_ps;       // how long a transfer occupies its links beyond its bytes
  std::span<const std::int64_t> compute_ps;    // duration of a compute
  std::span<const std::int64_t> ready_ps;      // no memory of another rank is touched before this
  std::span<const std::int64_t> request_ps;    // latency of a get's request
  std::span<const std::int32_t> link_a;        // links of the path; the same twice where one link does it all
  std::span<const std::int32_t> link_b;

  std::span<const std::uint8_t> link_ticks;        // one row per link: whether a byte takes a tick of nominal time (order.hpp)
  std::span<const std::int64_t> link_bytes_per_s;
  std::span<const std::int64_t> link_latency_ps;
  std::span<const std::int64_t> late_ps;           // one row per rank: when it enters

  std::span<const std::int64_t> tier_ps = {};      // one row per op, or none at all: latency of its path beyond that of the links
  std::span<const std::int64_t> nominal_bytes = {};  // what it takes in nominal time; none at all: as `work_bytes`
  ChangeColumns changes = {};
  std::span<const std::int32_t> step = {};  // one row per op where steps are a timetable (order.hpp), or none at all; of a job that has none: -1
};

struct ExactOutput {
  std::span<std::int64_t> begin_ps;   // the channel came to the op
  std::span<std::int64_t> end_ps;     // the channel went on
  std::span<std::int64_t> start_ps;   // the first byte moved
  std::span<std::int64_t> leave_ps;   // the last byte left the source
  std::span<std::int64_t> arrive_ps;  // the last byte, and the signal, are visible
  std::span<std::int32_t> level;      // number of its batch in the static order; -1: never reached
  std::span<std::int64_t> finish_ps;  // one row per rank
};

enum class ExactStatus : std::uint8_t {
  ok = 0,
  deadlock = 1,       // `op` waits for a value that its counter never reaches; `detail` is the value it does reach
  overflow = 2,       // `op` happens after 2^62 ps (53 days)
  bad_op = 3,         // a column of `op` is out of range; op -1: the changes
  out_of_memory = 4,
};

struct ExactResult {
  ExactStatus status = ExactStatus::ok;
  std::int64_t op = -1;
  std::int64_t detail = 0;
};

// A link of this rate or more takes no time: rounding up would give every op at least 1 ps.
inline constexpr std::int64_t kInstant = std::int64_t{1} << 62;

// Picoseconds that `nbytes` need at `bytes_per_s` (above 0), rounded up; saturates at 2^62.
[[nodiscard]] std::int64_t duration_ps(std::int64_t nbytes, std::int64_t bytes_per_s) noexcept;

// Cost: O(ops log ops). All spans of a row kind have equal length.
[[nodiscard]] ExactResult simulate_exact(const ExactInput& in, const ExactOutput& out) noexcept;

}  // namespace ccl_lab::sim
