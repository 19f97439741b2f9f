// One collective of one rank, from start to its end.
//
// Is: what a caller holds: done, the error, the times; and what a driver needs: program, binding, memory, deadline.
// Is not: the execution (progress.cpp), nor the waiting: who waits may have to drive (driver.hpp).
//
//   queued ──head of the queue──► running ──► ended (ok, or the first error)
//      └──────────────── engine stopped ────────►┘
//
// Invariants
//  - Ends exactly once; the status does not change afterwards.
//  - Memory in use is held until it ended, whatever Python drops.
//  - Works of an engine live in memory that later works use again: a start takes nothing from the system.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/stall.hpp"
#include "base/status.hpp"
#include "comm/arena.hpp"
#include "comm/goal.hpp"
#include "comm/scratch.hpp"
#include "comm/stream.hpp"
#include "exec/exchange.hpp"
#include "exec/executor.hpp"
#include "exec/program.hpp"
#include "node/call.hpp"

namespace ccl_lab {

// A compiled program and what this engine keeps for it.
struct LoadedProgram {
  Program program;
  Scratch scratch;
  std::atomic<std::uint64_t> links_version{0};  // the version of the links for which all its peers were connected

  // Where the node layer runs what the program says: the collective, without its buffers.
  std::optional<node::Call> fused;
  std::string host_work;                       // what of it the processor does with the bytes, which memory of a GPU forbids; empty: nothing
  std::vector<std::int32_t> share_ops;         // by rank: the op of the schedule that its share of the work stands for

  std::shared_ptr<std::atomic<std::int64_t>> alive;  // counts the loaded programs of an engine

  LoadedProgram(Program compiled, std::shared_ptr<std::atomic<std::int64_t>> counter)
      : program(std::move(compiled)), alive(std::move(counter)) {
    alive->fetch_add(1, std::memory_order_relaxed);
  }
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;
  ~LoadedProgram() { alive->fetch_sub(1, std::memory_order_relaxed); }
};

// What of a program would have the processor touch bytes of its buffers: the first op, in words; empty where NICs do all of it.
// `load_store`: by rank, 1 where bytes go through memory that both share.
std::string host_work_of(const Program& program, std::span<const std::uint8_t> load_store);

// The blocks that a run uses: those of its buffers.
using Memory = std::array<std::shared_ptr<Block>, kBufferCount>;

// Of a work whose program is made when its turn has come.
struct ExchangeRun {
  std::shared_ptr<Exchange> exchange;
  Counts counts;
  bool registered = false;            // the send buffer
  std::vector<KnownPeer> known;       // handles; empty: peers say where their memory is
};

class Work final : public Goal {
 public:
  Work(std::shared_ptr<LoadedProgram> program, const Binding& binding, Memory memory, std::uint32_t coll_id,
       std::int64_t deadline_ns, double timeout_s, std::unique_ptr<Stream> stream = nullptr)
      : program_(std::move(program)),
        binding_(binding),
        memory_(std::move(memory)),
        coll_id_(coll_id),
        deadline_ns_(deadline_ns),
        timeout_s_(timeout_s),
        stream_(std::move(stream)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const Status& status() const { return status_; }
  std::int64_t begin_ns() const { return begin_ns_.load(std::memory_order_relaxed); }
  std::int64_t end_ns() const { return end_ns_.load(std::memory_order_relaxed); }

  // The caller that waits is wanted: it has ended, or a partition of the caller's computation is to be done.
  bool calls() const override { return done() || (stream_ != nullptr && stream_->calls()); }
  // Where it computes; else null.
  Stream* stream() const { return stream_.get(); }
  // Null where it has no SCRATCH.
  const std::shared_ptr<Block>& scratch() const { return memory_[static_cast<std::size_t>(Buffer::scratch)]; }

  // For whoever drives.
  const Program& program() const { return exchange_.exchange == nullptr ? program_->program : exchange_.exchange->program(); }
  // Before it is handed to a driver.
  void set_exchange(ExchangeRun run) { exchange_ = std::move(run); }
  void set_stall(std::shared_ptr<Stall> stall) { stall_ = std::move(stall); }
  // Null where nothing holds it back.
  Stall* stall() const { return stall_.get(); }
  // What it waited for others counts for nothing: its time begins no earlier than this.
  void not_before(std::int64_t begin_ns) {
    if (begin_ns == 0 || !(timeout_s_ >= 0 && timeout_s_ <= kLongestS)) return;
    deadline_ns_ = std::max(deadline_ns_, begin_ns + static_cast<std::int64_t>(timeout_s_ * 1e9));
  }
  // Its turn has come: reads what it is to move.
  Status read_counts() {
    if (exchange_.exchange == nullptr) return {};
    return exchange_.exchange->begin(exchange_.counts, binding_, exchange_.registered, !exchange_.known.empty());
  }
  std::span<const KnownPeer> known() const { return exchange_.known; }
  bool fused() const { return program_->fused.has_value(); }
  // Whether it says all that it will do, and with which memory, before its turn: then others may begin before it has ended.
  bool overlaps() const { return !fused() && exchange_.exchange == nullptr && stream_ == nullptr; }
  node::Call call() const {
    node::Call call = *program_->fused;
    call.input = binding_.base[0];
    call.output = binding_.base[1];
    call.coll_id = coll_id_;
    return call;
  }
  const Binding& binding() const { return binding_; }
  std::uint32_t coll_id() const { return coll_id_; }
  std::int64_t deadline_ns() const { return deadline_ns_; }
  double timeout_s() const { return timeout_s_; }
  void begin(std::int64_t now_ns) { begin_ns_.store(now_ns, std::memory_order_relaxed); }
  void end(std::int64_t now_ns, Status status);
  // The blocks, for those who must hold them longer than this.
  const Memory& memory() const { return memory_; }

 private:
  static constexpr double kLongestS = 1e9;

  std::shared_ptr<LoadedProgram> program_;
  Binding binding_;
  Memory memory_;
  std::uint32_t coll_id_;
  std::int64_t deadline_ns_;
  double timeout_s_;
  std::unique_ptr<Stream> stream_;
  ExchangeRun exchange_;
  std::shared_ptr<Stall> stall_;
  std::atomic<std::int64_t> begin_ns_{0};
  std::atomic<std::int64_t> end_ns_{0};
  std::atomic<bool> done_{false};
  Status status_;
};

// Pieces of one size that were used and will be used again. Safe for threads.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    for (void* piece : free_) ::operator delete(piece);
  }

  void* take(std::size_t nbytes) {
    {
      const std::lock_guard lock(mutex_);
      if (nbytes == nbytes_ && !free_.empty()) {
        void* const piece = free_.back();
        free_.pop_back();
        return piece;
      }
    }
    return ::operator new(nbytes);
  }
  void give(void* piece, std::size_t nbytes) {
    {
      const std::lock_guard lock(mutex_);
      if (nbytes_ == 0) {
        nbytes_ = nbytes;
        free_.reserve(kKept);
      }
      if (nbytes == nbytes_ && free_.size() < kKept) {
        free_.push_back(piece);
        return;
      }
    }
    ::operator delete(piece);
  }

 private:
  static constexpr std::size_t kKept = 256;
  std::mutex mutex_;
  std::size_t nbytes_ = 0;
  std::vector<void*> free_;
};

// For std::allocate_shared: object and counts from a pool, which lives as long as they do.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;

  explicit PoolAllocator(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  template <class U>
  PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}

  T* allocate(std::size_t n) { return static_cast<T*>(pool_->take(n * sizeof(T))); }
  void deallocate(T* piece, std::size_t n) { pool_->give(piece, n * sizeof(T)); }
  const std::shared_ptr<Pool>& pool() const { return pool_; }

  template <class U>
  bool operator==(const PoolAllocator<U>& other) const {
    return pool_ == other.pool();
  }

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace ccl_lab
