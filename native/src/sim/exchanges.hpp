// The exact tier for ranks that all run one program of exchanges, some of which share NICs: halving-doubling around lost NICs.
//
// Is: events, one a put, in the static order (batch, turn, op) of order.hpp; batches as in flow.hpp. Is not: the check that ranks run one
// program (ccl_lab/simulator/in_step.py). Invariant: where the status is ok all times are those of exact.cpp; merging changes nothing.
//
// Merging. Most ranks have equal links and enter at one time: what one does, all do at that time, each with a partner that does the same.
// One *member* stands for them. When a row comes to a put, or to a wait for a signal, whose partner is another member, a rank is one from
// then on, with all that is known of the typical one: around a lost NIC 2, 4, 8, … of them. Nominal time has no rates, and nobody is ahead
// of the typical rank in it, so no member ever puts to a rank before its time; if one did, all ranks are evaluated.
// At the end, once ranks only meet others of their node, nodes in which ranks are in the same states end alike: one of them goes on.
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
  bool merge = true;                                      // false: every rank is evaluated, for tests
};

enum class ExchangesStatus : std::uint8_t { ok = 0, overflow = 2, bad_input = 3, unsupported = 5, out_of_memory = 6, deadlock = 7 };

// members: ranks that were evaluated; the others were alike from first to last.
struct ExchangesResult {
  ExchangesStatus status = ExchangesStatus::ok;
  std::int64_t members = 0;
};

// finish_ps [ranks]: when each rank ends.
[[nodiscard]] ExchangesResult simulate_exchanges(const ExchangesInput& in, std::span<std::int64_t> finish_ps) noexcept;

}  // namespace ccl_lab::sim
