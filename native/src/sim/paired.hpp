// The exact tier for pairwise exchanges: in step s = 1, 2, … rank r and rank r xor s put a block to each other, and go on when it has come.
//
// Is: all steps of a power of two of ranks, each with NICs of its own. Is not: the finding of an order: in nominal time all ranks take each
// step at one tick, and each link serves one put of each channel in it, so that it serves step by step, and in each channel by channel.
// Invariant: every number is the one that exact.cpp finds for the unrolled schedule.
//
// Blocks. Steps that differ in their last bits alone keep two aligned blocks of ranks to themselves, for as many steps as a block has ranks. Two
// blocks are brought into a cache for 1,024 steps, two tiles of 128 ranks into a nearer one for 16 of them. A tile has 16 rows of 8 ranks that
// are 16 apart: the second one is brought in as the steps permute its columns, so that in each step whole rows meet.
#pragma once

#include <cstdint>
#include <span>

#include "exact.hpp"
#include "partner_tiers_input.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {

// What a rank's put takes on both sides, and their latencies; of NICs by channel, and of the fabric inside nodes.
struct PairedLinks {
  std::span<const std::int64_t> tx_ps, rx_ps, tx_latency_ps, rx_latency_ps;
};

struct PairedInput {
  std::int64_t ranks = 0, group = 0;  // powers of two; the ranks of a node are the next `group` ones
  bool alike = false;                 // all ranks are, and end as one does that puts to itself
  bool in_place = false;              // what has come is copied, once what was put in the same step has left
  std::int64_t first = 1;             // step: 1, or `group`, as it has to be where ranks have several channels
  std::span<const std::int32_t> nic;  // [channels] which of a rank's NICs it uses, 0 to channels - 1
  std::span<const std::int64_t> late_ps;            // [ranks] when it enters
  std::span<const std::int64_t> begin_ps, copy_ps;  // [channels][ranks] when the first step begins, what a copy takes
  PairedLinks far, near;                            // [channels][ranks], [ranks]
  std::int64_t alpha_ps = 0;
  std::span<const std::int64_t> nbytes;                          // [channels] of a put, for rates that change
  std::span<const std::int32_t> tx_link, rx_link;                // [channels][ranks] of NICs, as `changes` numbers them; empty where nothing changes
  std::span<const std::int64_t> tx_bytes_per_s, rx_bytes_per_s;  // [channels][ranks] of NICs
  std::int64_t links = 0;                                         // as many as there are
  ChangeColumns changes = {};
  PartnerTiersInput tiers = {};       // of streams [channels][ranks]; if `alike`, what is added has to follow from the step
  Target target = Target::best;
};

enum class PairedStatus : std::uint8_t { ok = 0, too_long = 1, overflow = 2, bad_input = 3, out_of_memory = 4 };

// finish_ps: [ranks]. too_long: some put takes a good part of the longest time that fits.
[[nodiscard]] PairedStatus simulate_paired(const PairedInput& in, std::span<std::int64_t> finish_ps) noexcept;

}  // namespace ccl_lab::sim
