// The exact tier for meetings: healthy nodes reduce among themselves, and meet the one that lost a NIC one after the other.
//
// Is: the sweeps of ccl_lab/simulator/meeting_lanes.py that are made for every pair of a node and a chunk, and the fabrics of nodes. Is not: the
// order in which these come, which that file finds and checks. Invariant: each number is the one that exact.cpp finds for the unrolled schedule.
//
// Waves. A message goes from node to node as a chunk, so what a chunk's message and a node's state are at a step follows from the chunk's at the
// node before and the node's at the chunk before. Nodes and chunks are two rows that slide along each other, a node a step: some hundred
// chunks stay in a cache for some steps, the last ones first, and their nodes with them.
#pragma once

#include <cstdint>
#include <span>

#include "vectors.hpp"

namespace ccl_lab::sim {

// around: all nodes of a ring pass on `steps` messages each; before: member p of m passes on chunks p, p - 1, … 0, up to the last member, which
// only gets them; after: chunks m - 1, m - 2, …, p + 2, which come from the last member.
enum class Sweep : std::uint8_t { around = 0, before = 1, after = 2 };

// Batches, as keys: tick * 2^20 + place in it. One row a node, along the ring.
struct BatchSweep {
  Sweep sweep = Sweep::around;
  std::int64_t shift = 0, steps = 0, reducing = 0;  // around: node v passes on chunk v - 1 - shift - s in step s, and adds it if s < reducing
  std::span<std::int64_t> batch;                    // of the last op
  std::span<std::int64_t> free;                     // when the NICs to the next node are
  std::span<const std::int64_t> ticks;              // of each chunk, as keys
  std::span<std::int64_t> came;  // around: when what comes to each node is seen, before and after; before: when chunk m - 2 - t comes to the last
                                 // member at [t]; after: when chunk m - 1 - t comes to member 0 at [t], then when the last chunk does to each
  Target target = Target::best;
};

// The same in ps. Of each kind of memory, and of NICs, what each chunk takes.
struct TimeSweep {
  Sweep sweep = Sweep::around;
  std::int64_t shift = 0, steps = 0, reducing = 0;
  std::span<std::int64_t> clock, tx, rx;                       // of a node's channel, of its NIC, and of the next node's
  std::span<const std::int64_t> latency_ps;                    // [nodes] to the next one
  std::span<const std::int64_t> add, nic;                      // [kinds][chunks]
  std::span<const std::int64_t> memory_kind, tx_kind, rx_kind;  // [nodes]
  std::span<std::int64_t> came;
  Target target = Target::best;
};

// Puts inside nodes: [puts][nodes] in the order of their ops, a node's by batch, turn and op in `order` [nodes][puts].
struct FabricsInput {
  std::int64_t nodes = 0, group = 0, puts = 0, alpha_ps = 0;
  std::span<const std::int64_t> batch;              // -1: not from this node
  std::span<const std::int32_t> source, to;         // local indices
  std::span<const std::int64_t> nbytes;
  std::span<const std::int64_t> bytes_per_s, latency_ps, late_ps;  // [nodes][group]
};

enum class MeetingStatus : std::uint8_t { ok = 0, too_long = 1, bad_input = 3, out_of_memory = 4 };

[[nodiscard]] MeetingStatus sweep_batches(const BatchSweep& in) noexcept;

// too_long: an hour or more, which doubles do not hold.
[[nodiscard]] MeetingStatus sweep_times(const TimeSweep& in) noexcept;

// The order of each node's puts; those that it has not are -1, at the end.
[[nodiscard]] MeetingStatus order_fabrics(const FabricsInput& in, std::span<std::int32_t> order) noexcept;

// Serves each node's puts from `next` [nodes] on, up to the first whose ready_ps [puts][nodes] is below 0.
[[nodiscard]] MeetingStatus serve_fabrics(const FabricsInput& in, std::span<const std::int32_t> order, std::span<const std::int64_t> ready_ps,
                                          std::span<std::int64_t> next, std::span<std::int64_t> tx_ps, std::span<std::int64_t> rx_ps,
                                          std::span<std::int64_t> left_ps, std::span<std::int64_t> seen_ps) noexcept;

}  // namespace ccl_lab::sim
