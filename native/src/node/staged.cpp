// Plain buffers, which peers cannot see: segment by segment through stages that stay in the caches.
//
//   segment s, half s & 1:
//     owner of a plain input    input -> own stage                      staged = phase
//     collectives that reduce   a round of tasks: stages and mapped inputs -> result stage and mapped outputs
//                               owner of a plain output: result stage -> output
//     others                    every rank: stages and mapped inputs -> own output
//                                                                       taken = phase
//   A half is written again when all ranks have taken the segment before the last.
//
// Reductions need the round, because every rank summing everything would read n stages n times.
#include <algorithm>

#include "node/geometry.hpp"
#include "node/large.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

// A segment of all ranks should stay in the second-level caches.
constexpr std::uint64_t kSegmentBytes = 128 * 1024;

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

// Block `block` of the input of `place` in this segment, wherever its bytes are now.
const std::byte* source(const Core& core, const Large& large, int place, std::uint64_t block) {
  const std::byte* const mapped = core.inputs[static_cast<std::size_t>(place)];
  if (mapped != nullptr) return mapped + block * core.call.block_bytes + begin_of(large);
  return core.members[static_cast<std::size_t>(place)].board->stage[large.segment & 1] + block * large.segment_bytes;
}

std::byte* result(const Core& core, const Large& large, std::uint64_t block) {
  return core.members[0].board->result[large.segment & 1] + block * large.segment_bytes;
}

bool plain_output(const Core& core, int place) {
  const Call& call = core.call;
  return blocks_of(call.collective, place, core.n, call.root, -1).output > 0 &&
         core.outputs[static_cast<std::size_t>(place)] == nullptr;
}

// Not memcpy, which may use `rep movsb`: that was three times slower on lines that another core has.
void move_bytes(std::byte* to, const std::byte* from, std::uint64_t nbytes) {
  std::byte* const dsts[] = {to};
  copy_to(dsts, 1, from, nbytes);
}

void copy_in(Core& core, const Large& large) {
  if (core.blocks.input == 0 || core.inputs[static_cast<std::size_t>(core.place)] != nullptr) return;
  const std::uint64_t nbytes = bytes_of(core, large);
  std::byte* const stage = core.own->stage[large.segment & 1];
  for (std::uint64_t block = 0; block < core.blocks.input; ++block)
    move_bytes(stage + block * large.segment_bytes, core.call.input + block * core.call.block_bytes + begin_of(large), nbytes);
  core.traffic.read_bytes += core.blocks.input * nbytes;
  core.traffic.written_bytes += core.blocks.input * nbytes;
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

void copy_out(Core& core, const Large& large) {
  if (core.blocks.output == 0) return;
  const Call& call = core.call;
  const std::uint64_t nbytes = bytes_of(core, large);
  if (reduces(call.collective)) {
    if (!plain_output(core, core.place)) return;
    const std::uint64_t block = call.collective == Collective::reduce_scatter ? static_cast<std::uint64_t>(core.place) : 0;
    move_bytes(call.output + begin_of(large), result(core, large, block), nbytes);
    core.traffic.read_bytes += nbytes;
    core.traffic.written_bytes += nbytes;
    return;
  }
  const std::uint64_t units = n_units(call.collective, core.n);
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    const Side to = targets_of(call, unit, core.n);
    if (core.place < to.first || core.place >= to.last) continue;
    const Side from = sources_of(call, unit, core.n);
    // The rank's own bytes need no way through its stage.
    const std::byte* const src = from.first == core.place ? call.input + from.block * call.block_bytes + begin_of(large)
                                                          : source(core, large, from.first, from.block);
    move_bytes(call.output + to.block * call.block_bytes + begin_of(large), src, nbytes);
    core.traffic.read_bytes += nbytes;
    core.traffic.written_bytes += nbytes;
  }
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

int begin_staged(Core& core, Large& large) {
  const Call& call = core.call;
  const std::uint64_t staged_blocks = contribution_bytes(call.collective, 1, core.n);
  large.segment = 0;
  large.first_phase = large.round.phase();
  large.segment_bytes = std::max<std::uint64_t>(kSegmentBytes / staged_blocks / 64 * 64, 64);
  large.n_segments = (call.block_bytes + large.segment_bytes - 1) / large.segment_bytes;
  return kCopyIn;
}

Turn step_staged(Core& core, Large& large) {
  const bool reducing = reduces(core.call.collective);
  switch (core.stage) {
    case kCopyIn:
      if (large.segment >= 2 && !all_at_least(core, &Board::taken, phase_of(large) - 2)) return core.may_wait();
      copy_in(core, large);
      core.own->staged.store(phase_of(large), std::memory_order_release);
      if (core.parking.anyone()) core.wake_all();
      core.stage = kEveryoneIn;
      [[fallthrough]];
    case kEveryoneIn:
      if (!all_at_least(core, &Board::staged, phase_of(large))) return core.may_wait();
      if (reducing) {
        const std::uint64_t units = n_units(core.call.collective, core.n);
        const std::uint64_t nbytes = bytes_of(core, large);
        large.chunk_bytes = chunk_bytes_for(core.call.collective, nbytes, units, core.n, core.n_cores);
        large.chunks = (nbytes + large.chunk_bytes - 1) / large.chunk_bytes;
        large.round.resize(core, units * large.chunks);
      }
      core.stage = reducing ? kTasks : kCopyOut;
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
