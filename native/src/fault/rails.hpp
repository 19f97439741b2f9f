// Puts and gets to ranks of other nodes that survive the loss of any path but the last.
//
// Is: the layer between what a program posts and the transport: lanes that keep their order whatever paths their segments
//     take, a ledger of what the peer has not confirmed, and for each path the handshake by which both ends agree on what
//     arrived before it broke.
// Is not: a clock, a socket or a thread: time comes in with poll(), bytes go through a Transport, messages through a
//     Messenger; so a test drives it with a virtual clock. Not a planner: which NICs an op would like is in the op.
//
//   put ─► lane (peer, nic, peer_nic as the op names them) ─► segments, numbered ─► a path with room ─► transport
//            home path up: only there                                │ ledger of the path, until confirmed
//            else: any path of that peer that is up, in turn          └──────────────► item completes
//   landed ─► lane of the sender: in order ─► signals in order (SignalOrder) ─► counter raised
//
//   path     up ──error, silence, message of the peer──► retiring ──peer answered──► down ──new connection──► up
//
//   lost path, both ends     retire: nothing more lands or leaves there; generation + 1
//     sender    REQUEST(generation, first unconfirmed) resent until answered
//     receiver  older generation: ignored. newer: retires too. ACK(generation, position), position never ahead of what it has
//     sender    what is before the position is confirmed; the rest goes back to its lane, in order, and to other paths
//     An end with nothing to send again says HINT instead, and is answered in the same way: each message says what its
//     sender received, so one exchange settles both directions.
//
// Invariants
//  - A signal is raised when every segment before it in its lane, and every signal before it on its channel, has landed:
//    nobody skips forward, and nothing is published twice.
//  - A segment is sent again only after the path that carried it is quiet at both ends: no late write.
//  - The source of a put is its owner's again when the put completes: large ones when confirmed, small ones are copied, at once,
//    when the system has them or when there is nothing else to do, but for memory of a GPU, which the host does not read.
//  - Every put and get completes once; with an error where no path to the peer is left and none came back in time.
//  - One thread at a time. Once grown to what a program posts, nothing is allocated while no path is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/signals.hpp"
#include "base/status.hpp"
#include "fault/localizer.hpp"
#include "fault/messenger.hpp"
#include "fault/path.hpp"
#include "fault/points.hpp"
#include "fault/verdict.hpp"
#include "trace/ring.hpp"
#include "transport/signal_order.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

struct RailOptions {
  std::vector<std::int32_t> node_of;               // by rank, and
  Points points;                                   // where injectors have something done
  int n_nics = 0;                                  // of a node: where they are known, lost paths are judged by probes
  std::uint64_t segment_bytes = 256 * 1024;        // at most, where a path is quick
  std::uint64_t first_segment_bytes = 256 * 1024;  // until it is known how quick a path is
  std::uint64_t window_bytes = 8 * 1024 * 1024;    // of a path, not confirmed
  std::uint32_t window_segments = 128;
  std::uint64_t copy_bytes = 8 * 1024;             // puts up to this size are copied: their source is free at once
  std::uint64_t later_bytes = 0;                   // and up to this size when there is time, where sources are free before that
  std::int64_t silence_ns = 500'000'000;           // without a confirmation, while something is under way: the path is asked about
  std::int64_t ping_ns = 100'000'000;              // how long a peer has to answer out of band before it counts as not there
  std::int64_t resend_ns = 5'000'000;              // of messages that wait for an answer
  std::int64_t lost_ns = 1'000'000'000;            // no path left for so long: the peer is lost
  std::int64_t hold_off_ns = 200'000'000;          // from the loss to the first alive message; doubles with every flap
  std::int64_t longest_hold_off_ns = 10'000'000'000;
  std::int64_t half_open_ns = 500'000'000;         // up here, while the other end still asks for it: it is lost again
  std::uint32_t alive_wanted = 5;                  // answers in order before a path may come back
};

// What happened to paths, for traces, panels and errors; oldest first, read by events().
enum class RailEventKind : std::uint8_t { lost, resumed, verdict, back, peer_lost };
inline constexpr const char* kRailEventNames[] = {"lost", "resumed", "verdict", "back", "peer_lost"};

struct RailEvent {
  RailEventKind kind = RailEventKind::lost;
  Verdict verdict = Verdict::none;
  Path path;
  std::uint32_t generation = 0;
  std::int64_t at_ns = 0;
  std::uint64_t segments = 0;   // resumed: how many were sent again
  std::string text;             // the reason, or the evidence
};

// How a path stands, for whoever looks.
struct PathInfo {
  Path path;
  PathState state = PathState::absent;
  std::uint32_t generation = 0;
  std::uint64_t confirmed = 0;   // segments, in this generation
  std::uint64_t received = 0;
  std::uint64_t in_flight_bytes = 0;
  std::string why;               // it was lost
};

class Rails final : public Receiver {
 public:
  // All outlive this.
  Rails(int rank, Transport& transport, Messenger& messenger, SignalTable signals, SpanWriter* spans, RailOptions options = {});
  ~Rails() override;
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;

  // A path the transport can use from now on. `generation`: as its two ends agreed; 0 at the start of an epoch.
  Status add_path(const Path& path, std::uint32_t generation);
  // The generation that a new connection of this path must carry; empty where the path is up, or not ready to come back.
  Result<std::uint32_t> generation_wanted(const Path& path) const;
  // ok where add_path would be.
  Status may_add(const Path& path, std::uint32_t generation) const;
  // There should be one, but it could not be connected: the peer is told, and it is tried again as one that was lost.
  void missing(const Path& path, Status why);
  // Whether there is, or was, such a path.
  bool knows(const Path& path) const;
  // Whether an op to `peer` has, or may get, a way.
  bool reaches(std::int32_t peer) const;
  bool up(const Path& path) const;

  Status put(const Put& put);
  Status get(const Get& get);
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  // Of it, what does not wait until somebody has something to send or receive: messages of peers, and what is due for paths.
  void watch_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const;
  void reset(std::uint16_t epoch);

  // See Transport.
  void expects_no_more() {
    // Of puts that are copied when they have gone, confirmations complete nothing.
    no_more_ = !young_.empty() || !uncopied_.empty() || posted_bytes_ > posted_.size() * Uncopied::kShortBytes;
    transport_.expects_no_more(no_more_);
  }
  bool owes_confirmations() const { return transport_.owes_confirmations(); }
  // Puts that have completed, because they were copied, wait for a path with room.
  bool waiting() const { return n_queued_ > 0; }
  // Something is under way that a peer has not confirmed, or asks for: whoever drives must not stop.
  bool unconfirmed() const { return n_unconfirmed_ > 0 || n_retiring_ > 0 || !posted_.empty(); }
  // Paths that are down, whose NICs answer again: someone has to dial them. Empties the list.
  std::vector<Path> wanted();
  std::vector<RailEvent> events();
  // Whether wanted() or events() has got something since this was last asked.
  bool take_news() { return std::exchange(news_, false); }
  std::vector<PathInfo> paths() const;

  // Receiver
  void landed(const Path& path, const Notice& notice) override;

  struct Counters {
    std::uint64_t lost = 0;        // paths
    std::uint64_t recovered = 0;   // handshakes that ended
    std::uint64_t resent = 0;      // segments
    std::uint64_t duplicates = 0;  // landed although they had before
    std::uint64_t ignored = 0;     // messages of an older generation
    std::uint64_t back = 0;        // paths that came back
  };
  const Counters& counters() const { return counters_; }

 private:
  struct PeerRecord {
    std::vector<Named<PathRecord>> paths;
    std::vector<Named<Lane>> lanes;
    std::vector<Named<SegmentOrder>> arriving;  // the other side of lanes of the peer
    std::unique_ptr<SignalOrder> order;
    std::int64_t heard_ns = 0;        // it was there then: the latest question that it answered out of band
    std::int64_t no_path_ns = 0;      // since when no path is up; 0: one is
    bool had_path = false;
    bool queued = false;              // a lane has segments that no path has taken
    bool lost = false;
    Status why;
  };

  std::int64_t due_ns() const;  // when something is to be done for a path, whatever comes
  PathRecord* find(const Path& path);
  const PathRecord* find(const Path& path) const;
  PathRecord& record_of(const Path& path);
  PeerRecord& peer_of(const Path& path) { return peers_[static_cast<std::size_t>(path.peer)]; }
  const Named<Lane>& lane_of(const Put& put);
  const Named<Lane>& new_lane(const Put& put);
  bool is_quick(const Put& put, const Lane& lane) const;
  Status put_quickly(const Put& put, const Named<Lane>& named);
  void enter_posted();
  std::uint32_t free_item();
  std::uint32_t new_item(const Put& put, std::uint32_t index, Lane& lane);
  void complete(std::uint64_t cookie) { ready_.emplace_back().cookie = cookie; }
  static void copy(Item& item);
  bool sources_are_free(const PeerRecord& peer) const;
  void copy_and_complete(Item& item);
  void copy_waiting(bool no_more);
  Status no_way(const Put& put) const;
  SegmentOrder& arriving_of(PeerRecord& peer, std::uint32_t id);

  // Sending (sending.cpp).
  bool has_room(const PathRecord& path) const;
  bool home_is_up(const Lane& lane) const;
  const Named<Lane>* next_lane(PathRecord& path);
  Flight take(const Named<Lane>& named, std::uint64_t most);
  void send(PathRecord& path, const Lane& lane, const Flight& taken);
  void refused(PathRecord& path, std::uint32_t item, const Status& status);
  bool feed(PathRecord& path);
  void pump(PeerRecord& peer);
  void confirm_front(PathRecord& path);
  void done_with(std::uint32_t item);
  void fail_item(std::uint32_t item, const Status& status);
  bool post_reading(Reading& reading);
  void take_completion(const Completion& completion);
  void take_answer(const Completion& completion);
  int take_over();
  int listen();

  // Losing and finding paths (recovery.cpp).
  void heard_over(PathRecord& path) {
    if (path.fresh) back_to_use(path);
  }
  void back_to_use(PathRecord& path);
  void lose(PathRecord& path, Status why, std::uint32_t at_least);
  void ask(PathRecord& path);
  void answer(PathRecord& path, std::uint32_t generation, std::uint64_t received);
  void settle(PathRecord& path, std::uint64_t received);
  void hear(const Datagram& datagram);
  void hear_probe(const Message& message, PathRecord& path);
  void hear_of_path(const Message& message, PathRecord& path);
  void judge(const PathRecord& path);
  void take_findings();
  void watch(PathRecord& path);
  std::int64_t queue_ns(std::uint16_t nic) const;
  std::int64_t in_turn_ns(const PathRecord& path) const;
  std::int64_t reading_ends_ns(const PathRecord& path) const;
  void watch_peer(std::size_t peer);
  void give_up(std::size_t peer, Status why);
  void say(PathRecord& path, MessageKind kind, std::uint32_t generation, std::uint64_t position, std::uint64_t received,
           std::uint64_t token = 0);
  void note(RailEventKind kind, const PathRecord& path, std::uint64_t segments, std::string text);
  std::string describe(const PathRecord& path) const;

  const int rank_;
  Transport& transport_;
  const Points points_;
  const std::unique_ptr<WatchedMessenger> watched_;  // null: nobody watches
  Messenger& messenger_;
  const SignalTable signals_;
  SpanWriter* const spans_;
  const RailOptions options_;
  std::uint16_t epoch_ = 0;
  std::int64_t now_ns_ = 0;

  std::vector<PeerRecord> peers_;    // by rank
  std::vector<std::unique_ptr<PathRecord>> paths_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<SegmentOrder>> arriving_;
  std::vector<Item> items_;
  std::vector<std::uint32_t> free_items_;
  Queue<Posted> posted_;           // entered in the ledger before anybody looks at it
  std::uint64_t posted_bytes_ = 0;
  Queue<Uncopied> uncopied_;       // that are to be copied when there is time
  Queue<Uncopied> young_;          // that are expected to be confirmed before that
  std::vector<Reading> readings_;
  std::size_t n_readings_ = 0;
  std::uint64_t n_posted_ = 0;     // puts
  std::uint64_t n_landed_ = 0;     // segments of peers
  std::uint32_t next_serial_ = 0;
  std::uint64_t next_token_ = 0;
  std::size_t n_unconfirmed_ = 0;
  std::size_t n_retiring_ = 0;
  std::size_t n_queued_ = 0;         // peers whose lanes have work that no path took
  std::int64_t watch_ns_ = 0;        // when paths are looked at next
  std::int64_t listen_ns_ = 0;       // when messages are looked at, at the latest
  std::int64_t did_ns_ = 0;          // when something was moved, or heard

  std::vector<Completion> arrived_;  // of the transport
  std::vector<LinkEvent> failures_;
  std::vector<Datagram> datagrams_;
  std::vector<Completion> ready_;    // for the caller of poll
  std::vector<LinkEvent> lost_;
  std::vector<Path> wanted_;
  std::unique_ptr<Localizer> localizer_;
  std::vector<RailEvent> events_;
  bool news_ = false;
  bool no_more_ = false;           // was said since the last poll, and copies are waited for
  Counters counters_;
};

}  // namespace ccl_lab
