// Windows: memory of every rank that all others write and read without its help (NCCLX, arXiv 2510.20171: window RMA).
//
// Is: what a window is, by rank: where its part lies, how it is reached, how many of its signals were taken; and those ops that
//     take time: bytes over NICs, waits for signals, flushes.
// Is not: how callers start and await them (sided.cpp). Not a transport, and no repair: bytes, order and lost paths are the
//     business of Links, as those of collectives.
//
//   put, peer's memory mapped ──► the caller copies, raises the signal, rings
//   put, over NICs            ──► pieces, one a lane ─► Links ─► confirmed, all of them ─► done
//                                  │ lane = a pair of NICs; lane 0 is home
//                                  └ pieces away from home carry silent signals, the one at home, posted last, the real one
//   wait ──► enough signals there: taken at once; else kept, looked at in each step
//   flush ──► done when all that was posted before is
//
// Why one notice is enough: a lane keeps its order, and signals of one channel are raised in the order of their posts, silent ones
// included. So a signal is seen only when everything this rank has posted to that peer before it has landed, whatever NICs carried
// it, and however often a NIC was lost on the way.
//
// Invariants
//  - An op ends exactly once. The memory of a put or get is its owner's again when it ends; where the rank was stopped, at reset.
//  - A signal is taken by one wait, and by none that does not get all it waits for.
//  - One thread at a time, that of Progress, but for MemoryWindow's own functions, which any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/segment.hpp"
#include "base/status.hpp"
#include "comm/arena.hpp"
#include "comm/goal.hpp"
#include "comm/links.hpp"
#include "trace/ring.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// Windows of a communicator that are open at a time; each has a signal channel.
inline constexpr int kWindows = 16;

// NIC here, NIC there.
using NicPair = std::pair<std::uint16_t, std::uint16_t>;

// What one rank shows.
struct WindowPart {
  std::uint64_t offset = 0;                   // in its arena
  std::uint64_t nbytes = 0;
  std::vector<NicPair> lanes;                   // where its memory is not mapped; home first
  std::shared_ptr<RankSegment> segment;       // where it is mapped
};

struct WindowSpec {
  std::uint32_t number = 0;                   // for messages: the same on all ranks
  int place = 0;                              // 0 to kWindows - 1, the same on all ranks
  std::vector<WindowPart> parts;              // by rank
  std::vector<std::uint64_t> raised;          // by rank: signals of earlier windows at this place
};

class MemoryWindow {
 public:
  MemoryWindow(const void* owner, int rank, std::int32_t channel, SignalTable signals, std::uint32_t epoch, WindowSpec spec,
         std::shared_ptr<Block> held);
  MemoryWindow(const MemoryWindow&) = delete;
  MemoryWindow& operator=(const MemoryWindow&) = delete;

  const void* owner() const { return owner_; }
  std::uint32_t number() const { return spec_.number; }
  std::int32_t channel() const { return channel_; }
  std::uint32_t epoch() const { return epoch_; }
  std::int32_t n_ranks() const { return static_cast<std::int32_t>(spec_.parts.size()); }
  const WindowPart& part(std::int32_t rank) const { return spec_.parts[static_cast<std::size_t>(rank)]; }
  // Null where it is reached over NICs.
  std::byte* mapped(std::int32_t rank, std::uint64_t offset) const;

  // ok, or which rank does not exist, or which bytes lie outside its part.
  Status check_rank(const char* what, std::int32_t rank) const;
  Status check(const char* what, std::int32_t rank, std::uint64_t offset, std::uint64_t nbytes) const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  void close() { closed_.store(true, std::memory_order_release); }

  // Signals of `rank` (-1: of all) that arrived and were not taken.
  std::uint64_t count(std::int32_t rank) const;
  // Takes `count` of them; `taken` gets a rank for each. False, and nothing is taken, where there are fewer.
  bool take(std::int32_t rank, std::uint64_t count, std::vector<std::int32_t>& taken);
  // Who has not signalled, for a wait that did not end.
  std::string missing(std::int32_t rank, std::uint64_t count) const;

 private:
  std::uint64_t waiting(std::int32_t rank) const;  // with mutex_ held

  const void* const owner_;
  const int rank_;
  const std::int32_t channel_;
  const SignalTable signals_;
  const std::uint32_t epoch_;
  const WindowSpec spec_;
  const std::shared_ptr<Block> held_;
  std::atomic<bool> closed_{false};
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> taken_;  // by rank: the value of its counter of which everything was taken
  std::int32_t turn_ = 0;             // whose signal a wait for any takes next
};

// One op of a window, from its post to its end.
class Sided final : public Goal {
 public:
  enum class What : std::uint8_t { put, get, signal, wait, flush };

  bool done() const override { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const Status& status() const { return status_; }
  const std::vector<std::int32_t>& taken() const { return taken_; }
  // By who has done it without Progress.
  void end() { done_.store(true, std::memory_order_release); }
  // A small put is copied when it is posted: its source is free at once, and whoever put it need not wait.
  void copy_source() {
    copy_.assign(memory, memory + nbytes);
    memory = copy_.data();
    copied_ = true;
  }
  bool copied() const { return copied_; }

  What what = What::put;
  std::shared_ptr<MemoryWindow> window;
  std::int32_t peer = -1;       // -1: any of them, all of them
  std::byte* memory = nullptr;  // here; a put only reads it
  std::uint64_t nbytes = 0;
  std::uint64_t offset = 0;     // in the peer's part
  bool signals = false;
  bool urgent = false;          // the caller waits for it
  std::uint64_t count = 1;      // of a wait

 private:
  friend class Windows;
  std::int64_t begin_ns_ = 0;
  std::size_t open_ = 0;        // pieces, or ops that a flush waits for
  Status failed_;               // of a piece
  std::vector<std::byte> copy_;
  bool copied_ = false;
  std::vector<std::shared_ptr<Sided>> flushes_;
  std::vector<std::int32_t> taken_;
  Status status_;
  std::atomic<bool> done_{false};
};

class Windows {
 public:
  // Puts from this size on are spread over lanes, in pieces not smaller than kPieceBytes.
  static constexpr std::uint64_t kSpreadBytes = 256 * 1024;
  static constexpr std::uint64_t kPieceBytes = 64 * 1024;
  // Puts up to this size are copied when they are posted.
  static constexpr std::uint64_t kCopyBytes = 8 * 1024;

  Windows(std::shared_ptr<RankSegment> own, Links& links, SpanWriter& spans)
      : own_(std::move(own)), links_(links), spans_(spans), lost_(static_cast<std::size_t>(own_->n_ranks())) {}

  // ok: it goes on by itself, or has ended already. `lost`: by rank, why it cannot be reached.
  Status post(const std::shared_ptr<Sided>& op, const std::vector<Status>& lost);
  // Takes its own out of `completions`; ends what can end. How many things happened.
  int settle(std::vector<Completion>& completions);
  // Waits that need `peer` end.
  void lost(std::int32_t peer, const Status& why);
  // A wait that nobody waits for any more ends with `why`, unless it has ended; other ops go on.
  void give_up(Sided& op, Status why);
  // Waits of a window that is being closed.
  void give_up(const MemoryWindow& window, const Status& why);
  void stop(const Status& reason);
  void reset(std::uint16_t epoch);
  bool busy() const { return n_live_ > 0 || !waits_.empty(); }
  // Grows with each end.
  std::uint64_t n_ended() const { return n_ended_; }

  // From any thread.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  bool is_lost(std::int32_t peer) const { return lost_[static_cast<std::size_t>(peer)].load(std::memory_order_acquire); }
  void record(const Sided& op, std::int64_t begin_ns, std::int64_t end_ns, SpanStatus status) const;

 private:
  struct Slot {
    std::shared_ptr<Sided> op;
    std::uint32_t serial = 0;
  };
  static constexpr std::uint64_t kOwn = std::uint64_t{1} << 63;  // of a cookie; executors leave it alone
  static constexpr std::uint32_t kSerials = 0x7fffffff;

  void transfer(const std::shared_ptr<Sided>& op);
  Status post_piece(const Sided& op, std::size_t lane, std::uint64_t begin, std::uint64_t nbytes, std::uint64_t cookie);
  void post_flush(const std::shared_ptr<Sided>& op);
  void piece_done(const Completion& completion);
  void finish(Sided& op, Status status);
  void release(std::size_t at);

  std::shared_ptr<RankSegment> own_;
  Links& links_;
  SpanWriter& spans_;
  std::vector<Slot> slots_;                     // transfers
  std::vector<std::size_t> free_;
  std::size_t n_live_ = 0;
  std::uint32_t serial_ = 0;
  std::vector<std::shared_ptr<Sided>> waits_;
  std::vector<std::atomic<bool>> lost_;         // by rank
  std::atomic<std::uint32_t> epoch_{0};
  std::uint64_t n_ended_ = 0;
};

}  // namespace ccl_lab
