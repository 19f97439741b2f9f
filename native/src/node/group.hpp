// The ranks of one node as one group: collectives over memory that all of them map.
//
// Is: what a caller, or a progress thread, drives: begin a collective, then step until it is done; or `drive`, which
//     steps, spins, yields and sleeps as the machine's load asks for.
// Is not: a queue or a thread, and not safe for threads: one collective at a time, in the same order on all ranks.
//
//   idle ──begin──► running ──step: done──► idle
//                      │ step: failed, or stop()
//                      ▼
//                   broken ──reset(epoch), on all ranks──► idle
//
// Invariants
//  - A collective allocates nothing, takes no lock and, unless it has to sleep, makes no system call but sched_yield, now and then one
//    about cores that ranks share, and, for plain buffers, copies.
//  - Memory in the arena is used in place. Other memory is copied by the kernel where that pays, else staged.
//  - Whoever runs a collective where others could, or changes the aliases, has taken the group before.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "node/core.hpp"
#include "node/large.hpp"
#include "node/spread.hpp"
#include "node/trials.hpp"

namespace ccl_lab::node {

// Whether the kernel copies plain buffers between processes: where that was the faster way, never, or wherever it can.
enum class Cross : std::uint8_t { automatic, never, always };

struct GroupOptions {
  std::int64_t spin_ns = 20'000;
  int n_cores = 0;          // that the ranks of the node share; 0: those this process may use
  Cross cross = Cross::automatic;
};

// A range of ordinary memory whose whole pages are those of the arena too.
struct Alias {
  const std::byte* begin;
  const std::byte* end;
  const std::byte* pages;      // the first whole page
  const std::byte* pages_end;
  std::uint64_t offset;        // of `pages` in the arena; there is a page of the same block before it
};

class Group {
 public:
  // `ranks` of the node, ascending; `own` is the segment of one of them, with a board.
  Group(std::shared_ptr<RankSegment> own, std::vector<std::int32_t> ranks, const GroupOptions& options, SpanWriter* spans);

  Status attach(std::int32_t rank, std::shared_ptr<RankSegment> segment);
  // True once all ranks of the node are attached.
  bool complete() const { return n_attached_ == core_.n; }
  int size() const { return core_.n; }
  // The place of a rank in the node; -1 if it is elsewhere.
  int place_of(std::int32_t rank) const;

  // True if the next message of this size goes through the cells that two ranks share, whatever memory it is on (pair.cpp). The caller has
  // taken the group, and begins the call before it leaves.
  bool by_cells(const Call& call) const;

  // The group for one thread alone, until it leaves; false while another one has it.
  bool take() { return !taken_.exchange(true, std::memory_order_acquire); }
  void leave() { taken_.store(false, std::memory_order_release); }

  // Checks what the caller gives and starts; only while idle. root and peer are places. A driver that says when the call begins and ends
  // records its end, once it is done or stopped.
  Status begin(const Call& call, Timed timed = Timed::by_group);
  void record_end(const Ended& whole) { core_.spans.end(whole); }
  // Nothing is to be done just now: time for spans.
  void rest() { core_.spans.flush(); }
  Turn step();
  // Steps until done or failed; waiting if `for_ns` passed, or a sleep ended, without that.
  Turn drive(std::int64_t for_ns);
  bool running() const { return running_; }
  // Of the last turn that failed.
  const Status& status() const { return core_.status; }
  // Who is not there yet, for an error that a deadline passed.
  Status missing(double timeout_s) const;

  // Ends what runs; nothing begins until reset.
  void stop(Status reason);
  // All ranks must do it, with the same epoch, before any begins again.
  void reset(std::uint64_t epoch);

  // A thread that sleeps in ppoll on the rank's doorbell: between these, peers ring it.
  void announce_doorbell() const { core_.parking.announce(Sleep::doorbell); }
  void take_back_doorbell() const { core_.parking.take_back(); }

  // Ranges do not overlap.
  void add_alias(const Alias& alias);
  void remove_alias(const void* begin);

  const Traffic& traffic() const { return core_.traffic; }
  // The largest contribution that goes through the board; above it buffers are used in place.
  static bool is_small(Collective collective, std::uint64_t block_bytes, int n);

 private:
  Turn advance();
  Turn advance_pair();
  [[gnu::noinline]] Turn advance_large();  // what small messages need not carry
  Status check(const Call& call) const;
  void begin_pair();
  void begin_trials();
  void deal_cells();
  void describe_buffers();
  void learn();
  bool locate(const std::byte* data, std::uint64_t nbytes, std::uint64_t& offset, std::uint16_t& head, std::uint16_t& tail) const;
  Turn wait_for(std::int64_t for_ns, Turn turn);
  std::int64_t give_way(std::int64_t idle_for_ns, std::int64_t now);
  bool mates_wait_too() const;
  Turn sleep(std::int64_t longest_ns);

  Core core_;
  Large large_;
  Spread spread_;
  std::shared_ptr<RankSegment> own_;
  GroupOptions options_;
  std::vector<Alias> aliases_;  // by address
  std::atomic<bool> taken_{false};
  int n_attached_ = 1;
  bool small_ = false;
  bool running_ = false;
  bool broken_ = false;
  bool can_cross_ = false;
  std::uint32_t cross_from_ = kNeverCross;
  Foretold foretold_;                    // whether the kernel copies
  Foretold foretold_streams_;            // whether stages are written past the caches
  std::unique_ptr<RouteTrials> trials_;  // of the rank that decides for all, and of one that has received long messages
  std::unique_ptr<RouteTrials> store_trials_;  // of the rank that decides: stages past the caches, or through them
  bool asked_ = false;                   // whether trials pay
  std::int64_t described_ns_ = 0;  // since when a large call is timed for the trials
};

}  // namespace ccl_lab::node
