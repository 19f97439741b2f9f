// The exact tier for meetings of several nodes that lost NICs: what is neither a sweep over all nodes (meetings.hpp) nor inside one.
//
// Is: puts between any nodes, in the order in which their NICs serve them, and a few chunks that pass all nodes. Is not: who puts what
// (ccl_lab/simulator/meeting_rounds.py). Invariant: each number is the one that exact.cpp finds for the unrolled schedule.
#pragma once

#include <cstdint>
#include <span>

#include "meetings.hpp"

namespace ccl_lab::sim {

// Rows are puts in the order of their ops. Columns of nodes: tx and rx, when their NICs are free.
struct PutsInput {
  std::span<const std::int32_t> source, to;
  std::span<const std::int64_t> ready = {}, tx_for = {}, rx_for = {};  // ps, or nominal ticks: how long either NIC is busy
};

// The rows by (batch, turn, op): in a batch each put gets the first turn that neither of its NICs has given to another.
[[nodiscard]] MeetingStatus order_puts(const PutsInput& in, std::int64_t nodes, std::span<const std::int64_t> batch,
                                       std::span<std::int32_t> order) noexcept;

// Serves the rows of `order`, into left.
[[nodiscard]] MeetingStatus serve_puts(const PutsInput& in, std::span<const std::int32_t> order, std::span<std::int64_t> tx,
                                       std::span<std::int64_t> rx, std::span<std::int64_t> left) noexcept;

// Chunks come to the first node, `came`, which waits for each and puts it to the next; so does every node, and the last one to one more, to
// which they have come afterwards. In batches, as keys, and in ps; columns as of BatchSweep and TimeSweep, nic of kinds by chunks.
[[nodiscard]] MeetingStatus pass_batches_along(std::span<std::int64_t> batch, std::span<std::int64_t> free, std::span<const std::int64_t> ticks,
                                               std::span<std::int64_t> came) noexcept;
[[nodiscard]] MeetingStatus pass_times_along(const TimeSweep& in) noexcept;

}  // namespace ccl_lab::sim
