// The exact tier for a double binary tree over nodes with chains inside them (ccl_lab/planner/all_reduce_double_binary_tree.py).
//
// Is: its rounds, node by node. A node (a *unit*) takes from a round what came from its parents and children; nodes that are alike, are in
// the same state but for one shift in time, and get the same but for that shift, are evaluated once. Is not: an approximation: every number is
// the one that exact.cpp finds for the unrolled schedule, or the status says that this evaluation does not apply.
//
// Order. Steps are a timetable, so who is served when is known: in a step a node puts to at most one other and hears from at most one, so
// that turns on NICs are those of two nodes, and turns on fabrics and memories those of one (tree_unit.hpp).
//
// Shifts. What a round makes of a state and messages is maxima of sums of them, so it shifts with them. What does not shift, when ranks
// enter, is part of the state at first, and when the receiver of a message enters matters until the sender is later than that. What passes a
// NIC whose rate changes is evaluated each time.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"

namespace ccl_lab::sim {

// Node i has the ranks from first_rank[i] up to first_rank[i + 1]. The chain of slice c begins at its local rank c * ranks / slices.
struct TreesInput {
  std::int64_t nodes = 0, slices = 0, depth = 0, nics = 0;  // depth: chunks of a tree and slice; nics: of a node
  std::int64_t count = 0, itemsize = 1;                     // elements of the message, which is cut in 2 * slices * depth parts
  std::int64_t alpha_ps = 0;                                // how long a transfer occupies its links beyond its bytes
  bool merge = true;                                        // false: every node is evaluated in every round, for tests
  std::span<const std::int32_t> first_rank;                 // [nodes + 1]
  std::span<const std::int32_t> parent, level, color;       // [2][nodes]: -1 at roots; hops to the root; of the edge to the parent
  std::span<const std::uint16_t> nic;                       // [nodes][4][slices]: up and down in tree 0, up and down in tree 1
  std::span<const std::int64_t> bytes_per_s, latency_ps;    // by link: ranks' tx, rx, memory, then NICs' tx, rx, node by node
  std::span<const std::int64_t> late_ps;                    // [ranks]
  // [2 trees][up, down][nodes][slices]: latency of the path between a node and its parent beyond that of the NICs; may be empty.
  std::span<const std::int64_t> tier_ps = {};
  ChangeColumns changes = {};  // of NICs
};

struct TreesOutput {
  std::span<std::int64_t> finish_ps;  // [ranks]
  std::int64_t rounds = 0, kinds = 0;
  std::int64_t evaluated = 0, crossed = 0;  // rounds of nodes, and puts between nodes, that were not taken from others
};

enum class TreesStatus : std::uint8_t {
  ok = 0,
  unlike = 1,    // an edge, rank or NIC that is not as above, a link inside a node whose rate changes
  overflow = 2,  // an op happens after 2^58 ps (3 days), or takes more than a minute
  turns = 3,     // more than 64 puts share a link in a step
  out_of_memory = 4,
};

// Cost: 0.1 us a node and edge in a round, and 0.01 us an op that is evaluated. Memory: up to some hundred MB where no nodes are alike.
[[nodiscard]] TreesStatus simulate_trees(const TreesInput& in, TreesOutput& out) noexcept;

}  // namespace ccl_lab::sim
