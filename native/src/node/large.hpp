// Large messages: buffers are read, reduced and written in place, by whichever rank runs.
//
// Is: the state of one collective on mapped or plain buffers; mapped.cpp and staged.cpp advance it.
// Is not: for messages that fit a slot (small.cpp).
//
//   header: where my buffers lie ──► all headers seen ──► every buffer mapped ──► one round of tasks ──► over
//                                          │
//                                          ├──► some plain: read by the kernel (pulled.cpp), if it may and that pays
//                                          └──► else segment by segment through the stages (staged.cpp)
//
// Invariants
//  - No rank leaves while another may still touch its buffers.
//  - Which way is taken follows from the headers alone, so all ranks take the same.
#pragma once

#include <array>
#include <bit>

#include "node/core.hpp"
#include "node/tasks.hpp"

namespace ccl_lab::node {

struct Large {
  Round round;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunks = 0;         // of a unit
  bool streaming = false;

  bool alone = false;               // each rank sums for itself
  bool early = false;               // all inputs were staged before the headers were published
  // Through the stages; or the pieces of a reduction, or the rounds of a swap.
  std::uint64_t segment = 0;        // which one
  std::uint64_t n_segments = 0;
  std::uint64_t segment_bytes = 0;  // of a block
  std::uint64_t first_phase = 0;

  // Pulled.
  std::uint64_t part_bytes = 0;       // of a block, that one rank sums
  std::uint64_t peer = 0;             // which one is read, and how far
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> pulled;  // bytes of the sums of each peer that are here
};

// What the rank that decides said of the next call of a size: whether the kernel will copy, so that staging early would be in vain;
// or how stages are written.
class Foretold {
 public:
  bool says(const Call& call) const { return entries_[at(call)][bits(call)]; }
  void hear(const Call& call, bool said) { entries_[at(call)][bits(call)] = said; }

 private:
  static std::size_t at(const Call& call) { return static_cast<std::size_t>(call.collective); }
  static std::size_t bits(const Call& call) { return static_cast<std::size_t>(std::bit_width(call.block_bytes)); }
  std::array<std::array<bool, 65>, kCollectiveCount> entries_{};
};

// How a unit's block is cut for `workers` at a time.
std::uint64_t chunk_bytes_for(Collective collective, std::uint64_t block_bytes, std::uint64_t n_units, int n, int n_cores);

// True where the outputs of all ranks would not stay in the caches: stores past them pay for what is not read first.
bool outgrows_caches(const Core& core);

// Whether all of this rank's input, if it is plain, fits the stage before the header is published; and staging it there.
bool fits_early(const Core& core);
// True where only a trial tells how stages are to be written: some who read them share the core, and some do not. Not of sums, whose
// times vary so much that trials cost more than they find.
bool either_stores_may_pay(const Core& core);
void stage_early(Core& core);

Turn step_large(Core& core, Large& large);
Turn step_mapped(Core& core, Large& large);
Turn step_staged(Core& core, Large& large);
Turn step_pulled(Core& core, Large& large);
// After all headers, by route; the first stage.
int begin_staged(Core& core, Large& large);
int begin_pulled(Core& core, Large& large);

}  // namespace ccl_lab::node
