// One pass over mapped buffers; see large.hpp.
#include <algorithm>
#include <cstring>

#include "base/cpu.hpp"
#include "node/geometry.hpp"
#include "node/large.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

constexpr std::uint64_t kLeastChunk = 8 * 1024;
constexpr std::uint64_t kMostChunk = 128 * 1024;
// A progress thread has other things to look after.
constexpr int kTasksPerTurn = 16;
constexpr std::size_t kEdgeBytes = 4096;
static_assert(4 * kEdgeBytes <= kSlotBytes);
// A first read maps as many pages as lie in one such window (the kernel's fault-around), a first write only its own.
constexpr std::uintptr_t kFaultedAtOnce = 64 * 1024;

// The byte at `offset` of a buffer whose ends may lie in the slot of its owner; `nbytes` is cut to where that changes.
std::byte* edge_aware(const Core& core, int place, bool input, std::uint64_t offset, std::uint64_t& nbytes) {
  const auto i = static_cast<std::size_t>(place);
  const Where& at = core.where[i];
  const Blocks has = blocks_of(core.call.collective, place, core.n, core.call.root, core.call.peer);
  const std::uint64_t size = (input ? has.input : has.output) * core.call.block_bytes;
  const std::uint64_t head = input ? at.input_head : at.output_head;
  const std::uint64_t tail_at = size - (input ? at.input_tail : at.output_tail);
  std::byte* const slot = core.slot(place) + (input ? 0 : 2 * kEdgeBytes);
  if (offset < head) {
    nbytes = std::min(nbytes, head - offset);
    return slot + offset;
  }
  if (offset >= tail_at) {
    nbytes = std::min(nbytes, size - offset);
    return slot + kEdgeBytes + (offset - tail_at);
  }
  nbytes = std::min(nbytes, tail_at - offset);
  return (input ? const_cast<std::byte*>(core.inputs[i]) : core.outputs[i]) + offset;
}

// The edges of the own buffers: in before the peers look, out when all is done.
void show_edges(const Core& core) {
  const Where& at = core.where[static_cast<std::size_t>(core.place)];
  const std::uint64_t size = core.blocks.input * core.call.block_bytes;
  std::byte* const slot = core.slot(core.place);
  if (at.input_head > 0) std::memcpy(slot, core.call.input, at.input_head);
  if (at.input_tail > 0) std::memcpy(slot + kEdgeBytes, core.call.input + size - at.input_tail, at.input_tail);
}
void take_edges(const Core& core) {
  const Where& at = core.where[static_cast<std::size_t>(core.place)];
  const std::uint64_t size = core.blocks.output * core.call.block_bytes;
  const std::byte* const slot = core.slot(core.place) + 2 * kEdgeBytes;
  if (at.output_head > 0) std::memcpy(core.call.output, slot, at.output_head);
  if (at.output_tail > 0) std::memcpy(core.call.output + size - at.output_tail, slot + kEdgeBytes, at.output_tail);
}

// Maps pages of a peer that are written here for the first time: in a sixteenth of the faults that the writes would take. Where they
// are mapped already, it costs the load of a line that is written next.
void touch(const std::byte* target, std::uint64_t nbytes) {
  const std::byte* const end = target + nbytes;
  while (target < end) {
    static_cast<void>(*static_cast<const volatile std::byte*>(target));
    target += kFaultedAtOnce - reinterpret_cast<std::uintptr_t>(target) % kFaultedAtOnce;
  }
}

// To all targets but the source itself, which has the bytes. One after the other where all of it stays in the caches: the library's
// copy to one place took three quarters of the time of a loop that stores, and with two targets nine tenths.
void copy_piece(Core& core, std::size_t n_targets, std::uint64_t nbytes, Stores stores) {
  const std::byte* const from = core.sources[0];
  std::size_t n = 0;
  for (std::size_t i = 0; i < n_targets; ++i)
    if (core.targets[i] != from) core.targets[n++] = core.targets[i];
  if (n == 0) return;
  if (stores == Stores::streaming) copy_to(core.targets.data(), n, from, nbytes, stores);
  else for (std::size_t i = 0; i < n; ++i) std::memcpy(core.targets[i], from, nbytes);
  core.traffic.read_bytes += nbytes;
  core.traffic.written_bytes += n * nbytes;
}

// Reads and writes the bytes [begin, begin + nbytes) of a unit's blocks, which core.sources and core.targets point to.
void run_piece(Core& core, const Large& large, std::size_t n_sources, std::size_t n_targets, std::uint64_t nbytes) {
  const Call& call = core.call;
  const Stores stores = large.streaming ? Stores::streaming : Stores::cached;
  for (std::size_t i = 0; i < n_targets; ++i) touch(core.targets[i], nbytes);
  if (!reduces(call.collective)) return copy_piece(core, n_targets, nbytes, stores);
  reduce_to(call.dtype, call.redop, core.targets.data(), n_targets, core.sources.data(), n_sources,
            nbytes / itemsize(call.dtype), call.redop == RedOp::avg ? core.n : 1, stores);
  core.traffic.read_bytes += n_sources * nbytes;
  core.traffic.written_bytes += n_targets * nbytes;
}

// One task on buffers of which some have edges: piece by piece, as far as all buffers go on in the same memory.
void run_pieces(Core& core, const Large& large, Side from, Side to, std::uint64_t begin, std::uint64_t end) {
  const Call& call = core.call;
  while (begin < end) {
    std::uint64_t nbytes = end - begin;
    std::size_t n_sources = 0;
    std::size_t n_targets = 0;
    for (int j = from.first; j < from.last; ++j)
      core.sources[n_sources++] = edge_aware(core, j, true, from.block * call.block_bytes + begin, nbytes);
    for (int i = to.first; i < to.last; ++i)
      core.targets[n_targets++] = edge_aware(core, i, false, to.block * call.block_bytes + begin, nbytes);
    run_piece(core, large, n_sources, n_targets, nbytes);
    begin += nbytes;
  }
}

// For the trace: a task of the share that was claimed last begins.
void note(Core& core, const Large& large, Side to, std::uint64_t nbytes) {
  const Call& call = core.call;
  const std::int32_t op_id = call.share_ops == nullptr ? -1 : call.share_ops[large.round.owner()];
  core.spans.task(reduces(call.collective) ? SpanKind::reduce : SpanKind::copy, op_id, static_cast<std::uint64_t>(to.last - to.first) * nbytes);
}

void run_task(Core& core, const Large& large, std::uint64_t task) {
  const Call& call = core.call;
  const std::uint64_t unit = task / large.chunks;
  const std::uint64_t begin = task % large.chunks * large.chunk_bytes;
  const std::uint64_t nbytes = std::min(large.chunk_bytes, call.block_bytes - begin);
  const Side from = sources_of(call, unit, core.n);
  const Side to = targets_of(call, unit, core.n);
  if (core.spans.on()) note(core, large, to, nbytes);
  std::size_t n_sources = 0;
  std::size_t n_targets = 0;
  if (core.edges) {
    run_pieces(core, large, from, to, begin, begin + nbytes);
  } else {
    for (int j = from.first; j < from.last; ++j)
      core.sources[n_sources++] = core.inputs[static_cast<std::size_t>(j)] + from.block * call.block_bytes + begin;
    for (int i = to.first; i < to.last; ++i)
      core.targets[n_targets++] = core.outputs[static_cast<std::size_t>(i)] + to.block * call.block_bytes + begin;
    run_piece(core, large, n_sources, n_targets, nbytes);
  }
}

}  // namespace

bool outgrows_caches(const Core& core) {
  const Blocks blocks = blocks_of(core.call.collective, core.call.root, core.n, core.call.root, -1);
  return blocks.output * core.call.block_bytes * static_cast<std::uint64_t>(core.n) >= cache_sizes().l3 / 2;
}

std::uint64_t chunk_bytes_for(Collective collective, std::uint64_t block_bytes, std::uint64_t n_units, int n, int n_cores) {
  // At least two tasks for each rank that can run, so that who comes late finds something to do.
  const auto workers = static_cast<std::uint64_t>(std::min(n, n_cores));
  const std::uint64_t wanted = block_bytes * n_units / (workers * 2);
  const std::uint64_t most = reduces(collective) ? kMostChunk / 2 : kMostChunk;
  const std::uint64_t chunk = std::clamp(wanted, kLeastChunk, most);
  return std::min(block_bytes, (chunk + 4095) / 4096 * 4096);
}

Turn step_mapped(Core& core, Large& large) {
  if (core.stage == 2) {
    const std::uint64_t units = n_units(core.call.collective, core.n);
    large.chunk_bytes = chunk_bytes_for(core.call.collective, core.call.block_bytes, units, core.n, core.n_cores);
    large.chunks = (core.call.block_bytes + large.chunk_bytes - 1) / large.chunk_bytes;
    large.round.resize(core, units * large.chunks);
    const auto root = static_cast<std::size_t>(core.call.root);
    large.streaming = outgrows_caches(core) && (!reduces(core.call.collective) || core.inputs[root] != core.outputs[root]);
    core.stage = 3;
  }
  std::uint64_t task = 0;
  for (int i = 0; i < kTasksPerTurn; ++i) {
    if (large.round.claim(core, task)) {
      run_task(core, large, task);
      continue;
    }
    if (!large.round.over(core)) {
      core.spans.rest();
      return core.may_wait();
    }
    take_edges(core);
    return core.finish(true);
  }
  core.spans.rest();
  return Turn::busy;
}

Turn step_large(Core& core, Large& large) {
  if (core.stage == 0) {
    const bool early = (core.where[static_cast<std::size_t>(core.place)].flags & kStagedEarly) != 0;
    if (!core.room(early ? kHalves : kSlots)) return core.may_wait();
    if (early) stage_early(core);
    show_edges(core);
    large.round.open(core, 0);
    core.publish(&core.where[static_cast<std::size_t>(core.place)], sizeof(Where));
    core.stage = 1;
    core.seen = 0;
  }
  if (core.stage == 1) {
    if (const Turn turn = core.arrive_all(); turn != Turn::done) return turn;
    core.resolve();
    switch (core.route) {
      case Route::mapped: core.stage = 2; break;
      case Route::staged: core.stage = begin_staged(core, large); break;
      default: core.stage = begin_pulled(core, large); break;
    }
  }
  if (core.route == Route::mapped) return step_mapped(core, large);
  return core.route == Route::staged ? step_staged(core, large) : step_pulled(core, large);
}

}  // namespace ccl_lab::node
