// The shared memory of one rank: what its node's peers and the notebook process may read and write.
//
// Is: one sealed memfd, created by the rank, mapped by others of the same user through /proc/<pid>/fd/<fd>.
// Is not: an allocator (that is `comm`) or a protocol: who writes what, when, is said at each part.
//
//   0 ┌──────────────────┐ SegmentHeader: sizes and where everything is; written once by create()
//     ├──────────────────┤ Control: abort, sleeping, heartbeat, progress
//     ├──────────────────┤ signals: u64[n_ranks][n_signal_channels], rows padded to 64 bytes; row = source rank
//     ├──────────────────┤ ready slots: ReadySlot[n_ranks][kReadyDepth]; region key 0; row = who wrote it, in turn
//     ├──────────────────┤ regions: RegionSlot[kRegionSlots]: plain memory the owner lets peers copy to and from
//     ├──────────────────┤ shapers: NicShaper[n_nics]; those of the node's lowest rank count for all its ranks
//     ├──────────────────┤ faults: NicFaults[n_nics]; the same
//     ├──────────────────┤ trace: ring of SpanRecord (trace/ring.hpp)
//     ├──────────────────┤ board: where the ranks of a node meet (node/board.hpp); 4 KiB aligned
//     ├──────────────────┤ arena, 2 MiB aligned: registered memory; region key 1; sparse
//     └──────────────────┘
//
// Invariants
//  - Offsets follow from the sizes; open() recomputes them and refuses a header that differs or a file that is too small.
//  - The file cannot shrink (F_SEAL_SHRINK): a mapping never faults because a peer truncated it.
//  - No name in the file system: when the last process that maps it ends, the memory is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/doorbell.hpp"
#include "base/nic_faults.hpp"
#include "base/signals.hpp"
#include "base/status.hpp"
#include "base/triggers.hpp"

namespace ccl_lab {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics are shared by processes");

inline constexpr std::uint32_t kSegmentVersion = 7;
inline constexpr std::uint32_t kControlRegionKey = 0;
inline constexpr std::uint32_t kArenaRegionKey = 1;
inline constexpr std::uint64_t kSpanRingHeaderBytes = 256;
inline constexpr std::uint64_t kSpanBytes = 48;

struct SegmentOptions {
  int n_signal_channels = 257;                 // schedule channels and, last, READY
  int n_nics = 1;                               // of the node
  std::uint32_t trace_spans = 65536;            // power of two
  std::uint64_t board_bytes = 0;
  std::uint64_t arena_bytes = std::uint64_t{1} << 36;
};

struct SegmentHeader {
  char magic[8];
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t n_ranks;
  std::uint32_t n_signal_channels;
  std::uint32_t n_nics;
  std::uint32_t trace_spans;
  std::uint64_t signals_offset, signals_bytes;
  std::uint64_t ready_offset, ready_bytes;
  std::uint64_t regions_offset, regions_bytes;
  std::uint64_t shapers_offset, shapers_bytes;
  std::uint64_t faults_offset, faults_bytes;
  std::uint64_t trace_offset, trace_bytes;
  std::uint64_t control_offset, control_bytes;
  std::uint64_t board_offset, board_bytes;
  std::uint64_t arena_offset, arena_bytes;
  std::uint64_t total_bytes;
  std::uint64_t doorbell_inode;
  std::int32_t doorbell_fd;
  std::int32_t pid;
};

inline constexpr std::size_t kAbortReasonBytes = 1024;

// What an injector has asked of the messages a rank sends out of band (fault/udp_messenger.hpp), and how often it came true.
enum class MessageFault : std::uint8_t { loss_ppm, double_ppm, late_ns };
inline constexpr std::size_t kMessageFaults = 3;
inline constexpr std::array<const char*, kMessageFaults> kMessageFaultNames = {"loss_ppm", "double_ppm", "late_ns"};

struct alignas(64) MessageFaults {
  std::atomic<std::uint64_t> values[kMessageFaults];  // dropped and doubled, of a million; held for up to so many ns
  std::atomic<std::uint64_t> hits[kMessageFaults];    // messages

  std::uint64_t value(MessageFault kind) const { return values[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed); }
  void hit(MessageFault kind) { hits[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed); }
};

struct Control {
  // Set by any process through RankSegment::abort, cleared by the owner.
  alignas(64) std::atomic<std::uint32_t> abort_claim;
  std::atomic<std::uint32_t> abort_code;  // a Code; ok: not aborted; published last
  std::atomic<std::uint32_t> abort_epoch;  // how often this rank was aborted
  std::int32_t culprit;
  std::int32_t culprit_nic;
  char abort_reason[kAbortReasonBytes];
  // Ringers and the owner (doorbell.hpp).
  alignas(64) std::atomic<std::uint32_t> sleeping;
  // Written by the owner, read by anyone.
  alignas(64) std::atomic<std::uint64_t> heartbeat;
  std::atomic<std::uint64_t> coll_id;  // the collective in progress
  std::atomic<std::uint32_t> state;
  // Written by the notebook or the owner.
  alignas(64) std::atomic<std::uint32_t> trace_enabled;
  // Written by an injector, obeyed by the owner.
  MessageFaults message_faults;
  // Written by an injector, fired by the ranks of the node whose lowest rank this is.
  Triggers triggers;
};

// What a rank says to a peer when it enters a collective; written by the peer's put, READY is raised after it.
struct alignas(64) ReadySlot {
  std::uint64_t sequence;
  std::uint64_t plan_hash;
  std::uint64_t count;
  std::uint8_t collective;
  std::uint8_t dtype;
  std::uint8_t redop;
  std::uint8_t flags;
  std::uint32_t key[3];  // by Buffer
  std::uint64_t offset[3];
  std::uint64_t size[3];
};
static_assert(sizeof(ReadySlot) == 128);

// How many READYs of one rank may be there before the first of them is used: that of entry n has slot n modulo this.
inline constexpr std::size_t kReadyDepth = 4;
constexpr std::size_t ready_slot(std::int32_t rank, std::uint64_t sequence) {
  return static_cast<std::size_t>(rank) * kReadyDepth + static_cast<std::size_t>(sequence % kReadyDepth);
}

// Memory of the owner outside the segment, by its address there; written by the owner, `state` last.
struct RegionSlot {
  std::atomic<std::uint32_t> state;  // 0 free, 1 in use
  std::uint32_t key;
  std::uint64_t base;
  std::uint64_t size;
};
inline constexpr std::size_t kRegionSlots = 64;

// One NIC of a node, shared by the node's ranks: a generic cell rate algorithm per direction (transport/shaper.hpp).
struct alignas(64) NicShaper {
  std::atomic<std::int64_t> tx_tat_ns;  // theoretical arrival time: when all bytes admitted so far are through
  std::atomic<std::uint64_t> tx_bytes;
  alignas(64) std::atomic<std::int64_t> rx_tat_ns;
  std::atomic<std::uint64_t> rx_bytes;
  alignas(64) std::atomic<std::uint64_t> bytes_per_s;  // 0: unshaped
  std::atomic<std::uint32_t> up;
};

class RankSegment {
 public:
  static Result<RankSegment> create(int rank, int n_ranks, const SegmentOptions& options);
  // Maps the segment behind descriptor `fd` of process `pid`, and its doorbell.
  static Result<RankSegment> open(int pid, int fd);

  RankSegment(RankSegment&& other) noexcept;
  RankSegment& operator=(RankSegment&& other) noexcept;
  RankSegment(const RankSegment&) = delete;
  RankSegment& operator=(const RankSegment&) = delete;
  ~RankSegment();

  int fd() const { return fd_; }  // -1 where this was opened: only the owner keeps the file
  int pid() const { return header_.pid; }
  int rank() const { return header_.rank; }
  int n_ranks() const { return header_.n_ranks; }
  int n_nics() const { return static_cast<int>(header_.n_nics); }
  const SegmentHeader& header() const { return header_; }

  Control& control() const { return *part<Control>(header_.control_offset); }
  SignalTable signals() const;
  std::span<ReadySlot> ready_slots() const;
  std::span<RegionSlot> region_slots() const;
  std::span<NicShaper> shapers() const;
  std::span<NicFaults> faults() const;
  std::byte* trace_memory() const { return base_ + header_.trace_offset; }
  std::uint32_t trace_spans() const { return header_.trace_spans; }
  std::byte* board() const { return base_ + header_.board_offset; }
  std::uint64_t board_bytes() const { return header_.board_bytes; }
  std::byte* arena() const { return base_ + header_.arena_offset; }
  std::uint64_t arena_bytes() const { return header_.arena_bytes; }
  // Gives the arena's pages in [offset, offset + nbytes) back to the system; they read as zero afterwards.
  // The owner only.
  Status release(std::uint64_t offset, std::uint64_t nbytes) const;
  // Puts the whole huge pages (2 MiB) within [offset, offset + nbytes) of the arena there now, as huge pages, keeping what they hold.
  // Returns their bytes; less where the system has none, or knows no such advice (Linux before 6.1). Of untouched memory it takes
  // a tenth of what first touching it page by page would. The owner only.
  std::uint64_t make_huge(std::uint64_t offset, std::uint64_t nbytes) const;
  // The memory of region key 0 or 1; empty for other keys (see region_slots).
  std::span<std::byte> region(std::uint32_t key) const;

  const Doorbell& doorbell() const { return doorbell_; }

  // Asks the owner to stop: the first reason is kept. True if this call was the first. Wakes the owner.
  bool abort(Code code, std::string_view reason, int culprit, int nic = -1) const;
  // ok, or why the owner was told to stop (`rank` and `nic` of the Status are the culprit's).
  Status abort_status() const;
  bool aborted() const { return control().abort_code.load(std::memory_order_acquire) != 0; }
  void clear_abort() const;  // the owner only

 private:
  RankSegment() = default;
  template <class T>
  T* part(std::uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  int fd_ = -1;
  std::byte* base_ = nullptr;
  SegmentHeader header_{};  // a private copy: a peer that scribbles on the shared one cannot move our pointers
  Doorbell doorbell_;
};

}  // namespace ccl_lab
