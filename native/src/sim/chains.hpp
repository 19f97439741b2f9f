// The exact tier for chains over all ranks, along which chunks are passed on one after the other: pipelined broadcasts and reductions.
//
// Is: chains in whose order nodes come alike. A node (a *unit*) needs nothing but what the unit before it sends, and sends nothing back, so units
// are evaluated one after the other, each once, for all chunks. Is not: an approximation: every number is the one that exact.cpp finds for the
// unrolled schedule, or the status says that this evaluation does not apply.
//
// Order. The static order (order.hpp) depends on programs and sizes, never on rates, so it is found apart from time: batch by batch, inside
// the unit, from the nominal times of the messages that come in; (tick, place) stands for the number of a batch (rings.hpp). Two units with
// the same stations and links whose messages come in the same pattern, later by some ticks, have the same order: it is found once (`Pattern`).
// A link that two units use, as those of the root's node, where chains begin and end, has to be done with the first one before the other.
//
// Merging. What a unit makes of its messages is maxima of sums of them, and of 0 where no rank is late and nothing changes in time; no
// message comes before 0. So a unit with the same order, rates and latencies as one before, whose messages all come later by one number,
// does all later by that number.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"

namespace ccl_lab::sim {

// Each chain has `length` ranks; the first one sends its chunks, all others wait for a chunk and pass it on, but the last.
struct ChainsInput {
  std::int64_t chains = 0, length = 0, chunks = 0;
  bool adds = false;          // who waits for a chunk adds to it
  bool merge = true;          // false: every unit is evaluated, for tests
  std::int64_t alpha_ps = 0;  // how long a transfer occupies its links beyond its bytes
  std::span<const std::int32_t> rank;              // [chains][length]
  std::span<const std::int32_t> link_a, link_b;    // [chains][length], of the put to the next rank; those of the last are not read
  std::span<const std::int64_t> tier_ps;           // [chains][length] latency beyond that of the links; may be empty
  std::span<const std::int64_t> bytes;             // [chains][chunks]
  std::span<const std::int64_t> nominal_parts;     // [chains] of a chunk: the ticks that it takes
  std::span<const std::int32_t> node_of;           // [ranks]
  std::span<const std::int64_t> bytes_per_s, latency_ps;  // by link; that of rank r's memory is 2 * ranks + r, NICs' begin at 3 * ranks
  std::span<const std::int64_t> late_ps;           // [ranks]
  ChangeColumns changes = {};
};

struct ChainsOutput {
  std::span<std::int64_t> finish_ps;                  // [ranks], raised to when the rank's last op ended and its last chunk left
  std::int64_t units = 0, evaluated = 0, orders = 0;  // units; those whose times, and whose order, were not taken from another
};

enum class ChainsStatus : std::uint8_t {
  ok = 0,
  disorder = 1,   // a link would be used by two units at a time
  overflow = 2,   // an op happens after 2^60 ps (13 days)
  bad_input = 3,
  out_of_memory = 4,
  apart = 5,      // chains do not come to the nodes in one order
  too_long = 6,   // nominal time does not fit
};

// Cost: some 5 ns a chunk and rank, less where units are alike; memory for links, and for the chunks of a unit.
[[nodiscard]] ChainsStatus simulate_chains(const ChainsInput& in, ChainsOutput& out) noexcept;

}  // namespace ccl_lab::sim
