// The exact tier for hierarchical all_to_all: blocks meet inside a node, then cross to its own local index of each other node in turn.
//
// Is: the puts inside nodes, and those of hops 1, 2, …, in which the ranks of each node put to those of the node so many further on. Is not: what
// comes after them (ccl_lab/simulator/rails.py). Invariant: every number is the one that exact.cpp finds for the unrolled schedule, or the
// status says that this evaluation does not apply.
//
// Order. The puts inside nodes take no ticks and are of one batch: round by round, each link once a round and channel. Before each hop every rank waits
// as often, for what was raised in that batch, so that the puts of a hop are of one batch too, and those of the next hop of a later one. In
// a hop the NICs of two nodes serve no others, so that turns are dealt out for two nodes alone; where NICs are lost, for each two *maps* of
// local indices to NICs that there are.
//
// Tiers. Nothing waits for what arrives from other nodes, so what switches add to that is added to it only (pairs.hpp).
//
// Plain nodes: where NICs have one rate and one latency, and no rank is late, what a rank puts in a hop is one maximum and one sum.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"
#include "pair_tiers.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {

// Columns of NICs are [nics][units], of lanes [lanes][units], of ranks inside nodes [group][classes]. Nodes come again after `units` (pairs.hpp).
// Lanes: the ranks of a node on one channel, or, where channels share NICs, on each of them, channel by channel.
struct RailsInput {
  std::int64_t nodes = 0, units = 0, group = 0, nics = 0, puts = 0, classes = 0;
  std::int64_t hop_ps = 0;  // what came arrives so much later for each hop that is left: in nominal time, to tell which one was the last
  std::int64_t alpha_ps = 0;
  std::span<const std::int32_t> nic;       // [maps][lanes] of the node; map 0 is the usual one
  std::span<const std::int32_t> map_of;    // [units]
  std::span<const std::int64_t> bytes;     // [lanes][puts] that a rank puts to another node, in order; -1: no put
  std::int64_t channel = 0;                // that is evaluated: it meets the others inside nodes alone; -1: all of them
  std::span<const std::int64_t> near_bytes;  // [channels] of a put inside a node
  std::span<const std::int64_t> tx_bytes_per_s, tx_latency_ps, rx_bytes_per_s, rx_latency_ps;                       // of NICs
  std::span<const std::int64_t> near_tx_bytes_per_s, near_tx_latency_ps, near_rx_bytes_per_s, near_rx_latency_ps;  // of ranks, by class
  std::span<const std::int64_t> near_late_ps;
  std::span<const std::int32_t> class_of;  // [units]: nodes of a class are alike inside
  std::span<const std::int64_t> late_ps;
  std::span<const std::int32_t> tx_link, rx_link;  // [nics][units], as `changes` numbers them; empty where nothing changes
  std::int64_t links = 0;                          // as many as there are
  ChangeColumns changes = {};
  PairTiersInput tiers = {};                       // where switches add latencies; then units == nodes
  Target target = Target::best;
};

enum class RailsStatus : std::uint8_t { ok = 0, overflow = 2, bad_input = 3, out_of_memory = 4 };

// Of each rank: when all that comes from other nodes is there, and when all that it puts has left; of each class, when all that comes from
// inside the node is there, and what it puts there has left. At least when a rank enters.
struct RailsOutput {
  std::span<std::int64_t> arrived_ps, left_ps;
  std::span<std::int64_t> seen_ps, near_left_ps;  // [lanes][classes]
};

[[nodiscard]] RailsStatus simulate_rails(const RailsInput& in, RailsOutput& out) noexcept;

}  // namespace ccl_lab::sim
