// The exact tier for schedules that are told op by op and not kept: memory for ranks and links, not for ops.
//
// Is: two evaluations. *As written* (flow.cpp): in the order in which a planner writes ops, which for algorithms that go step by step over
// all ranks is the order in which they happen. As in rings.hpp the batch of each op is computed along with its time, and each link and
// counter is checked to be served in the order (batch, turn, op). *Ordered* (flow_ordered.cpp): what transfers wait for all that may come
// before them, so that any order of telling will do, at some three times the cost. Is not: the finding of the static order for a whole
// table (order.cpp). Invariant: where the status is ok all times are those of exact.cpp; where not, it says so.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "order.hpp"
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
  too_many = 6,     // more ops wait for others than are kept
  deadlock = 7,     // all is told, and some ops can never run
  closed = 8,       // an op of a channel of which nothing more was to be told
};

// Columns of a group of ops of one kind, one row each; of a row that has no peer, signal or bytes the value is not read.
struct FlowOps {
  std::uint8_t kind = 0;  // ccl_lab::Kind
  std::span<const std::int32_t> rank, channel, peer, sig_channel, value, chunk, n_chunks;
  std::int64_t sources = 1;
  std::span<const std::int64_t> ready_ps;  // when the owners of the memory that is read have entered; may be empty
  std::span<const std::int64_t> tier_ps;   // latency of the path beyond that of its links; may be empty
  std::span<const std::int32_t> step = {};  // where steps are a timetable (order.hpp); may be empty where they are not
  // How often each op comes: all of them, then all that come twice, and so on. Of puts to others and reductions, where ranks have one channel
  // and steps are no timetable; empty: once.
  std::span<const std::int32_t> times = {};
};

struct FlowLinks {
  std::int64_t ranks = 0, channels = 0;
  std::int64_t nodes = 1, nics = 0;                         // nics: of a node
  std::span<const std::int32_t> node_of;                    // [ranks]
  std::span<const std::uint16_t> nic;                       // [ranks][channels] of those of the node; none is read on one node
  std::span<const std::int64_t> bytes_per_s, latency_ps;    // by link id: ranks' tx, rx, memory, then NICs' tx, rx, node by node
  std::span<const std::int64_t> late_ps;                    // [ranks]
  std::int64_t alpha_ps = 0;
  std::int64_t count = 0, parts = 1, itemsize = 1;          // elements of a block, and what it is cut in (ccl_lab/ir/layout.py)
  bool timetable = false;  // such schedules have no flushes
  ChangeColumns changes = {};
  std::int64_t most_waiting = 6'000'000;  // ops that are kept until they can be served: 240 MB
};

class Flow {
 public:
  Flow(const FlowLinks& links, bool ordered);

  // Ops of a group belong to different channels, or follow one another in theirs.
  FlowStatus run(const FlowOps& ops);
  // Nothing more is told of these channels of ranks: what others are told waits for them no longer.
  FlowStatus close(std::span<const std::int32_t> rank, std::span<const std::int32_t> channel);
  // All is told: raises finish_ps [ranks] to the end of each rank.
  FlowStatus finish(std::span<std::int64_t> finish_ps);
  [[nodiscard]] std::int64_t ops() const { return op_; }

 private:
  // There are as many as ranks times channels: millions.
  struct Channel {
    std::int64_t clock_ps = 0;
    std::int64_t batch : 63 = -1;
    bool row : 1 = false;  // its last op was a put or a signal, at which it goes on
  };
  static_assert(sizeof(Channel) == 16);
  // When the puts of a channel had left, for a flush; in a timetable, which has none, of a rank.
  struct Left {
    std::int64_t ps = 0, tick = 0;
  };
  // When a channel came to an op that others serve: what its transfer or signal needs to know.
  struct Issue {
    std::int64_t clock_ps = 0, batch = 0;
  };
  // The last raise of a counter, and how many were not waited for (as written; ordered they are counted in Watch). What came before the
  // last one is in `before_`, if anybody may ask for it.
  struct Counter {
    std::int32_t source = -1, next = -1;
    std::int64_t arrive_ps = 0, batch = 0;
    std::int64_t leaves : 44 = 0;
    std::uint64_t waiting : 20 = 0;

    [[nodiscard]] Message last() const { return {arrive_ps, leaves, batch}; }
  };
  static_assert(sizeof(Counter) == 32 && kLastTick < std::int64_t{1} << 43);
  static constexpr std::uint64_t kMostWaiting = (std::uint64_t{1} << 20) - 1;

  FlowStatus row(const FlowOps& ops, std::size_t i, std::int64_t number, std::int64_t times);
  FlowStatus in_turns(const FlowOps& ops, std::int64_t& next);
  FlowStatus told_in_turns(const FlowOps& ops, std::int64_t& next);
  [[nodiscard]] static std::int64_t times(const FlowOps& ops, std::size_t i) { return ops.times.empty() ? 1 : ops.times[i]; }
  void find_shared();
  void fetch(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] bool contends(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::int64_t next_batch(const FlowOps& ops, std::size_t i);
  static Issue issue(Channel& channel);
  FlowStatus transfer(const FlowOps& ops, std::size_t i, std::int64_t times, const Issue& issued, Message& sent);
  FlowStatus work(const FlowOps& ops, std::size_t i, std::int64_t times, Channel& channel, Message& sent);
  FlowStatus wait(const FlowOps& ops, std::size_t i, Channel& channel);
  FlowStatus signal(const FlowOps& ops, std::size_t i, const Issue& issued, Message& sent);
  static FlowStatus raise(Counter& at, const Message& message);
  FlowStatus signalled(std::int32_t counter, const Message& message, std::int64_t times);
  Message& before(std::int32_t counter);
  static void go_on(Channel& channel, const Message& seen);
  static void not_before(Channel& channel, std::int64_t step);
  void flush(std::size_t channel);
  static FlowStatus checked(const Channel& channel, Kind kind);
  [[nodiscard]] bool in_range(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::int64_t bytes(const FlowOps& ops, std::size_t i) const;
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> path(const FlowOps& ops, std::size_t i) const;
  // Of a (rank, channel); -1 where nodes have none.
  [[nodiscard]] std::int32_t nic_of(std::size_t lane, bool receives) const {
    if (links_.nic.empty()) return -1;
    const std::int64_t node = links_.node_of[lane / static_cast<std::size_t>(links_.channels)];
    return static_cast<std::int32_t>(3 * links_.ranks + (receives * links_.nodes + node) * links_.nics + links_.nic[lane]);
  }
  [[nodiscard]] std::int64_t latency(const FlowOps& ops, std::size_t i, std::int32_t a, std::int32_t b) const;
  [[nodiscard]] std::int64_t busy(std::int64_t nbytes, std::int32_t link);
  [[nodiscard]] std::int64_t through(std::int64_t nbytes, std::int32_t link, std::int64_t start_ps) {
    if (!changes_.on(link)) return start_ps + busy(nbytes, link);
    return changes_.through_ps(link, start_ps, nbytes, links_.bytes_per_s[static_cast<std::size_t>(link)]);
  }
  std::int32_t counter_id(std::int32_t destination, std::int32_t source, std::int32_t sig_channel);
  std::int32_t counter_of_many(std::size_t list, std::int32_t source);
  std::int32_t counter_of_few(std::size_t list, std::int32_t source);
  std::int32_t in_list(std::size_t list, std::int32_t source);
  std::int32_t new_counter(std::int32_t source, std::int32_t next);
  void note_lists();
  static std::uint64_t bit_of(std::int32_t destination, std::int32_t source);
  [[nodiscard]] std::size_t channel_id(const FlowOps& ops, std::size_t i) const {
    return static_cast<std::size_t>(ops.rank[i] * links_.channels + ops.channel[i]);
  }
  Channel& channel(const FlowOps& ops, std::size_t i) { return channels_[channel_id(ops, i)]; }
  Left& left(const FlowOps& ops, std::size_t i) {
    return left_[links_.timetable ? static_cast<std::size_t>(ops.rank[i]) : channel_id(ops, i)];
  }

  // -- ordered

  // An op that was told and is not done with: in its channel's line, or issued and not served yet. There are millions.
  struct Told {
    std::int32_t rank, channel, peer;
    std::int32_t chunk;         // of a wait: the number of the raise that it waits for
    std::int32_t n_chunks;
    std::int32_t counter = -1;  // that it raises, or waits for
    std::int32_t next = -1;     // in its channel's line; of a place that was given up, the next such one
    std::int32_t op = 0;
    std::int32_t step_or_times = 1;  // of a timetable; elsewhere how often it comes
    std::uint16_t sources = 1;
    std::uint8_t kind = 0;
  };
  static_assert(sizeof(Told) == 40);
  enum class Held : std::uint8_t { no, wait, flush, work };  // what a channel cannot go beyond
  struct Line {
    std::int32_t first = -1, last = -1;  // told behind the op that holds the channel
    std::int32_t at = -1;                // that op
    std::int32_t puts = 0;               // issued and not served
    std::int32_t next_parked = -1;       // the next channel that waits for the same counter
    Held held = Held::no;
    bool closed = false;
  };
  // Of a counter: the channels that wait for it, the last raise that was waited for, how many there were, and how many are waited for.
  struct Watch {
    std::int32_t parked = -1, seen = 0, raised = 0, consumed = 0;
  };
  // Raises that were not waited for yet, but for the last two, from number `first` on.
  struct Early {
    std::int64_t first = 1;
    std::size_t begin = 0;  // of those that are kept
    std::vector<Message> raises;
  };
  // Of an op that waits to be served.
  struct Pending {
    std::int32_t op, id;
    std::int64_t clock_ps;  // when its channel came to it
    bool operator<(const Pending& other) const { return op < other.op; }
  };

  FlowStatus tell(const FlowOps& ops, std::size_t i, std::int64_t number, std::int64_t times);
  std::int32_t keep(const Told& told);
  void forget(std::int32_t id) { told_[static_cast<std::size_t>(id)].next = std::exchange(unused_, id); }
  void keep_more(std::int32_t id, std::int64_t ps);
  FlowStatus come_to(std::int32_t id);
  FlowStatus wait_for(std::int32_t id, std::size_t channel);
  [[nodiscard]] bool raise_of(std::int32_t counter, std::int32_t number, Message& found);
  void pend(std::int32_t id, const Issue& issued);
  FlowStatus drain();
  FlowStatus serve(std::int64_t number, std::vector<Pending>& batch);
  bool has_to_itself(const Told& told, std::int64_t batch, std::int64_t turn, std::int32_t a, std::int32_t b);
  [[nodiscard]] std::int64_t times_of(const Told& told) const { return links_.timetable ? 1 : told.step_or_times; }
  void fetch_told(const std::vector<Pending>& batch, std::size_t i, bool counters) const;
  FlowStatus take(const Told& told, const Issue& issued, Message& sent);
  FlowStatus announce(const Told& told, const Message& sent);
  FlowStatus resume();
  void idle(std::size_t channel);
  void find_bound();
  [[nodiscard]] FlowOps alone(const Told& told) const;
  [[nodiscard]] std::size_t channel_of(const Told& told) const {
    return static_cast<std::size_t>(told.rank * links_.channels + told.channel);
  }

  bool ordered_, told_all_ = false;
  std::vector<Told> told_;
  std::vector<std::int64_t> more_;    // by place in told_, as far as any is not 0: its ready_ps, or its tier_ps
  std::int32_t unused_ = -1;          // the last place in told_ that was given up; `next` leads to the one before it
  std::vector<Line> lines_;           // per channel
  bool any_closed_ = false;
  std::vector<std::size_t> open_;     // where any is: the channels that are not closed
  std::deque<Watch> watches_;         // per counter
  std::unordered_map<std::int32_t, Message> second_;  // ordered: the raise before the last one, where it was not waited for by then
  std::unordered_map<std::int32_t, Early> early_;
  std::map<std::int64_t, std::vector<Pending>> pending_;  // by batch
  std::vector<std::vector<Pending>> spare_;               // served batches, for the next ones
  std::vector<std::pair<std::int64_t, std::size_t>> by_turn_;
  std::vector<Message> sent_;
  std::vector<std::size_t> ready_;    // channels that can go on
  std::int64_t bound_ = 0;            // what is not told yet comes in no batch before this one
  std::size_t first_idle_ = 0;        // the channel that says so
  Turns turns_;

  FlowLinks links_;
  Changes changes_;
  std::int64_t op_ = 0, first_op_ = 0;  // the one at work, and the first of its group
  std::int64_t chunk_bytes_ = -1;       // -1: chunks differ
  std::int64_t part_ticks_ = 0;         // what a part takes in nominal time
  std::vector<Channel> channels_;
  std::vector<Left> left_;
  std::vector<Served> served_;
  std::vector<std::int32_t> first_counter_;  // per (destination, channel): a list
  // Per list: 56 bits of the sources that may be in it, and above them how many are. Empty as long as all lists are short.
  std::vector<std::uint64_t> listed_;
  DenseIds many_;                            // (list, source), of long lists
  std::vector<std::int32_t> many_counters_;  // their counters
  std::deque<Counter> counters_;  // grows without being copied
  std::deque<Message> before_;    // per counter the raise before the last one; empty as long as nobody asks
  std::vector<bool> shared_;      // by link: several channels or ranks use it
  std::vector<std::pair<std::int64_t, std::size_t>> contending_;
  std::vector<std::size_t> expanded_;  // ops of a group that come several times, and are evaluated each time
  std::vector<bool> repeated_;         // by counter: the raise before the last one is not known
  // Ordered, by link: the last batch in which one op came several times there, and its ranks; empty as long as none did.
  struct Alone {
    std::int64_t batch = -1;
    std::int32_t rank = -1, peer = -1;
  };
  std::vector<Alone> alone_;
  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };
  std::vector<Known> known_;  // durations, by size and rate
};

}  // namespace ccl_lab::sim
