// The exact tier for pairwise exchanges whose ranks are not in step: in step s rank r and its partner put a block to each other, and go on when
// it has come; NICs are shared or lost, or ranks no power of two, of which some rest in a step (ccl_lab/planner/all_to_all_paired.py).
//
// Is: every put, in the order of nominal time (order.hpp), in a few numbers for each rank and link. Is not: a table of ops, and no steps of ranks
// that are in step (paired.hpp). Invariant: every number is the one that exact.cpp finds for the unrolled schedule.
//
// Order. All puts between nodes take as many ticks, which are counted as one here. A rank that waits goes on in the first batch of a tick, and puts
// in the next one; in place it copies in between, at once or when its own put has left. Puts inside nodes take no ticks: there it goes on two
// batches later, in place four. So puts are in every other batch, and what happens in between needs none. A put whose links serve no other one in
// its batch is timed at once; the others take turns in the order in which they are written.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "exact.hpp"
#include "partner_tiers_input.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {

// Stream c * ranks + r is rank r on channel c.
struct PartnersInput {
  std::int64_t ranks = 0, nics = 0, channels = 0;
  bool in_place = false;              // what has come is copied, once what was put in the same step has left; then on one channel
  std::span<const std::int32_t> node;                  // [ranks]
  std::span<const std::int32_t> nic;                   // [streams] of all NICs
  std::span<const std::int64_t> bytes;                 // [channels] of a put, of at most two lengths
  std::span<const std::int64_t> late_ps;               // [ranks] when it enters
  std::span<const std::int64_t> begin_ps, copy_ps;     // [streams] when the first step begins, what a copy takes
  std::int64_t alpha_ps = 0;                           // how long a transfer occupies its links beyond its bytes
  std::span<const std::int64_t> bytes_per_s, latency_ps;  // of links: of each NIC sending, receiving, then of each rank inside its node
  std::span<const std::int32_t> link;                  // of those of NICs, as `changes` numbers them; empty where nothing changes
  std::int64_t links = 0;                              // as many as there are
  ChangeColumns changes = {};
  PartnerTiersInput tiers = {};                        // of streams
  bool side_by_side = true;                            // false: never several ranks at a time, for tests
  std::int64_t most_puts = std::numeric_limits<std::int64_t>::max();  // that may be told one by one
  Target target = Target::best;
};

enum class PartnersStatus : std::uint8_t { ok = 0, too_long = 1, overflow = 2, bad_input = 3, out_of_memory = 4, too_many = 5, out_of_order = 6 };  // the last one: of rows alone

struct PartnersOutput {
  std::span<std::int64_t> finish_ps;  // [ranks]
  std::int64_t puts = 0;              // that were timed
  std::int64_t turns = 0;             // of them, those that took turns with others
};

// Cost: some 25 ns a put, 3 to 8 in octets (partner_octets.hpp), 1 to 2 in rows (partner_rows.hpp). too_many: they would be more than most_puts one by
// one. too_long: some put takes a good part of the longest time that fits.
[[nodiscard]] PartnersStatus simulate_partners(const PartnersInput& in, PartnersOutput& out) noexcept;

}  // namespace ccl_lab::sim
