// The exact tier for schedules that are told op by op and not kept: memory for ranks and links, not for ops.
//
// Is: an evaluation in the order in which a planner writes ops, which for algorithms that go step by step over all ranks is the order in
// which they happen. Is not: the finding of the static order (order.cpp); as in rings.hpp the batch of each op is computed along with its
// time, and each link and counter is checked to be served in the order (batch, turn, op). Invariant: where that check holds all times are
// those of exact.cpp; where not, the status says so.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "served.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {

enum class FlowStatus : std::uint8_t {
  ok = 0,
  disorder = 1,     // a link or a counter would be served in another order than the static one
  overflow = 2,     // an op happens after 2^60 ps (13 days), or nominal time does not fit
  bad_op = 3,       // a column is out of range
  too_early = 4,    // a wait is told before the signal that it waits for, or long after it
  unsupported = 5,  // a kind of op that is not evaluated this way
};

// Columns of a group of ops of one kind, one row each; of a row that has no peer, signal or bytes the value is not read.
struct FlowOps {
  std::uint8_t kind = 0;  // ccl_lab::Kind
  std::span<const std::int32_t> rank, channel, peer, sig_channel, value, chunk, n_chunks;
  std::int64_t sources = 1;
  std::span<const std::int64_t> ready_ps;  // when the owners of the memory that is read have entered; may be empty
  std::span<const std::int64_t> tier_ps;   // latency of the path beyond that of its links; may be empty
};

struct FlowLinks {
  std::int64_t ranks = 0, channels = 0;
  std::span<const std::int32_t> node_of;                    // [ranks]
  std::span<const std::int32_t> nic_tx, nic_rx;             // [ranks][channels] link ids; -1 where there is none
  std::span<const std::int64_t> bytes_per_s, latency_ps;    // by link id: ranks' tx, rx, memory, then NICs
  std::span<const std::int64_t> late_ps;                    // [ranks]
  std::int64_t alpha_ps = 0;
  std::int64_t count = 0, parts = 1, itemsize = 1;          // elements of a block, and what it is cut in (ccl_lab/ir/layout.py)
};

class Flow {
 public:
  explicit Flow(const FlowLinks& links);

  FlowStatus run(const FlowOps& ops);
  void finish(std::span<std::int64_t> finish_ps) const;
  [[nodiscard]] std::int64_t ops() const { return op_; }

 private:
  struct Channel {
    std::int64_t clock_ps = 0, left_ps = 0, batch = -1, left_tick = 0;
    bool row = false;  // its last op was a put or a signal, at which it goes on
  };
  struct Counter {
    std::int32_t source = -1, next = -1, raised = 0, consumed = 0;
    Message last, before;
  };

  FlowStatus row(const FlowOps& ops, std::size_t i);
  void find_shared();
  void fetch(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] bool contends(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::int64_t next_batch(const FlowOps& ops, std::size_t i);
  FlowStatus transfer(const FlowOps& ops, std::size_t i, Channel& channel);
  FlowStatus work(const FlowOps& ops, std::size_t i, Channel& channel);
  FlowStatus wait(const FlowOps& ops, std::size_t i, Channel& channel);
  FlowStatus signal(const FlowOps& ops, std::size_t i, Channel& channel);
  FlowStatus raise(const FlowOps& ops, std::size_t i, Message message);
  [[nodiscard]] bool in_range(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::int64_t bytes(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> path(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::int64_t latency(const FlowOps& ops, std::size_t i, std::int32_t a, std::int32_t b) const;
  [[nodiscard]] std::int64_t busy(std::int64_t nbytes, std::int32_t link);
  Counter& counter(std::int32_t destination, std::int32_t source, std::int32_t sig_channel);
  Channel& channel(const FlowOps& ops, std::size_t i) {
    return channels_[static_cast<std::size_t>(ops.rank[i] * links_.channels + ops.channel[i])];
  }

  FlowLinks links_;
  std::int64_t op_ = 0, first_op_ = 0;  // the one at work, and the first of its group
  std::int64_t chunk_bytes_ = -1;       // -1: chunks differ
  std::vector<Channel> channels_;
  std::vector<Served> served_;
  std::vector<std::int32_t> first_counter_;  // per (destination, channel): a list
  std::vector<std::uint64_t> listed_;        // per list: bits of the sources that may be in it
  std::deque<Counter> counters_;  // grows without being copied
  std::vector<bool> shared_;      // by link: several channels or ranks use it
  std::vector<std::pair<std::int64_t, std::size_t>> contending_;
  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };
  std::vector<Known> known_;  // durations, by size and rate
};

}  // namespace ccl_lab::sim
