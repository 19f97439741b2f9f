// What the protocols of the node layer share: the boards, the running collective, and how it is counted.
//
// Is: plain state with the few steps that every protocol takes: publish a header, see a peer's, finish.
// Is not: an interface (that is group.hpp), not safe for threads.
//
// Invariants
//  - Every rank of the node counts collectives and phases alike: number k here is number k everywhere.
//  - Reading a peer's memory happens only after its header of this collective was seen.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/segment.hpp"
#include "base/status.hpp"
#include "node/board.hpp"
#include "node/call.hpp"
#include "node/call_spans.hpp"
#include "node/park.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

// done: the collective has ended; busy: call again at once; waiting: for other ranks; failed: see Core::status.
enum class Turn : std::uint8_t { done, busy, waiting, failed };

struct Member {
  std::shared_ptr<RankSegment> segment;
  Board* board = nullptr;
  std::byte* memory = nullptr;  // of the board
  std::byte* arena = nullptr;
};

// Where the buffers of a rank lie, in its header of a large collective.
struct Where {
  std::uint64_t input = 0;   // offsets in the arena, of mapped buffers
  std::uint64_t output = 0;
  std::uint64_t address = 0;         // of the input in its process
  std::uint64_t output_address = 0;
  std::uint32_t flags = 0;
  std::uint32_t cross_from = 0;   // the least bytes that the rank would have copied by the kernel rather than staged
  std::uint16_t input_head = 0;   // bytes of a registered array before its first whole page, which only the owner sees
  std::uint16_t input_tail = 0;
  std::uint16_t output_head = 0;
  std::uint16_t output_tail = 0;
};
inline constexpr std::uint32_t kInputMapped = 1;
inline constexpr std::uint32_t kOutputMapped = 2;
inline constexpr std::uint32_t kOverlaps = 4;     // blocks of the output lie on other blocks of the input
inline constexpr std::uint32_t kCanCross = 8;     // the rank may copy from the memory of its peers through the kernel
inline constexpr std::uint32_t kStagedEarly = 16;   // the whole plain input lies in the stage already
inline constexpr std::uint32_t kCrossesNext = 32;   // of the rank that decides: the next call like this one goes by the kernel
inline constexpr std::uint32_t kInCells = 64;       // a message between two ranks that comes through the cells
inline constexpr std::uint32_t kStreamsNext = 128;  // of the rank that decides: the next stages of such a call are written past the caches
inline constexpr std::uint32_t kNeverCross = 0xffffffffu;
static_assert(sizeof(Where) <= kInlineBytes);

// From so many bytes on, what other cores will read is stored past the caches: they fetch a line from memory in 1 to 3 ns, one that
// another core has changed in 7 ns where both share a cache, in 25 where they do not.
inline constexpr std::uint64_t kStreamFrom = 32 * 1024;
// So much of an all_reduce each of two ranks sums by itself where the kernel copies: beyond it the additions come from memory.
inline constexpr std::uint64_t kMostSummedTwice = 512 * 1024;

// How a large message moves; the same on all ranks.
enum class Route : std::uint8_t {
  mapped,   // in place, by whoever has time (mapped.cpp)
  staged,   // segment by segment through the boards (staged.cpp)
  pulled,   // everyone reads what it needs from its peers (pulled.cpp)
  swapped,  // ... where outputs lie on inputs that peers still have to read
};

// How many bytes went through the kernels of this rank: what memory, or a cache, had to carry.
struct Traffic {
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};

struct Core {
  int place = 0;                 // of this rank among those of the node
  int n = 1;
  int n_cores = 1;
  std::vector<Member> members;   // by place
  std::vector<std::int32_t> ranks;
  Board* own = nullptr;
  std::uint64_t arena_bytes = 0;
  Parking parking;
  CallSpans spans;
  Traffic traffic;

  std::uint64_t epoch = 0;
  std::uint64_t number = 0;      // of the last collective begun
  std::uint64_t phase = 0;       // of the last round of tasks begun
  std::uint64_t all_done = 0;    // every peer has finished this collective
  std::vector<std::uint64_t> sent, received;  // messages of send_recv, by place
  std::vector<bool> has_cells;   // by place: the next message through the cells that are shared with that rank is this rank's to send

  // By place: where the buffers of the running collective are mapped here; null: plain memory of that rank, or none.
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::vector<Where> where;
  std::vector<const std::byte*> sources;  // of a task
  std::vector<std::byte*> targets;

  // The running collective.
  Call call;
  Blocks blocks;
  std::uint64_t tag = 0;
  std::uint64_t message = 0;     // of send_recv, between these two ranks
  int stage = 0;                 // where the protocol stands
  bool edges = false;            // some buffers begin or end within a page that only their owners see
  Route route = Route::mapped;
  bool streams = false;          // ranks share cores, and yet what they stage goes past the caches
  std::int64_t coming_ns = 0;    // since when a message comes that could have come another way; 0: it could not
  int seen = 0;                  // how many headers were seen, in order of place
  Status status;

  const Line& header(int place_of) const {
    return members[static_cast<std::size_t>(place_of)].board->headers[number & (headers_of(n) - 1)];
  }
  PairBoard& pair(int owner, int peer) const { return pair_at(members[static_cast<std::size_t>(owner)].memory, peer); }
  std::byte* cell(int peer, std::uint64_t number) const { return pair(std::min(place, peer), std::max(place, peer)).cells[number]; }
  std::byte* short_slot(int place_of) const {
    return members[static_cast<std::size_t>(place_of)].board->shorts[number & (shorts_of(n) - 1)];
  }
  std::byte* slot(int place_of) const {
    return members[static_cast<std::size_t>(place_of)].board->slots[number % kSlots];
  }

  // True once what this collective uses of a ring of `depth` may be overwritten, and so its line.
  bool room(std::uint64_t depth);
  // Publishes `nbytes` bytes (at most kInlineBytes) under this collective's tag, and wakes who sleeps.
  void publish(const void* data, std::size_t nbytes) {
    Line& line = own->headers[number & (headers_of(n) - 1)];
    if (nbytes > 0) std::memcpy(line.data, data, nbytes);
    line.tag.store(tag, std::memory_order_release);
    if (parking.anyone()) wake_all();
  }
  // True once the header of `place_of` is there. A header of another call than ours is an error in `status`.
  bool arrived(int place_of) {
    const std::uint64_t found = header(place_of).tag.load(std::memory_order_acquire);
    if (found == tag) return true;
    if (same_number(found, tag)) mismatch(place_of);
    return false;
  }
  Turn may_wait() const { return status.ok() ? Turn::waiting : Turn::failed; }
  // Sees the headers of all ranks but this one, from where it stopped.
  Turn arrive_all();
  Turn finish(bool everyone_entered);
  // After all headers: finds every buffer, and the route.
  void resolve();
  void wake_all() const;
  void wake(int place_of) const;

  void mismatch(int place_of);
  // Whether the kernel's copies are worth a try, where `from` bytes are the least that are.
  bool crossing_pays(bool overlaps, std::uint64_t from) const;
  Route choose_route(bool all_mapped, bool overlaps, bool may_cross);
  // How to store `nbytes` that peers read next. One on the same core would rather have them in the caches, unless all read them.
  Stores stores_for_peers(std::uint64_t nbytes, bool all_read = false) const {
    return nbytes >= kStreamFrom && (all_read || n <= n_cores) ? Stores::streaming : Stores::cached;
  }
  // Copies, and counts it.
  void copy(std::byte* to, const std::byte* from, std::uint64_t nbytes, Stores stores);
  // Whether both ranks sum all of an all_reduce that the kernel copies.
  bool sums_twice() const { return n == 2 && call.block_bytes <= kMostSummedTwice; }
  // Whether the kernel copied.
  bool crossed() const { return route == Route::pulled || route == Route::swapped; }
};

inline bool Core::room(std::uint64_t depth) {
  if (number <= all_done + depth) return true;
  std::uint64_t least = number;
  for (const Member& member : members)
    if (member.board != own) least = std::min(least, member.board->done.load(std::memory_order_acquire));
  all_done = least;
  return number <= all_done + depth;
}

inline Turn Core::arrive_all() {
  for (; seen < n; ++seen)
    if (seen != place && !arrived(seen)) return may_wait();
  return Turn::done;
}

inline Turn Core::finish(bool everyone_entered) {
  own->done.store(number, std::memory_order_release);
  // Whoever has entered this collective has left the one before.
  if (everyone_entered) all_done = number - 1;
  return Turn::done;
}

// The protocols: each advances the running collective as far as it can.
Turn step_small(Core& core);
Turn step_pair(Core& core);

}  // namespace ccl_lab::node
