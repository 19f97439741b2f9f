// What one rank shows the ranks of its node during a collective over mapped memory.
//
// Is: the layout of the board in the rank's segment, and the tags its lines carry.
// Is not: a protocol: small.cpp, mapped.cpp, staged.cpp and pair.cpp say who writes what, when.
//
//   Line      64 bytes: a tag, published last, and 56 bytes: the data of a tiny message, or where the buffers lie
//   headers   ring of lines, one per collective: collective k uses line k mod headers_of(n)
//   shorts, slots  rings of payloads of messages that do not fit a line: collective k uses number k mod the length of the ring
//   stage     two halves of the owner's plain input on its way to the peers, and two of results on their way to plain outputs
//   pairs     rings of lines from the owner to each rank of the node, for send and receive, with slots of their own
//
//   tag   63      56 55                                16 15             0
//         ┌─────────┬────────────────────────────────────┬───────────────┐
//         │ epoch   │ number of the collective           │ signature     │    0: never written
//         └─────────┴────────────────────────────────────┴───────────────┘
//
// Invariants
//  - Only the owner writes its board, but for `claim` (compare and swap by any rank) and the park words.
//  - A line is reused only after every reader said, by `done`, that it is through with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ccl_lab::node {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kInlineBytes = 56;
inline constexpr std::uint64_t kHeaders = 256;
inline constexpr std::uint64_t kShorts = 128;
inline constexpr std::size_t kShortBytes = 1024;
inline constexpr std::uint64_t kSlots = 16;
inline constexpr std::size_t kSlotBytes = 16384;
inline constexpr std::size_t kStageBytes = 262144;
inline constexpr std::uint64_t kHalves = 2;
inline constexpr std::uint64_t kPairLines = 16;
inline constexpr std::uint64_t kPairSlots = 8;
inline constexpr std::uint64_t kPairCells = 64;
inline constexpr std::uint64_t kPairCrossFrom = 1048576;  // bytes of a plain message from which the receiver says how it comes

// How far a rank may run ahead of its peers in messages of one line. Ranks that outnumber the cores gain by it: a root sends
// for a whole slice of its time. Two have a core each, and keep fewer lines in their caches.
// Powers of two, so that no division stands in the way of a message.
constexpr std::uint64_t headers_of(int n) { return n > 2 ? kHeaders : 64; }
constexpr std::uint64_t shorts_of(int n) { return n > 2 ? kShorts : 16; }

struct alignas(kLineBytes) Line {
  std::atomic<std::uint64_t> tag;
  std::byte data[kInlineBytes];
};
static_assert(sizeof(Line) == kLineBytes);

// What a rank is in; for errors only, so nothing is ordered by it.
struct Doing {
  std::atomic<std::uint64_t> nbytes;
  std::atomic<std::uint64_t> what;  // collective | dtype << 8 | redop << 16 | (root + 1) << 32
};

struct Board {
  // The number of the last collective that the owner has finished.
  alignas(kLineBytes) std::atomic<std::uint64_t> done;
  Doing doing;
  std::atomic<std::uint64_t> started;
  std::atomic<std::uint32_t> stopped;  // 1: the owner's call has failed, so its buffers may hold anything
  // Tasks: the next one of the owner's share, and how many the owner has run; both `phase << 32 | count`.
  alignas(kLineBytes) std::atomic<std::uint64_t> claim;
  alignas(kLineBytes) std::atomic<std::uint64_t> ran;
  // The last phase whose input the owner has staged, and the last it has read out.
  std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> taken;
  // 0: runs; else how it sleeps (park.hpp). A futex.
  alignas(kLineBytes) std::atomic<std::uint32_t> parked;
  // Where the owner ran when it last looked, plus 1 (spread.hpp); 0: it has not.
  std::atomic<std::int32_t> core;
  // Of the lowest rank of the node only: how many of its ranks sleep.
  alignas(kLineBytes) std::atomic<std::uint32_t> n_parked;
  alignas(kLineBytes) Line headers[kHeaders];
  alignas(4096) std::byte shorts[kShorts][kShortBytes];
  std::byte slots[kSlots][kSlotBytes];
  std::byte stage[kHalves][kStageBytes];
  std::byte result[kHalves][kStageBytes];
};

// The owner's side of the messages to one rank, and of those from it (pair.cpp).
struct PairBoard {
  alignas(kLineBytes) std::atomic<std::uint64_t> received;  // messages from that rank which the owner has received
  std::atomic<std::uint64_t> pieces_out;                    // pieces of long ones which the owner has read out of slots
  alignas(kLineBytes) std::atomic<std::uint64_t> copied;    // messages to that rank whose half the owner has copied
  std::atomic<std::uint64_t> pieces_in;                     // pieces of long ones which the owner has put into slots
  Line answer;                                              // to a long message from that rank: where it goes, and how
  Line lines[kPairLines];
  alignas(4096) std::byte slots[kPairSlots][kSlotBytes];
  // Of the rank with the lower place only: what messages of either direction go through, one at a time (pair.cpp).
  std::byte cells[kPairCells][kSlotBytes];
};

// The bytes of a board for a node of so many ranks; the pairs lie behind it, by rank of the node. Untouched pages cost nothing.
constexpr std::uint64_t board_bytes(std::uint64_t n_ranks) { return sizeof(Board) + n_ranks * sizeof(PairBoard); }

inline Board& board_at(std::byte* memory) { return *reinterpret_cast<Board*>(memory); }
inline PairBoard& pair_at(std::byte* memory, int peer) {
  return reinterpret_cast<PairBoard*>(memory + sizeof(Board))[peer];
}

inline constexpr int kSignatureBits = 16;
inline constexpr int kEpochShift = 56;

constexpr std::uint64_t make_tag(std::uint64_t epoch, std::uint64_t number, std::uint64_t signature) {
  return (epoch & 0xff) << kEpochShift | (number << kSignatureBits & ((std::uint64_t{1} << kEpochShift) - 1)) |
         (signature & 0xffff);
}
// Equal where two tags name the same collective, whatever it was called with.
constexpr bool same_number(std::uint64_t a, std::uint64_t b) { return ((a ^ b) >> kSignatureBits) == 0; }

}  // namespace ccl_lab::node
