// The exact tier for ranks that all run one program of exchanges, some of which share NICs: halving-doubling around lost NICs.
//
// Is: events, one a put, in the static order (batch, turn, op) of order.hpp; batches as in flow.hpp. Is not: the check that ranks run one
// program (ccl_lab/simulator/in_step.py). Invariant: where the status is ok all times are those of exact.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace ccl_lab::sim {

enum class Step : std::uint8_t { put = 0, wait = 1, signal = 2, flush = 3, work = 4 };

// What every rank does, a row an op. Partners are rank xor `apart`; each wait directly follows what its rank puts to that partner, or what it
// waits for was raised before that.
struct ExchangesInput {
  std::int64_t ranks = 0, alpha_ps = 0;
  std::span<const std::uint8_t> step, near;    // near: between ranks of one node
  std::span<const std::int64_t> apart, ticks;  // ticks: of a put, in nominal time
  std::span<const std::int64_t> raise;         // of a wait: the row of the put or signal that it waits for
  std::span<const std::int64_t> nbytes, row;   // bytes of each rank: all as many, or, where row >= 0, a row of `bytes` [rows][ranks]
  std::span<const std::int64_t> bytes;
  std::span<const std::int32_t> tx, rx;                   // [ranks] NICs, as links
  std::span<const std::int64_t> bytes_per_s, latency_ps;  // by link: ranks' tx, rx, memory, then NICs
  std::span<const std::int64_t> late_ps;                  // [ranks]
};

enum class ExchangesStatus : std::uint8_t { ok = 0, overflow = 2, bad_input = 3, unsupported = 5, out_of_memory = 6, deadlock = 7 };

// finish_ps [ranks]: when each rank ends.
[[nodiscard]] ExchangesStatus simulate_exchanges(const ExchangesInput& in, std::span<std::int64_t> finish_ps) noexcept;

}  // namespace ccl_lab::sim
