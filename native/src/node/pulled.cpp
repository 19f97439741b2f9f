// Plain buffers, read where they lie: every rank has the kernel copy what it needs out of its peers' memory.
//
//   copies        piece by piece where several ranks read the same, so that they do while it is in a cache:
//                   from every peer, the next place first: its block -> own output                staged = first + pieces
//                                                                                                 taken = last phase
//   reductions    own part of the message, piece by piece:
//                   the peers' pieces -> scratch; summed in order of place -> own output            staged = first + pieces
//                 all_reduce: what peers have summed so far -> own output, while it is in a cache   taken = last phase
//                 all_reduce of two, not large: both sum all of it, because one meeting less is worth more than half of
//                   the additions; staged says here which pieces have been read
//   all_to_all    in place, so many bytes of every block as fit the scratch at a time:
//                   the peers' slices -> scratch                                                    staged = first + rounds
//                   all peers have read theirs: scratch -> own output                               taken = last phase
//
// A rank writes its own memory only (across.hpp says why), but for its board. Mapped buffers are read without the kernel.
// In place an all_reduce overwrites a piece of a peer's part only after that peer has summed it, so has read it here; where both
// sum all, a piece of its own input only after the peer has read it.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "node/across.hpp"
#include "node/large.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

// A caller that looks after other things too gets its turn after so much.
constexpr std::uint64_t kBytesPerTurn = 1024 * 1024;
// The scratch is the rank's stages. A piece of all peers, and of input and output, should stay in the second-level cache.
constexpr std::uint64_t kScratchBytes = sizeof(Board::stage) + sizeof(Board::result);
constexpr std::uint64_t kPieces = 512 * 1024;
constexpr std::uint64_t kMostPiece = 128 * 1024;
static_assert(kPieces <= kScratchBytes && offsetof(Board, result) == offsetof(Board, stage) + sizeof(Board::stage));

// How many pieces a rank may be ahead of the others.
constexpr std::uint64_t kAhead = 2;

enum Stage : int { kCopies = 20, kReduction = 21, kSlicesIn = 22, kSlicesOut = 23, kEveryoneOut = 24, kPieceIn = 25, kPieceOut = 26 };

std::byte* scratch(const Core& core) { return reinterpret_cast<std::byte*>(core.own) + offsetof(Board, stage); }

// The peer that this rank turns to as its k-th: not all to the same one at once; itself last.
int kth_peer(const Core& core, std::uint64_t k) {
  return static_cast<int>((static_cast<std::uint64_t>(core.place) + 1 + k) % static_cast<std::uint64_t>(core.n));
}

// Bytes of the input of `place`, to memory of this rank.
bool fetch_input(Core& core, int place, std::uint64_t offset, std::byte* to, std::uint64_t nbytes) {
  const auto i = static_cast<std::size_t>(place);
  const std::byte* const near = place == core.place ? core.call.input : core.inputs[i];
  core.traffic.read_bytes += nbytes;
  core.traffic.written_bytes += nbytes;
  if (near == nullptr) return read_across(core, place, core.where[i].address + offset, to, nbytes);
  std::memcpy(to, near + offset, nbytes);
  return true;
}

bool fetch_output(Core& core, int place, std::uint64_t offset, std::byte* to, std::uint64_t nbytes) {
  const auto i = static_cast<std::size_t>(place);
  const std::byte* const near = core.outputs[i];
  core.traffic.read_bytes += nbytes;
  core.traffic.written_bytes += nbytes;
  if (near == nullptr) return read_across(core, place, core.where[i].output_address + offset, to, nbytes);
  std::memcpy(to, near + offset, nbytes);
  return true;
}

// Which block of a peer's input this rank gets, and as which of its output.
struct Gets {
  bool any;
  std::uint64_t from;
  std::uint64_t to;
};
Gets gets_from(const Core& core, int peer) {
  const auto sender = static_cast<std::uint64_t>(peer);
  const auto receiver = static_cast<std::uint64_t>(core.place);
  switch (core.call.collective) {
    case Collective::all_gather: return {true, 0, sender};
    case Collective::gather: return {core.place == core.call.root, 0, sender};
    case Collective::broadcast: return {peer == core.call.root, 0, 0};
    case Collective::scatter: return {peer == core.call.root, receiver, 0};
    default: return {true, receiver, sender};
  }
}

void say(Core& core, std::atomic<std::uint64_t> Board::* word, std::uint64_t phase) {
  (core.own->*word).store(phase, std::memory_order_release);
  if (core.parking.anyone()) core.wake_all();
}

bool all_at_least(const Core& core, std::atomic<std::uint64_t> Board::* word, std::uint64_t phase) {
  for (const Member& member : core.members)
    if ((member.board->*word).load(std::memory_order_acquire) < phase) return false;
  return true;
}

Turn leave(Core& core) {
  say(core, &Board::taken, core.phase);
  core.stage = kEveryoneOut;
  return Turn::busy;
}

// True where this rank is so far ahead of another that what it would touch next is out of the caches when that one comes.
bool must_wait(const Core& core, const Large& large) {
  return large.segment >= kAhead && !all_at_least(core, &Board::staged, large.first_phase + large.segment - kAhead + 1);
}

Turn step_copies(Core& core, Large& large) {
  const Call& call = core.call;
  std::uint64_t budget = kBytesPerTurn;
  for (; large.segment < large.n_segments; ++large.segment, large.peer = 0) {
    if (large.peer == 0 && large.offset == 0 && must_wait(core, large)) return core.may_wait();
    const std::uint64_t at = large.segment * large.segment_bytes;
    const std::uint64_t size = std::min(large.segment_bytes, call.block_bytes - at);
    for (; large.peer < static_cast<std::uint64_t>(core.n); ++large.peer, large.offset = 0) {
      const int peer = kth_peer(core, large.peer);
      const Gets gets = gets_from(core, peer);
      while (gets.any && large.offset < size) {
        if (budget == 0) return Turn::busy;
        const std::uint64_t nbytes = std::min(budget, size - large.offset);
        if (!fetch_input(core, peer, gets.from * call.block_bytes + at + large.offset,
                         call.output + gets.to * call.block_bytes + at + large.offset, nbytes))
          return Turn::failed;
        large.offset += nbytes;
        budget -= nbytes;
      }
    }
    if (large.n_segments > 1) say(core, &Board::staged, large.first_phase + large.segment + 1);
  }
  say(core, &Board::staged, core.phase);
  return leave(core);
}

// The bytes that `place` sums: of a block, from the begin of its part.
std::uint64_t part_of(const Core& core, const Large& large, int place, std::uint64_t& begin) {
  if (large.alone || core.call.collective == Collective::reduce_scatter) {
    begin = 0;
    return core.call.block_bytes;
  }
  begin = std::min(core.call.block_bytes, static_cast<std::uint64_t>(place) * large.part_bytes);
  return std::min(large.part_bytes, core.call.block_bytes - begin);
}

// The bytes of the piece that this rank is at, and where in the block it begins; 0 bytes: its part has fewer pieces.
std::uint64_t piece_of(const Core& core, const Large& large, std::uint64_t& begin) {
  const std::uint64_t size = part_of(core, large, core.place, begin);
  const std::uint64_t at = std::min(size, large.segment * large.segment_bytes);
  begin += at;
  return std::min(large.segment_bytes, size - at);
}

// A piece of all inputs, to where it can be summed: out of a peer's memory, where that may write over it once it was read.
bool fetch_piece(Core& core, const Large& large, std::uint64_t begin, std::uint64_t nbytes) {
  const Call& call = core.call;
  const std::uint64_t block = call.collective == Collective::reduce_scatter ? static_cast<std::uint64_t>(core.place) : 0;
  const std::uint64_t offset = block * call.block_bytes + begin;
  for (std::uint64_t k = 0; k < static_cast<std::uint64_t>(core.n); ++k) {
    const int peer = kth_peer(core, k);
    const auto i = static_cast<std::size_t>(peer);
    const std::byte* const near = peer == core.place ? call.input : large.alone ? nullptr : core.inputs[i];
    std::byte* const there = scratch(core) + k * large.segment_bytes;
    core.sources[i] = near != nullptr ? near + offset : there;
    if (near == nullptr && !fetch_input(core, peer, offset, there, nbytes)) return false;
  }
  return true;
}

void sum_piece(Core& core, std::uint64_t begin, std::uint64_t nbytes, Stores stores) {
  const Call& call = core.call;
  std::byte* const target[] = {call.output + begin};
  reduce_to(call.dtype, call.redop, target, 1, core.sources.data(), core.sources.size(), nbytes / itemsize(call.dtype),
            call.redop == RedOp::avg ? core.n : 1, stores);
  core.traffic.read_bytes += core.sources.size() * nbytes;
  core.traffic.written_bytes += nbytes;
}

bool reduce_piece(Core& core, const Large& large) {
  std::uint64_t begin = 0;
  const std::uint64_t nbytes = piece_of(core, large, begin);
  if (nbytes == 0) return true;
  if (!fetch_piece(core, large, begin, nbytes)) return false;
  const bool shared = core.call.collective == Collective::all_reduce && core.call.input != core.call.output;
  sum_piece(core, begin, nbytes, shared ? core.stores_for_peers(core.call.block_bytes) : Stores::cached);
  return true;
}

// What the peers have summed and this rank has not yet; `missing`: whether some is still to come.
Turn pull_sums(Core& core, Large& large, bool& missing) {
  Turn turn = Turn::waiting;
  missing = false;
  for (std::uint64_t k = 0; k + 1 < static_cast<std::uint64_t>(core.n); ++k) {
    const int peer = kth_peer(core, k);
    const auto i = static_cast<std::size_t>(peer);
    std::uint64_t begin = 0;
    const std::uint64_t size = part_of(core, large, peer, begin);
    std::uint64_t& pulled = large.pulled[i];
    if (pulled == size) continue;
    const std::uint64_t staged = core.members[i].board->staged.load(std::memory_order_acquire);
    const std::uint64_t pieces = staged > large.first_phase ? staged - large.first_phase : 0;
    const std::uint64_t ready = std::min(size, std::min(pieces, large.n_segments) * large.segment_bytes);
    if (ready > pulled) {
      const std::uint64_t nbytes = std::min(ready - pulled, kBytesPerTurn);
      if (!fetch_output(core, peer, begin + pulled, core.call.output + begin + pulled, nbytes)) return Turn::failed;
      pulled += nbytes;
      turn = Turn::busy;
    }
    missing = missing || pulled < size;
  }
  return turn;
}

Turn step_reduction(Core& core, Large& large) {
  const bool shares = core.call.collective == Collective::all_reduce;
  if (large.segment < large.n_segments) {
    if (!reduce_piece(core, large)) return Turn::failed;
    ++large.segment;
    if (shares) say(core, &Board::staged, large.first_phase + large.segment);
  }
  bool missing = false;
  const Turn turn = shares ? pull_sums(core, large, missing) : Turn::busy;
  if (turn == Turn::failed) return turn;
  if (large.segment < large.n_segments) return Turn::busy;
  if (!missing) return leave(core);
  return turn == Turn::busy ? turn : core.may_wait();
}

// Both of two sum everything. What one has read in place of the other is said at once: the other may write over it.
Turn step_alone(Core& core, Large& large) {
  std::uint64_t begin = 0;
  const std::uint64_t nbytes = piece_of(core, large, begin);
  const std::uint64_t read = large.first_phase + large.segment + 1;
  if (core.stage == kPieceIn) {
    if (!fetch_piece(core, large, begin, nbytes)) return Turn::failed;
    say(core, &Board::staged, read);
    core.stage = kPieceOut;
  }
  if (core.call.input == core.call.output && !all_at_least(core, &Board::staged, read)) return core.may_wait();
  sum_piece(core, begin, nbytes, Stores::cached);
  if (++large.segment == large.n_segments) return leave(core);
  core.stage = kPieceIn;
  return Turn::busy;
}

// The own slices go through the scratch too: they may lie on others that are still to be read.
Turn step_slices(Core& core, Large& large) {
  const Call& call = core.call;
  const std::uint64_t at = large.segment * large.segment_bytes;
  const std::uint64_t nbytes = std::min(large.segment_bytes, call.block_bytes - at);
  if (core.stage == kSlicesIn) {
    for (std::uint64_t k = 0; k < static_cast<std::uint64_t>(core.n); ++k) {
      const int peer = kth_peer(core, k);
      if (!fetch_input(core, peer, static_cast<std::uint64_t>(core.place) * call.block_bytes + at,
                       scratch(core) + static_cast<std::uint64_t>(peer) * large.segment_bytes, nbytes))
        return Turn::failed;
    }
    say(core, &Board::staged, large.first_phase + large.segment + 1);
    core.stage = kSlicesOut;
  }
  if (!all_at_least(core, &Board::staged, large.first_phase + large.segment + 1)) return core.may_wait();
  for (std::uint64_t block = 0; block < static_cast<std::uint64_t>(core.n); ++block)
    std::memcpy(call.output + block * call.block_bytes + at, scratch(core) + block * large.segment_bytes, nbytes);
  core.traffic.read_bytes += static_cast<std::uint64_t>(core.n) * nbytes;
  core.traffic.written_bytes += static_cast<std::uint64_t>(core.n) * nbytes;
  if (++large.segment == large.n_segments) return leave(core);
  core.stage = kSlicesIn;
  return Turn::busy;
}

}  // namespace

int begin_pulled(Core& core, Large& large) {
  const auto n = static_cast<std::uint64_t>(core.n);
  const std::uint64_t nbytes = core.call.block_bytes;
  const bool reducing = reduces(core.call.collective);
  large.peer = large.offset = large.segment = 0;
  large.pulled.assign(n, 0);
  large.first_phase = core.phase;
  large.n_segments = 1;
  large.alone = core.call.collective == Collective::all_reduce && core.sums_twice();
  if (reducing) {
    const bool shares = core.call.collective == Collective::all_reduce && !large.alone;
    large.part_bytes = shares ? ((nbytes + n - 1) / n + 63) / 64 * 64 : nbytes;
    large.segment_bytes = std::min(kMostPiece, kPieces / n / 64 * 64);
    large.n_segments = (large.part_bytes + large.segment_bytes - 1) / large.segment_bytes;
  } else if (core.route == Route::swapped) {
    large.segment_bytes = kScratchBytes / n / 64 * 64;
    large.n_segments = (nbytes + large.segment_bytes - 1) / large.segment_bytes;
  } else {
    // What several peers read, they read at about the same time.
    const bool shared = n > 2 && (core.call.collective == Collective::all_gather || core.call.collective == Collective::broadcast);
    const std::uint64_t sources = core.call.collective == Collective::broadcast ? 1 : n;
    large.segment_bytes = shared ? std::max<std::uint64_t>(kPieces / sources / 4096 * 4096, 4096) : nbytes;
    large.n_segments = (nbytes + large.segment_bytes - 1) / large.segment_bytes;
  }
  // A root has its own bytes already: nobody waits for it.
  if (core.call.collective == Collective::broadcast && core.place == core.call.root && core.call.input == core.call.output)
    large.segment = large.n_segments;
  // All ranks count alike: the phases of pieces and rounds are used up, whoever publishes them.
  core.phase += large.n_segments;
  if (large.alone) return kPieceIn;
  return reducing ? kReduction : core.route == Route::swapped ? kSlicesIn : kCopies;
}

Turn step_pulled(Core& core, Large& large) {
  switch (core.stage) {
    case kCopies: return step_copies(core, large);
    case kReduction: return step_reduction(core, large);
    case kPieceIn:
    case kPieceOut: return step_alone(core, large);
    case kSlicesIn:
    case kSlicesOut: return step_slices(core, large);
    default:
      if (!all_at_least(core, &Board::taken, core.phase)) return core.may_wait();
      return core.finish(true);
  }
}

}  // namespace ccl_lab::node
