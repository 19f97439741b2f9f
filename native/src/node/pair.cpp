// Messages between two ranks.
//
//   tiny     the message is in the sender's line                         received = m
//   short    in the sender's slot                                        received = m
//   middling of up to 1 MiB, if the sender has the cells: pieces through them; then the receiver has them
//   long     of mapped memory: where it lies ──► answer: where the output lies, and the way
//              split    both mapped: the receiver copies the first half, the sender the second
//              pull     the receiver copies all
//            of plain memory: pieces through the slots, several at a time, from the first moment;
//            from kCrossFrom on where it lies ──► answer: the way
//              pieces   the same
//              across   the receiver has the kernel copy all (across.hpp)
//
// The cells belong to two ranks, and to one of them at a time: who has received through them may send through them. A line that
// a core has fetched from another that had changed it is there to be changed; one it must ask for first takes as long again as
// fetching it. So an answer through the cells in which the question came, and memory of one's own on either side, crosses
// between the cores once: 64 KiB take 2 us where two halves copied in place take 4.
//
// Which of the two is faster differs by machine, size and minute: the receiver tries both (trials.hpp).
// Lines and slots are reused when `received` says so; a sender of a long message stays until its buffer is free.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/clock.hpp"
#include "base/cpu.hpp"
#include "node/across.hpp"
#include "node/core.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

enum class Way : std::uint32_t { split = 1, pull = 2, pieces = 3, across = 4 };
struct Answer {
  std::uint64_t output;
  std::uint32_t way;
};

enum Stage : int { kEnter = 0, kAnswer = 1, kPieces = 2, kLeave = 3, kAcross = 4 };

// Of lines that another core has: up to so many bytes vector loads were the faster way, beyond that the library's.
constexpr std::uint64_t kVectorBytes = 64 * 1024;

void copy_mapped(Core& core, std::byte* to, const std::byte* from, std::uint64_t nbytes) {
  std::byte* const dsts[] = {to};
  if (nbytes <= kVectorBytes) copy_to(dsts, 1, from, nbytes);
  else if (core.call.block_bytes > cache_sizes().l3 / 2) copy_to(dsts, 1, from, nbytes, Stores::streaming);
  else std::memcpy(to, from, nbytes);
  core.traffic.read_bytes += nbytes;
  core.traffic.written_bytes += nbytes;
}

// A caller that looks after other things too gets its turn after so much.
constexpr std::uint64_t kAcrossPerTurn = 1024 * 1024;

// The first half, for the receiver; whole cache lines.
std::uint64_t half_of(std::uint64_t nbytes) { return nbytes / 2 / 64 * 64; }
std::uint64_t n_pieces(std::uint64_t nbytes) { return (nbytes + kSlotBytes - 1) / kSlotBytes; }

// True where the receiver may look at the input itself.
bool shown(const Where& from) { return (from.flags & kInputMapped) != 0 && (from.input_head | from.input_tail) == 0; }
// True where the sender leaves the way to the receiver.
bool asks(const Where& from, std::uint64_t nbytes) {
  return shown(from) || (nbytes >= kPairCrossFrom && (from.flags & kCanCross) != 0);
}

// True where this rank sends through the cells. Ranks on one core need no lines to cross, and mapped memory then no copy.
bool through_cells(const Core& core, const Where& here) {
  const std::uint64_t nbytes = core.call.block_bytes;
  return core.has_cells[static_cast<std::size_t>(core.call.peer)] && nbytes <= kPairCells * kSlotBytes && here.cross_from != 0 &&
         (core.n <= core.n_cores || !shown(here));
}
bool in_cells(const Where& from, std::uint64_t nbytes) {
  return (from.flags & kInCells) != 0 && nbytes <= kPairCells * kSlotBytes;
}

Turn send(Core& core) {
  const Call& call = core.call;
  const int peer = call.peer;
  PairBoard& mine = core.pair(core.place, peer);
  PairBoard& theirs = core.pair(peer, core.place);
  Line& line = mine.lines[core.message % kPairLines];
  const std::uint64_t nbytes = call.block_bytes;
  Where& here = core.where[static_cast<std::size_t>(core.place)];
  if (core.stage == kEnter) {
    const std::uint64_t depth = nbytes <= kInlineBytes ? kPairLines : kPairSlots;
    if (core.message > depth && theirs.received.load(std::memory_order_acquire) < core.message - depth) return Turn::waiting;
    if (nbytes > kSlotBytes && through_cells(core, here)) {
      here.flags |= kInCells;
      core.has_cells[static_cast<std::size_t>(peer)] = false;
    }
    if (nbytes <= kInlineBytes) std::memcpy(line.data, call.input, nbytes);
    else if (nbytes <= kSlotBytes) std::memcpy(mine.slots[core.message % kPairSlots], call.input, nbytes);
    else std::memcpy(line.data, &here, sizeof(Where));
    line.tag.store(core.tag, std::memory_order_release);
    if (core.parking.anyone()) core.wake(peer);
    if (nbytes <= kSlotBytes) return Turn::done;
    core.stage = !in_cells(here, nbytes) && asks(here, nbytes) ? kAnswer : kPieces;
    core.seen = 0;
  }
  if (core.stage == kAnswer) {
    if (theirs.answer.tag.load(std::memory_order_acquire) != core.tag) return Turn::waiting;
    Answer answer{};
    std::memcpy(&answer, theirs.answer.data, sizeof answer);
    core.stage = answer.way == static_cast<std::uint32_t>(Way::pieces) ? kPieces : kLeave;
    if (answer.way == static_cast<std::uint32_t>(Way::split)) {
      const std::uint64_t half = half_of(nbytes);
      if (answer.output <= core.arena_bytes && nbytes <= core.arena_bytes - answer.output)
        copy_mapped(core, core.members[static_cast<std::size_t>(peer)].arena + answer.output + half, call.input + half, nbytes - half);
      mine.copied.store(core.message, std::memory_order_release);
      if (core.parking.anyone()) core.wake(peer);
    }
  }
  // The slots are those of short messages, which must have been taken.
  const bool cells = in_cells(here, nbytes);
  if (core.stage == kPieces && !cells && theirs.received.load(std::memory_order_acquire) + 1 < core.message) return Turn::waiting;
  while (core.stage == kPieces) {
    const std::uint64_t put = mine.pieces_in.load(std::memory_order_relaxed);
    if (!cells && put - theirs.pieces_out.load(std::memory_order_acquire) >= kPairSlots) return Turn::waiting;
    const std::uint64_t at = static_cast<std::uint64_t>(core.seen) * kSlotBytes;
    std::byte* const to = cells ? core.cell(peer, static_cast<std::uint64_t>(core.seen)) : mine.slots[put % kPairSlots];
    core.copy(to, call.input + at, std::min<std::uint64_t>(kSlotBytes, nbytes - at), cells ? Stores::cached : core.stores_for_peers(nbytes));
    mine.pieces_in.store(put + 1, std::memory_order_release);
    if (core.parking.anyone()) core.wake(peer);
    if (static_cast<std::uint64_t>(++core.seen) == n_pieces(nbytes)) core.stage = kLeave;
  }
  return theirs.received.load(std::memory_order_acquire) >= core.message ? Turn::done : Turn::waiting;
}

Way choose_way(const Core& core, const Where& from) {
  const Where& to = core.where[static_cast<std::size_t>(core.place)];
  if (!shown(from)) return to.cross_from <= core.call.block_bytes && (to.flags & kCanCross) != 0 ? Way::across : Way::pieces;
  const bool output_mapped = (to.flags & kOutputMapped) != 0 && (to.output_head | to.output_tail) == 0;
  return output_mapped ? Way::split : Way::pull;
}

// How a message comes for which the sender waits to hear that; publishes it.
Way answer(Core& core, const Where& from) {
  const Where& to = core.where[static_cast<std::size_t>(core.place)];
  const Way way = choose_way(core, from);
  Line& line = core.pair(core.place, core.call.root).answer;
  const Answer said{to.output, static_cast<std::uint32_t>(way)};
  std::memcpy(line.data, &said, sizeof said);
  line.tag.store(core.tag, std::memory_order_release);
  if (core.parking.anyone()) core.wake(core.call.root);
  return way;
}

// The receiver's share; what lies outside the arena would be of a damaged peer.
bool pull(Core& core, const Where& from, Way way) {
  const std::uint64_t nbytes = core.call.block_bytes;
  if (from.input > core.arena_bytes || nbytes > core.arena_bytes - from.input) {
    core.status = Status(Code::internal, "rank " + std::to_string(core.ranks[static_cast<std::size_t>(core.call.root)]) +
                                             " sends what lies outside its arena; its memory is damaged",
                         core.ranks[static_cast<std::size_t>(core.call.root)]);
    return false;
  }
  copy_mapped(core, core.call.output, core.members[static_cast<std::size_t>(core.call.root)].arena + from.input,
              way == Way::split ? half_of(nbytes) : nbytes);
  return true;
}

// A sender that was stopped meanwhile may have changed what was read. The word is looked at by an exchange that changes nothing,
// before which the copy's loads must have happened; a fence would say the same, but the thread sanitizer knows none.
Turn still_there(Core& core) {
  const auto root = static_cast<std::size_t>(core.call.root);
  if (core.members[root].board->stopped.fetch_or(0, std::memory_order_acq_rel) == 0) return Turn::done;
  core.status = Status(Code::aborted, "rank " + std::to_string(core.ranks[root]) + " was stopped while its message was copied",
                       core.ranks[root]);
  return Turn::failed;
}

// Some of a plain message, by the kernel.
Turn receive_across(Core& core) {
  const std::uint64_t nbytes = core.call.block_bytes;
  const std::uint64_t at = static_cast<std::uint64_t>(core.seen) * kAcrossPerTurn;
  const std::uint64_t now = std::min(kAcrossPerTurn, nbytes - at);
  const std::uint64_t from = core.where[static_cast<std::size_t>(core.call.root)].address;
  if (!read_across(core, core.call.root, from + at, core.call.output + at, now)) return Turn::failed;
  core.traffic.read_bytes += now;
  core.traffic.written_bytes += now;
  ++core.seen;
  return at + now < nbytes ? Turn::busy : Turn::done;
}

Turn receive(Core& core) {
  const Call& call = core.call;
  PairBoard& mine = core.pair(core.place, call.root);
  PairBoard& theirs = core.pair(call.root, core.place);
  const Line& line = theirs.lines[core.message % kPairLines];
  const std::uint64_t nbytes = call.block_bytes;
  if (core.stage == kEnter) {
    const std::uint64_t found = line.tag.load(std::memory_order_acquire);
    if (found != core.tag) {
      if (same_number(found, core.tag)) core.mismatch(call.root);
      return core.may_wait();
    }
    if (nbytes <= kSlotBytes) {
      if (nbytes > 0)
        std::memcpy(call.output, nbytes <= kInlineBytes ? line.data : theirs.slots[core.message % kPairSlots], nbytes);
      mine.received.store(core.message, std::memory_order_release);
      if (core.parking.anyone()) core.wake(call.root);
      return Turn::done;
    }
    Where& from = core.where[static_cast<std::size_t>(call.root)];
    std::memcpy(&from, line.data, sizeof from);
    core.stage = kPieces;
    core.seen = 0;
    core.coming_ns = 0;
    if (!in_cells(from, nbytes) && asks(from, nbytes)) {
      const Way way = answer(core, from);
      if (!shown(from)) {
        core.coming_ns = now_ns();
        core.route = way == Way::across ? Route::pulled : Route::staged;
        core.stage = way == Way::across ? kAcross : kPieces;
      } else {
        if (!pull(core, from, way)) return Turn::failed;
        core.stage = way == Way::split ? kAnswer : kLeave;
      }
    }
  }
  if (core.stage == kAcross) {
    const Turn turn = receive_across(core);
    if (turn != Turn::done) return turn;
    core.stage = kLeave;
  }
  if (core.stage == kAnswer) {
    if (theirs.copied.load(std::memory_order_acquire) < core.message) return Turn::waiting;
    core.stage = kLeave;
  }
  const bool cells = nbytes > kSlotBytes && in_cells(core.where[static_cast<std::size_t>(call.root)], nbytes);
  while (core.stage == kPieces) {
    const std::uint64_t taken = mine.pieces_out.load(std::memory_order_relaxed);
    if (theirs.pieces_in.load(std::memory_order_acquire) == taken) return Turn::waiting;
    const std::uint64_t at = static_cast<std::uint64_t>(core.seen) * kSlotBytes;
    const std::byte* const from = cells ? core.cell(call.root, static_cast<std::uint64_t>(core.seen)) : theirs.slots[taken % kPairSlots];
    core.copy(call.output + at, from, std::min<std::uint64_t>(kSlotBytes, nbytes - at), Stores::cached);
    mine.pieces_out.store(taken + 1, std::memory_order_release);
    if (core.parking.anyone()) core.wake(call.root);
    if (static_cast<std::uint64_t>(++core.seen) == n_pieces(nbytes)) core.stage = kLeave;
  }
  if (nbytes > kSlotBytes && still_there(core) == Turn::failed) return Turn::failed;
  if (cells) core.has_cells[static_cast<std::size_t>(call.root)] = true;
  mine.received.store(core.message, std::memory_order_release);
  if (core.parking.anyone()) core.wake(call.root);
  return Turn::done;
}

}  // namespace

Turn step_pair(Core& core) {
  if (core.place != core.call.root && core.place != core.call.peer) return Turn::done;
  if (core.call.root == core.call.peer) {
    if (core.call.input != core.call.output && core.call.block_bytes > 0)
      std::memmove(core.call.output, core.call.input, core.call.block_bytes);
    return Turn::done;
  }
  return core.place == core.call.root ? send(core) : receive(core);
}

}  // namespace ccl_lab::node
