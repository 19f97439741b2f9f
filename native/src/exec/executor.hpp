// The state machine that runs one rank's program.
//
// Is: control only. Completions, counters and READY slots go in; posts (what to do) come out. A driver does the posts:
//     `comm` with real transports and a clock, a test with a loop transport and a virtual clock.
// Is not: a thread, a clock, a transport or a copier: it never waits, does no I/O and touches no user byte.
//
//   run      idle ──start──► running ──all channels at end, nothing in flight──► finishing (avg) ──► done
//              │                │  └─ all channels at end ──drain──► draining ──nothing in flight──►─┘
//              └─announce─► announced ──start──► running
//                               └───────── a completion failed, READY differs ──────────────────► failed
//
//     announced: peers may write already, nothing of this rank is posted but READY. draining: the program is over, what it
//     put has not been confirmed. So runs that follow one another overlap, each with an executor (comm/runs.hpp).
//
//   channel  running ──put, signal: post, go on──► running
//            running ──peer has not entered──► await_ready ──its READY──► running
//            running ──wait──► await_signal ──counter reached──► running
//            running ──flush──► await_flush ──puts have left──► running
//            running ──get, copy, reduce, compute: post──► in_flight ──completion──► running
//            running ──no op left──► finished
//
// Invariants
//  - Bounded state, sized when a program starts; advance() allocates nothing.
//  - No access to a peer's memory or counters is posted before that peer's READY of this run was seen and agreed.
//  - A completion of an earlier run is ignored: cookies carry the run.
//  - Ops of a channel are posted in program order; an op and its effects end before the next blocking op begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/segment.hpp"
#include "base/signals.hpp"
#include "base/status.hpp"
#include "exec/program.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

// Where the buffers of this run are: for this rank as pointers, for peers as region and offset.
struct Binding {
  std::byte* base[kBufferCount] = {nullptr, nullptr, nullptr};
  RegionKey key[kBufferCount] = {0, 0, 0};
  std::uint64_t offset[kBufferCount] = {0, 0, 0};
};

// Where the buffers of a peer are, where that is known before it enters. Whoever starts such runs sees to it that the peer
// does not use what is written meanwhile.
struct KnownPeer {
  std::int32_t rank = -1;
  RegionKey key[kBufferCount] = {0, 0, 0};
  std::uint64_t offset[kBufferCount] = {0, 0, 0};
};

// What outlives a run: how far each counter was at its start. One per communicator; zeroed by a reset of all ranks.
class Baselines {
 public:
  Baselines(int n_ranks, int n_signal_channels)
      : n_channels_(n_signal_channels),
        counters_(static_cast<std::size_t>(n_ranks) * static_cast<std::size_t>(n_signal_channels), 0),
        ready_sent_(static_cast<std::size_t>(n_ranks), 0) {}

  std::uint64_t& counter(std::int32_t source, std::int32_t channel) {
    return counters_[static_cast<std::size_t>(source) * static_cast<std::size_t>(n_channels_) +
                     static_cast<std::size_t>(channel)];
  }
  std::uint64_t& ready_sent(std::int32_t peer) { return ready_sent_[static_cast<std::size_t>(peer)]; }
  void zero();

 private:
  int n_channels_;
  std::vector<std::uint64_t> counters_;
  std::vector<std::uint64_t> ready_sent_;
};

// What peers have written to this rank.
struct Inbox {
  SignalTable signals;
  std::span<const ReadySlot> ready;
};

enum class PostKind : std::uint8_t {
  ready,    // a put of this rank's READY slot to `peer`
  put,      // with or without bytes, with or without signal
  get,
  copy,     // of own, or load/store-reachable, memory
  reduce,
  compute,
  divide,   // the end of an average
  ended,    // for traces: op `op` (or a wait for READY) lasted from begin_ns to now; asks for nothing
  waited_ready,
};

struct Post {
  PostKind kind = PostKind::ended;
  std::uint16_t channel = 0;
  std::int32_t peer = -1;
  std::uint32_t op = 0;      // index into Program::ops()
  std::uint64_t cookie = 0;  // to be handed back with the completion
  std::int64_t begin_ns = 0;
};

// Why a channel does not go on.
struct Blocked {
  int channel = -1;
  std::int32_t op_id = -1;
  std::int32_t peer = -1;
  std::int64_t since_ns = 0;
  std::string text;  // "rank 3, channel 1, op 17 (wait) waits for signal 4 of rank 2 on signal channel 1, has 3"
};

// ok where the READY of a peer is that of the same call; else what both ranks are in.
Status check_ready(const Program& program, const Peer& peer, const ReadySlot& slot, std::uint64_t sequence);

class Executor {
 public:
  static constexpr std::size_t kMaxPosts = 1024;
  static constexpr std::size_t kMaxCompletions = 256;  // per advance

  // Several that share completions have numbers `at` of `of`, a power of two: the runs of each are told apart.
  explicit Executor(std::uint32_t at = 0, std::uint32_t of = 1);

  // Enters a run that start() will begin, the same program and binding; runs that begin before it entered before it.
  void announce(const Program& program, const Binding& binding, Baselines& baselines);
  bool announced() const { return run_ == Run::announced; }
  // Whether all peers of the run are told of it, or will be without another call.
  bool entered() const { return ready_posted_ == program_->ready_to().size(); }
  // What was announced will not be started.
  void withdraw() { run_ = Run::idle; }
  // Begins a run. The program and baselines live until it is done or failed. Of the peers that are `known` no READY is awaited.
  void start(const Program& program, const Binding& binding, Baselines& baselines, std::span<const KnownPeer> known = {});

  // At most kMaxCompletions completions. What to do now is in posts(), valid until the next call; where more() is true
  // there was no room for all: do them and call again at once.
  void advance(std::int64_t now_ns, std::span<const Completion> completions, const Inbox& inbox);
  std::span<const Post> posts() const { return posts_; }
  bool more() const { return more_; }

  bool active() const { return run_ == Run::running || run_ == Run::finishing || run_ == Run::announced || run_ == Run::draining; }
  bool done() const { return run_ == Run::done; }
  // Whether all ops were posted, and those that wait have ended.
  bool posted_all() const;
  // Whether only completions of what was posted are to come: then drain() lets another run start.
  bool drainable() const;
  void drain();
  bool failed() const { return run_ == Run::failed; }
  const Status& status() const { return status_; }
  // The op of a post is done by two hands: it ends with the second completion.
  void in_two(const Post& post) {
    ++open_[post.op];
    ++outstanding_;
  }
  void fail(Status status);
  void fail_unless(Status status) {
    if (!status.ok()) fail(std::move(status));
  }

  // The channel that has been blocked for longest, for messages; channel -1 if none is.
  Blocked oldest_blocked(const Inbox& inbox) const;
  Blocked blocked(std::size_t channel, const Inbox& inbox) const;
  // Where a channel that has not finished stands; no op: finished.
  struct Position {
    const Op* op = nullptr;
    std::int64_t since_ns = 0;
  };
  Position position(std::size_t channel) const;
  // Whether what is left of the run cannot go on without `peer`. Cost: a pass over the ops that are left.
  bool needs(std::int32_t peer, const Inbox& inbox) const;

  const Program& program() const { return *program_; }
  const Op& op(const Post& post) const { return program_->ops()[post.op]; }

  // Posts with their addresses.
  Put put_of(const Post& post) const;
  Put ready_put_of(const Post& post) const;
  Tag tag_of(const Op& op) const;
  Get get_of(const Post& post) const;
  std::byte* own(Buffer buffer, std::uint64_t offset) const {
    return binding_.base[static_cast<std::size_t>(buffer)] + offset;
  }
  // Whether a post reads memory of a GPU that peers' NICs write to in this run.
  bool forwards_on_device(const Post& post) const {
    return op(post).kind == Kind::put && op(post).nbytes > 0 && device_key(Buffer::output) != 0 &&
           program_->sources(op(post)).front().buffer == Buffer::output;
  }
  // Where bytes of a peer are; its READY was seen.
  Remote remote(std::int32_t slot, Buffer buffer, std::uint64_t offset) const;

 private:
  enum class Run : std::uint8_t { idle, announced, running, finishing, draining, done, failed };
  enum class Entered : std::uint8_t { no, yes, known };
  enum class State : std::uint8_t { running, await_ready, await_signal, await_flush, in_flight, finished };

  struct Channel {
    std::uint32_t next = 0;
    std::uint32_t end = 0;
    State state = State::running;
    std::int32_t ready_slot = -1;       // of await_ready
    std::int64_t since_ns = 0;          // when the op at `next` was reached
    std::int64_t ready_since_ns = 0;
    bool reached = false;
  };

  static constexpr std::uint32_t kDivideCookie = 0xffffffffu;
  static constexpr std::uint32_t kReadyCookie = 0xc0000000u;

  RegionKey device_key(Buffer buffer) const {
    const RegionKey key = binding_.key[static_cast<std::size_t>(buffer)];
    return of_device(key) ? key : 0;
  }
  std::uint64_t cookie(std::uint32_t low) const { return static_cast<std::uint64_t>(run_number_) << 32 | low; }
  bool room(std::size_t n) const { return posts_.size() + n <= kMaxPosts; }
  void post(PostKind kind, std::uint16_t channel, std::int32_t peer, std::uint32_t op, std::uint32_t cookie_low,
            std::int64_t begin_ns);
  void post_op(PostKind kind, const Op& op, std::uint32_t index);
  void ended(const Op& op, std::uint32_t index, std::int64_t begin_ns);

  void prepare(const Program& program, const Binding& binding, Baselines& baselines);
  void take_known(std::span<const KnownPeer> known);
  void post_ready(std::int64_t now_ns);
  void complete(const Completion& completion);
  void complete_op(std::uint32_t index);
  void run_channel(std::size_t channel, std::int64_t now_ns, const Inbox& inbox);
  bool step(Channel& channel, const Op& op, std::int64_t now_ns, const Inbox& inbox);
  bool step_own_put(Channel& channel, const Op& op, std::int64_t now_ns);
  bool peers_ready(Channel& channel, const Op& op, std::int64_t now_ns, const Inbox& inbox);
  bool slot_ready(std::int32_t slot, const Inbox& inbox);
  std::uint32_t in_flight(const Op& flush) const;
  std::uint64_t counter_value(const Op& wait, const Inbox& inbox) const;
  bool averages() const;
  void try_finish();
  void count_up();
  void finish();
  Blocked blocked_op(const Op& op, std::string why, std::int64_t since_ns) const;
  Blocked blocked_in_flight(const Op& op, std::int64_t since_ns) const;

  const Program* program_ = nullptr;
  Binding binding_;
  Baselines* baselines_ = nullptr;
  Run run_ = Run::idle;
  static constexpr std::uint32_t kMostRuns = 0x7fffffff;  // the upper bit of a cookie is not the executor's
  std::uint32_t run_number_ = 0;
  std::uint32_t run_step_ = 1;
  Status status_;
  bool more_ = false;
  std::vector<Post> posts_;
  std::vector<Channel> channels_;
  std::vector<std::uint64_t> base_;           // by counter of the program
  std::vector<std::uint64_t> own_raised_;     // by signal channel: signals of this rank to itself
  std::vector<std::uint32_t> flights_;        // puts in flight by (channel, peer)
  std::vector<std::int64_t> begin_ns_;        // by op
  std::vector<std::uint8_t> open_;            // by op: completions that are to come
  std::vector<Entered> ready_;                // by peer slot
  std::vector<ReadySlot> ready_out_;          // by index in ready_to; sources of puts
  std::vector<RegionKey> remote_key_;         // by peer slot and buffer
  std::vector<std::uint64_t> remote_offset_;
  std::size_t ready_posted_ = 0;
  std::uint64_t outstanding_ = 0;             // posts that will complete
  std::int64_t now_ns_ = 0;
};

}  // namespace ccl_lab
