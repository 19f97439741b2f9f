// The exact tier for schedules in which every rank puts something to every other rank, none of it waiting for anything: direct algorithms.
//
// Is: the puts of rounds (d, k), in which each rank puts to the one d nodes and k places further on, other nodes first. Is not: what comes after
// them (ccl_lab/simulator/pairs.py). Invariant: every number is the one that exact.cpp finds for the unrolled schedule, or the status says
// that this evaluation does not apply.
//
// Order. All puts are of one batch, so links are served by turns, which go to puts in the order in which they are written: round by round. The
// puts of a node to one other node, `group` rounds of them, use NICs that no other put of these rounds uses, and if they take turns 0 to U - 1 of
// each NIC, with none left over, those of the next node begin at turn U of every NIC: by induction turns are known, and a NIC serves
// node after node (a *block*), each in the same order. It is dealt out for one block, and checked; if it leaves a turn over, or nodes use their
// NICs in different ways, each turn is dealt out for all nodes (pair_turns.hpp). Where steps are a timetable NICs serve round after round, or node after
// node, so that it is dealt out for a block of each two kinds of nodes, whose puts may come in pieces (pair_cuts.hpp, pair_block.hpp).
//
// Merging. Nodes whose links, late ranks and so on repeat after `units` nodes are the same set of equations turned by that many nodes, which
// has one solution: so times repeat as well, and node u stands for u + units. Of equal nodes one is evaluated, which puts to itself.
//
// Copies. In place a lane copies what came in a round, once what it put to the same rank has left; its rank ends at the latest of: when either has,
// and what all copies from that one on take, since a memory makes them one after the other, in an order that is known before (pair_copies.hpp, pair_orders.hpp).
// So each put adds that to when it has left and arrived, and none of these times is kept.
//
// Tiers. What switches add depends on both nodes, so none stands for another one; but nothing waits for what arrives, so it is added to that only.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "exact.hpp"
#include "pair_cuts.hpp"
#include "pair_tiers.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {

// Columns of NICs are [nics][units], of ranks [group][units], of lanes [channels * group][units]; lane c * group + l: rank l on channel c.
struct PairsInput {
  std::int64_t nodes = 0, units = 0, group = 0, nics = 0, channels = 0;
  std::int64_t alpha_ps = 0;                // how long a transfer occupies its links beyond its bytes
  std::span<const std::int32_t> nic;        // [channels * group] of the node; those of ranks come in the order in which ops are written
  std::span<const std::int64_t> bytes;      // [channels] of every put
  std::span<const std::int64_t> tx_bytes_per_s, tx_latency_ps, rx_bytes_per_s, rx_latency_ps;                       // of NICs
  std::span<const std::int64_t> near_tx_bytes_per_s, near_tx_latency_ps, near_rx_bytes_per_s, near_rx_latency_ps;  // of ranks, inside nodes
  std::span<const std::int64_t> late_ps;
  std::span<const std::int32_t> tx_link, rx_link;  // [nics][units], as `changes` numbers them; empty where nothing changes
  std::span<const std::int32_t> odd_node, odd_nic;  // nodes, rising, whose lanes have other NICs: [odd nodes][channels * group]; then units == nodes
  std::int64_t few = 0;                            // of PairTurnsInput
  std::int64_t most_work = std::numeric_limits<std::int64_t>::max();  // words of bits that may be looked at
  std::int64_t links = 0;                          // as many as there are
  ChangeColumns changes = {};
  std::span<const std::int64_t> copy_ps;  // [channels * group][units]: what a copy of what came takes; empty where nothing is copied as it comes
  bool flushes = false;  // sums wait for what their lanes put
  Target target = Target::best;
  PairTiersInput tiers = {};  // where switches add latencies; then units == nodes
  PairCutsInput cuts = {};  // where steps are a timetable; then kinds repeat after `units`, `nic` and `bytes` are those of kind 0, and no node is odd
};

enum class PairsStatus : std::uint8_t { ok = 0, too_long = 1, overflow = 2, bad_input = 3, out_of_memory = 4 };

// Of each lane: when all that comes to it is there, and when all that it puts has left; at least when its rank enters. places: where in nominal
// time it comes to its sum (pair_lasts.hpp); empty where nobody asks. dealt: how many turns there are, where they were dealt for all nodes; else 0.
struct PairsOutput {
  std::span<std::int64_t> arrived_ps, left_ps;
  std::span<std::int64_t> places;
  std::int64_t dealt = 0;
};

[[nodiscard]] PairsStatus simulate_pairs(const PairsInput& in, PairsOutput& out) noexcept;

}  // namespace ccl_lab::sim
