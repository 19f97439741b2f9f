// Plain buffers, which peers cannot see: segment by segment through stages, which are written past the caches where that pays.
//
//   segment s, half s & 1:
//     owner of a plain input    what peers want of the input -> own stage                              staged = phase
//     all_reduce, reduce        a round of tasks: stages and mapped inputs -> result stage and mapped outputs
//                               owner of a plain output: result stage -> output
//     others, and sums that     every rank: stages and mapped inputs -> own output
//     each rank makes alone                                                                            taken = phase
//   A half is written again when all ranks have taken the segment before the last.
//
// A message that fits a half is staged before the header is published, in the half k & 1 for collective k: who has seen all
// headers reads it at once, and nobody waits at the end, because who has entered a collective has left the one before.
//
// An all_reduce of many needs the round, because every rank summing everything would read n stages n times. A reduce_scatter
// reads each byte once without it, and two ranks move less if both sum all.
#include <algorithm>
#include <cstring>

#include "node/geometry.hpp"
#include "node/large.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

// Where all do the same, a segment is as large as a stage: ranks that share a core change places once for each. From a root
// it is an eighth of the message, so that the others copy while the root does.
constexpr std::uint64_t kLeastSegment = 32 * 1024;
constexpr std::uint64_t kSegmentsOfRoot = 8;
// All of it at once: from a root only so much that the others lose little by coming after it.
constexpr std::uint64_t kEarlyOfRoot = 64 * 1024;
// Sums that every rank makes anew, in bytes read by each, are nearer than those that one makes for all.
constexpr std::uint64_t kSumsAlone = 128 * 1024;

enum Stage : int { kCopyIn = 10, kEveryoneIn = 11, kTasks = 12, kCopyOut = 13, kEveryoneOut = 14 };

bool all_at_least(const Core& core, std::atomic<std::uint64_t> Board::* word, std::uint64_t phase) {
  for (const Member& member : core.members)
    if ((member.board->*word).load(std::memory_order_acquire) < phase) return false;
  return true;
}

std::uint64_t begin_of(const Large& large) { return large.segment * large.segment_bytes; }
std::uint64_t bytes_of(const Core& core, const Large& large) {
  return std::min(large.segment_bytes, core.call.block_bytes - begin_of(large));
}
std::uint64_t phase_of(const Large& large) { return large.first_phase + large.segment; }

std::uint64_t half_of(const Core& core, const Large& large) { return (large.early ? core.number : large.segment) % kHalves; }

// How far the blocks of a message lie apart that is staged in one.
std::uint64_t whole_segment(const Call& call) { return (call.block_bytes + 63) / 64 * 64; }

// Block `block` of the input of `place` in this segment, wherever its bytes are now.
const std::byte* source(const Core& core, const Large& large, int place, std::uint64_t block) {
  const std::byte* const mapped = core.inputs[static_cast<std::size_t>(place)];
  if (mapped != nullptr) return mapped + block * core.call.block_bytes + begin_of(large);
  return core.members[static_cast<std::size_t>(place)].board->stage[half_of(core, large)] + block * large.segment_bytes;
}

std::byte* result(const Core& core, const Large& large, std::uint64_t block) {
  return core.members[0].board->result[half_of(core, large)] + block * large.segment_bytes;
}

bool plain_output(const Core& core, int place) {
  const Call& call = core.call;
  return blocks_of(call.collective, place, core.n, call.root, -1).output > 0 &&
         core.outputs[static_cast<std::size_t>(place)] == nullptr;
}

// True where every rank has staged its input before its header.
bool all_early(const Core& core) {
  for (int j = 0; j < core.n; ++j) {
    const auto i = static_cast<std::size_t>(j);
    const bool gives = blocks_of(core.call.collective, j, core.n, core.call.root, -1).input > 0;
    if (gives && (core.inputs[i] != nullptr || (core.where[i].flags & kStagedEarly) == 0)) return false;
  }
  return true;
}

// True where every rank sums what it gets by itself. Not where an input is mapped: its owner might write an output over it
// that a peer still reads.
bool sums_alone(const Core& core, bool early) {
  const Collective collective = core.call.collective;
  const bool few = core.n <= 2 || static_cast<std::uint64_t>(core.n) * core.call.block_bytes <= kSumsAlone;
  if (collective != Collective::reduce_scatter && (collective != Collective::all_reduce || !few) &&
      (collective != Collective::reduce || !few || !early))
    return false;
  if (early) return true;
  for (int j = 0; j < core.n; ++j)
    if (core.inputs[static_cast<std::size_t>(j)] != nullptr || core.outputs[static_cast<std::size_t>(j)] != nullptr) return false;
  return true;
}

// True if some peer reads block `block` of this rank's input.
bool peers_read(const Core& core, const Large& large, std::uint64_t block) {
  switch (core.call.collective) {
    case Collective::reduce_scatter: return !large.alone || block != static_cast<std::uint64_t>(core.place);
    case Collective::scatter:
    case Collective::all_to_all: return block != static_cast<std::uint64_t>(core.place);
    case Collective::gather: return core.place != core.call.root;
    default: return true;
  }
}

bool all_read(Collective collective) { return collective == Collective::broadcast || collective == Collective::all_gather; }

void stage_blocks(Core& core, const Large& large) {
  const Call& call = core.call;
  const Stores stores = core.stores_for_peers(contribution_bytes(call.collective, call.block_bytes, core.n), core.streams || all_read(call.collective));
  std::byte* const stage = core.own->stage[half_of(core, large)];
  for (std::uint64_t block = 0; block < core.blocks.input; ++block)
    if (peers_read(core, large, block))
      core.copy(stage + block * large.segment_bytes, call.input + block * call.block_bytes + begin_of(large), bytes_of(core, large), stores);
}

void copy_in(Core& core, const Large& large) {
  if (core.blocks.input == 0 || core.inputs[static_cast<std::size_t>(core.place)] != nullptr) return;
  stage_blocks(core, large);
}

void reduce_task(Core& core, const Large& large, std::uint64_t task) {
  const Call& call = core.call;
  const std::uint64_t unit = task / large.chunks;
  const std::uint64_t begin = task % large.chunks * large.chunk_bytes;
  const std::uint64_t nbytes = std::min(large.chunk_bytes, bytes_of(core, large) - begin);
  const Side from = sources_of(call, unit, core.n);
  const Side to = targets_of(call, unit, core.n);
  std::size_t n_sources = 0;
  for (int j = from.first; j < from.last; ++j) core.sources[n_sources++] = source(core, large, j, from.block) + begin;
  std::size_t n_targets = 0;
  bool staged = false;
  for (int i = to.first; i < to.last; ++i) {
    if (plain_output(core, i)) staged = true;
    else core.targets[n_targets++] = core.outputs[static_cast<std::size_t>(i)] + begin_of(large) + begin;
  }
  if (staged) core.targets[n_targets++] = result(core, large, from.block) + begin;
  reduce_to(call.dtype, call.redop, core.targets.data(), n_targets, core.sources.data(), n_sources,
            nbytes / itemsize(call.dtype), call.redop == RedOp::avg ? core.n : 1);
  core.traffic.read_bytes += n_sources * nbytes;
  core.traffic.written_bytes += n_targets * nbytes;
}

// The own block of all inputs, or all of them, summed in order of place.
void sum_alone(Core& core, const Large& large) {
  const Call& call = core.call;
  const std::uint64_t nbytes = bytes_of(core, large);
  const std::uint64_t block = call.collective == Collective::reduce_scatter ? static_cast<std::uint64_t>(core.place) : 0;
  for (int j = 0; j < core.n; ++j)
    core.sources[static_cast<std::size_t>(j)] =
        j == core.place ? call.input + block * call.block_bytes + begin_of(large) : source(core, large, j, block);
  std::byte* const target[] = {call.output + begin_of(large)};
  reduce_to(call.dtype, call.redop, target, 1, core.sources.data(), core.sources.size(), nbytes / itemsize(call.dtype),
            call.redop == RedOp::avg ? core.n : 1, large.streaming ? Stores::streaming : Stores::cached);
  core.traffic.read_bytes += core.sources.size() * nbytes;
  core.traffic.written_bytes += nbytes;
}

Stores stores_of(const Large& large) { return large.streaming ? Stores::streaming : Stores::cached; }

void take_result(Core& core, const Large& large) {
  if (!plain_output(core, core.place)) return;
  const std::uint64_t block = core.call.collective == Collective::reduce_scatter ? static_cast<std::uint64_t>(core.place) : 0;
  core.copy(core.call.output + begin_of(large), result(core, large, block), bytes_of(core, large), stores_of(large));
}

void take_blocks(Core& core, const Large& large) {
  const Call& call = core.call;
  const std::uint64_t nbytes = bytes_of(core, large);
  const std::uint64_t units = n_units(call.collective, core.n);
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    const Side to = targets_of(call, unit, core.n);
    if (core.place < to.first || core.place >= to.last) continue;
    const Side from = sources_of(call, unit, core.n);
    // The rank's own bytes need no way through its stage.
    const std::byte* const src = from.first == core.place ? call.input + from.block * call.block_bytes + begin_of(large)
                                                          : source(core, large, from.first, from.block);
    core.copy(call.output + to.block * call.block_bytes + begin_of(large), src, nbytes, stores_of(large));
  }
}

void copy_out(Core& core, const Large& large) {
  if (core.blocks.output == 0) return;
  if (large.alone) sum_alone(core, large);
  else if (reduces(core.call.collective)) take_result(core, large);
  else take_blocks(core, large);
}

std::uint64_t segment_bytes_of(const Core& core) {
  const Call& call = core.call;
  const std::uint64_t most = kStageBytes / contribution_bytes(call.collective, 1, core.n);
  const bool from_root = call.collective == Collective::broadcast || call.collective == Collective::scatter;
  const std::uint64_t wanted = from_root ? std::clamp(call.block_bytes / kSegmentsOfRoot, std::min(kLeastSegment, most), most) : most;
  return std::max<std::uint64_t>(wanted / 64 * 64, 64);
}

Turn next_segment(Core& core, Large& large) {
  if (++large.segment < large.n_segments) {
    large.round.open(core, 0);
    core.stage = kCopyIn;
    return Turn::busy;
  }
  core.stage = kEveryoneOut;
  return Turn::busy;
}

}  // namespace

bool fits_early(const Core& core) {
  const bool from_root = core.call.collective == Collective::broadcast || core.call.collective == Collective::scatter;
  return whole_segment(core.call) * core.blocks.input <= (from_root ? kEarlyOfRoot : kStageBytes);
}

bool either_stores_may_pay(const Core& core) {
  const Call& call = core.call;
  return core.n > core.n_cores && core.blocks.input > 0 && !all_read(call.collective) && !reduces(call.collective) &&
         contribution_bytes(call.collective, call.block_bytes, core.n) >= kStreamFrom;
}

void stage_early(Core& core) {
  Large whole;
  whole.early = whole.alone = true;
  whole.segment_bytes = whole_segment(core.call);
  stage_blocks(core, whole);
}

int begin_staged(Core& core, Large& large) {
  const Call& call = core.call;
  large.segment = 0;
  large.early = all_early(core);
  large.alone = sums_alone(core, large.early);
  large.streaming = outgrows_caches(core) && core.call.input != core.call.output;
  large.first_phase = large.round.phase();
  large.segment_bytes = large.early ? whole_segment(call) : segment_bytes_of(core);
  large.n_segments = (call.block_bytes + large.segment_bytes - 1) / large.segment_bytes;
  return large.early ? kEveryoneIn : kCopyIn;
}

Turn step_staged(Core& core, Large& large) {
  const bool round = reduces(core.call.collective) && !large.alone;
  switch (core.stage) {
    case kCopyIn:
      if (large.segment >= 2 && !all_at_least(core, &Board::taken, phase_of(large) - 2)) return core.may_wait();
      copy_in(core, large);
      core.own->staged.store(phase_of(large), std::memory_order_release);
      if (core.parking.anyone()) core.wake_all();
      core.stage = kEveryoneIn;
      [[fallthrough]];
    case kEveryoneIn:
      if (!large.early && !all_at_least(core, &Board::staged, phase_of(large))) return core.may_wait();
      if (round) {
        const std::uint64_t units = n_units(core.call.collective, core.n);
        const std::uint64_t nbytes = bytes_of(core, large);
        large.chunk_bytes = chunk_bytes_for(core.call.collective, nbytes, units, core.n, core.n_cores);
        large.chunks = (nbytes + large.chunk_bytes - 1) / large.chunk_bytes;
        large.round.resize(core, units * large.chunks);
      }
      core.stage = round ? kTasks : kCopyOut;
      return Turn::busy;
    case kTasks: {
      std::uint64_t task = 0;
      while (large.round.claim(core, task)) reduce_task(core, large, task);
      if (!large.round.over(core)) return core.may_wait();
      core.stage = kCopyOut;
      [[fallthrough]];
    }
    case kCopyOut:
      copy_out(core, large);
      if (large.early) return core.finish(true);
      core.own->taken.store(phase_of(large), std::memory_order_release);
      if (core.parking.anyone()) core.wake_all();
      return next_segment(core, large);
    default:
      // Mapped inputs are read until the last rank has taken the last segment.
      if (!all_at_least(core, &Board::taken, large.first_phase + large.n_segments - 1)) return core.may_wait();
      return core.finish(true);
  }
}

}  // namespace ccl_lab::node
