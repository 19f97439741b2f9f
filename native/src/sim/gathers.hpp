// What every node of a hierarchical all_reduce does after its rings: each owner puts the slices it finished to the other ranks of its node.
//
// Is: the exact tier for those puts, node by node, since nothing in one node touches another. Is not: the rings (rings.hpp), nor what comes
// before them (an ordinary schedule of one node). Invariant: puts are served in the static order (batch, turn, op) of order.hpp, in which a
// slice that ended at batch b is put at batch b + 1, to the next rank first; fabrics take no nominal time. Owners come in the order in which
// their puts are written.
#pragma once

#include <cstdint>
#include <span>

namespace ccl_lab::sim {

// Ranks of a node are numbered 0 to group - 1; nodes of one class have the same rates, latencies and lateness.
struct GathersInput {
  std::int64_t nodes = 0, group = 0, slices = 0, classes = 0;  // slices of each owner
  std::int64_t alpha_ps = 0;
  std::span<const std::int64_t> owners;                  // [classes][owners] ranks of a node that finish slices
  std::span<const std::int64_t> bytes;                   // [owners][slices]
  std::span<const std::int64_t> rows;                    // [owners]: nodes, or 1 where an owner's slices end alike in all of them
  std::span<const std::int64_t> end_ps, end_batch;       // owner by owner [rows][slices]
  std::span<const std::int64_t> class_of;                // [nodes]
  std::span<const std::int64_t> bytes_per_s, late_ps;    // [classes][group], of each direction of a rank's port
  std::span<const std::int64_t> tx_latency_ps, rx_latency_ps;
  std::span<const std::int64_t> tx_free_ps, rx_free_ps;  // when the ports are free at first
};

// finish_ps[nodes][group]: raised to when a rank's puts have left and all slices have arrived. False: columns do not fit, or no memory.
[[nodiscard]] bool simulate_gathers(const GathersInput& in, std::span<std::int64_t> finish_ps) noexcept;

}  // namespace ccl_lab::sim
