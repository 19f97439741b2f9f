// Nodes, NICs and the links between them, on a virtual clock.
//
// Is: what N VirtualTransports share: a queue of events, links (first in, first out, each direction on its own) whose bytes
//     move in pieces as an RDMA NIC moves them, mail (small datagrams, which may be lost), and every fault that can be done
//     to them. One thread; the same seed and calls give the same history.
// Is not: a model of a congested fabric (sim/ is that), and not aware of what is sent.
//
//   put ─► ops of a direction ─tx─► pieces on the wire ─rx─► bytes in the peer's memory, though nobody there polls
//                                                     last piece ─► told at the peer's poll ─► confirmation ─► completion
//
// Invariants
//  - What is on the wire lands late rather than never: it waits where the way is blocked and goes on when it is not, and
//    lands unless the *receiver* has retired the link (or its end is broken). That the sender retired it changes nothing.
//  - A link is one connection: a new one between the same NICs is another link, and shares nothing with the old one.
//  - Every fault counts how often it was injected and how often it did something.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "transport/transport.hpp"
#include "transport/virtual/random.hpp"

namespace ccl_lab {

class VirtualTransport;

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

struct VirtualOptions {
  std::vector<int> node_of;             // by rank
  int n_nics = 2;                       // of every node
  std::uint64_t seed = 1;
  double bytes_per_ns = 1.0;            // of a NIC
  std::int64_t latency_ns = 3'000;
  std::int64_t jitter_ns = 1'000;
  std::uint64_t piece_bytes = 2048;
  std::int64_t mail_latency_ns = 50'000;
  std::int64_t mail_jitter_ns = 100'000;
  // An end that goes away tells the other one, as TCP does; else the other hears of it when it sends, as with RDMA.
  bool tells_peer = true;
  std::int64_t retry_ns = 20'000'000;   // how long a NIC tries before it says that nobody answers
};

// Where a put, or a link, stands; a hook hears of each.
enum class VirtualPoint : std::uint8_t {
  before_post, posted, arrived, told, confirmed, completed, retiring, retired, read, count
};
inline constexpr const char* kVirtualPointNames[] = {"before_post", "posted", "arrived", "told", "confirmed", "completed",
                                                     "retiring", "retired", "read"};

enum class VirtualFault : std::uint8_t {
  nic_down, unplugged, silent, rate, delay, cut, broken, unconfirmed, bad_completion, bad_post, killed, revoked,
  mail_lost, mail_doubled, mail_late, count
};
inline constexpr const char* kVirtualFaultNames[] = {
    "nic_down", "unplugged", "silent", "rate", "delay", "cut", "broken", "unconfirmed", "bad_completion", "bad_post",
    "killed", "revoked", "mail_lost", "mail_doubled", "mail_late"};

// Which ends of a link are told at once when it breaks.
enum class Told : std::uint8_t { nobody = 0, near = 1, far = 2, both = 3 };

inline constexpr std::size_t kMailBytes = 48;

struct Mail {
  std::int32_t from = -1;
  std::int32_t to = -1;
  std::int32_t nic = -1;       // of the sender; -1: out of band
  std::int32_t peer_nic = -1;
  std::array<std::byte, kMailBytes> bytes{};
};

// What becomes of one mail; a hook may choose.
struct MailFate {
  int copies = 1;
  std::int64_t late_ns = 0;
};

struct VirtualNic {
  NicState state = NicState::up;
  bool silent_tx = false;
  bool silent_rx = false;
  double bytes_per_ns = 0;
  std::int64_t delay_ns = 0;
  std::int64_t jitter_ns = 0;
  std::uint32_t bad_posts = 0;
  std::uint32_t bad_completions = 0;    // of the next confirmed puts through it
  std::int64_t free_ns = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t broken_links = 0;
  bool touched = false;                 // a fault was ever injected here
};

class VirtualNetwork {
 public:
  explicit VirtualNetwork(VirtualOptions options);
  ~VirtualNetwork();
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  const VirtualOptions& options() const { return options_; }
  std::int64_t now_ns() const { return now_ns_; }
  std::int64_t next_ns() const { return events_.empty() ? kNever : events_.front().at_ns; }
  // Runs everything up to and including `to_ns`; the clock then says that.
  void advance(std::int64_t to_ns);
  void at(std::int64_t when_ns, std::function<void()> act);
  void after(std::int64_t wait_ns, std::function<void()> act) { at(now_ns_ + wait_ns, std::move(act)); }
  SeededRandom& random() { return random_; }
  // Whether something came for this rank since it was asked last.
  bool take_ready(int rank);
  std::size_t n_links() const { return links_.size(); }

  // A new connection; an end takes part once its transport has attached it, and what comes before that waits.
  std::uint32_t dial(int rank, const Path& path);

  // Faults. Each counts as injected; near: the end at the NIC or rank that is named.
  VirtualNic& nic(int node, int nic) { return nics_[static_cast<std::size_t>(node * options_.n_nics + nic)]; }
  const VirtualNic& nic(int node, int nic) const { return nics_[static_cast<std::size_t>(node * options_.n_nics + nic)]; }
  void set_nic(int node, int nic, NicState state, Told told);
  void set_silent(int node, int nic, bool tx, bool rx);
  void set_rate(int node, int nic, double bytes_per_ns);
  void set_delay(int node, int nic, std::int64_t delay_ns, std::int64_t jitter_ns);
  // Returns the link, for `mend`; 0: there is none.
  std::uint32_t cut(int rank, const Path& path, bool there, bool back);
  void mend(std::uint32_t link);
  void break_path(int rank, const Path& path, Told told);
  void lose_confirmations(int rank, const Path& path);
  void fail_completions(int node, int nic, std::uint32_t n);
  void fail_posts(int node, int nic, std::uint32_t n);
  void kill(int rank, Told told);
  bool killed(int rank) const { return dead_[static_cast<std::size_t>(rank)]; }
  void set_mail(std::uint64_t lost_ppm, std::uint64_t doubled_ppm, std::uint64_t late_ppm, std::int64_t late_ns);
  void cut_mail(int rank, bool cut) { mail_cut_[static_cast<std::size_t>(rank)] = cut; }
  void count_fault(VirtualFault fault) { ++injected_[static_cast<std::size_t>(fault)]; }

  // Whether bytes of one rank's NIC reach the other's.
  bool passes(int from, int nic, int to, int peer_nic) const;
  // Why not, for `passes`; counts as an effect of that fault.
  bool stopped(int from, int nic, int to, int peer_nic);

  void send(const Mail& mail);
  int receive(int rank, std::vector<Mail>& arrived);
  bool has_mail(int rank) const { return !mailboxes_[static_cast<std::size_t>(rank)].empty(); }
  void drop_mail(int rank) { mailboxes_[static_cast<std::size_t>(rank)].clear(); }

  std::uint64_t injected(VirtualFault fault) const { return injected_[static_cast<std::size_t>(fault)]; }
  std::uint64_t effects(VirtualFault fault) const { return effects_[static_cast<std::size_t>(fault)]; }

  struct Counters {
    std::uint64_t pieces = 0;
    std::uint64_t stale = 0;            // pieces that came to an end that had retired their link
    std::uint64_t late = 0;             // pieces that landed although their sender had retired the link
    std::uint64_t failed = 0;           // puts and gets that ended with an error
    std::uint64_t forgotten = 0;        // puts and gets under way on a link that was retired
    std::uint64_t on_retired = 0;       // posts to a link after it was retired here: a mistake of the layer above
    std::uint64_t refused = 0;          // other posts that were refused
  };
  Counters counters;

  // Hooks of a test; they may inject faults.
  std::function<void(VirtualPoint, int rank, const Path&, const Notice&)> on_point;
  std::function<void(const Mail&, MailFate&)> on_send;
  std::function<void(const Mail&)> on_arrival;

 private:
  friend class VirtualTransport;

  struct Event {
    std::int64_t at_ns;
    std::uint64_t order;
    std::function<void()> act;
    bool operator<(const Event& other) const {  // of a heap whose front is the earliest
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  enum class Kind : std::uint8_t { put, ask, reply };  // a get is asked for, and answered by the NIC there

  struct Op {
    Kind kind = Kind::put;
    Put put;
    Get get;
    std::uint64_t serial = 0;           // in its direction
    std::uint64_t asked = 0;            // of a reply: the serial of what asked for it
    std::uint64_t sent = 0;
    bool left = false;                  // nothing more comes of it here
    std::uint32_t signal_number = 0;    // of an unconfirmed put with a signal
    bool bad = false;                   // ends in an error although it arrives
  };
  struct Piece {
    std::int64_t arrives_ns = 0;
    Op op;                              // by value: the sender may have forgotten it
    std::uint64_t offset = 0;
    bool last = false;
    std::vector<std::byte> bytes;
  };
  struct Direction {
    std::deque<Op> ops;                 // posted; the front is the oldest that is not confirmed
    std::size_t to_send = 0;            // index into ops
    std::uint64_t next_serial = 0;
    std::deque<Piece> wire;
    bool tx_waits = false;
    bool rx_waits = false;
    bool ack_waits = false;
    bool cut = false;
    bool mute = false;                  // confirmations of this direction's puts are lost
    std::int64_t last_arrival_ns = 0;
    std::int64_t blocked_ns = -1;       // since when; -1: not
    std::uint64_t told = 0;             // serial after the last one its receiver was told of
    std::uint64_t acked = 0;
  };
  struct Link {
    std::uint32_t id = 0;
    int rank[2] = {-1, -1};
    Path path[2];                       // as each end names it
    bool attached[2] = {false, false};
    bool retired[2] = {false, false};
    bool broken[2] = {false, false};
    Direction way[2];                   // from end 0, from end 1
    bool gone() const { return (retired[0] || broken[0]) && (retired[1] || broken[1]) && way[0].wire.empty() && way[1].wire.empty(); }
  };

  VirtualNic& nic_at(const Link& link, int end);
  bool blocked(Link& link, int from);            // counts the effect, and starts the NIC's patience
  void tried_long(std::uint32_t id, int from);
  bool usable(const Link& link, int end) const;
  void point(VirtualPoint what, int rank, const Path& path, const Notice& notice);
  void wake(int rank) { ready_[static_cast<std::size_t>(rank)] = true; }
  void kick_all();
  void kick(Link& link);
  void post(Link& link, int end, Op op);
  void schedule_tx(Link& link, int from, std::int64_t when_ns);
  void schedule_rx(Link& link, int from);
  void tx(Link& link, int from);
  bool read_source(Link& link, int from, const Op& op, Piece& piece);
  void sent_whole(Link& link, int from, Op& op);
  void rx(Link& link, int from);
  void land(Link& link, int from, Piece& piece);
  void landed_whole(Link& link, int from, const Op& op);
  void drop_left(Direction& way);
  void told(std::uint32_t id, int receiver, std::uint64_t serial);
  void ack(Link& link, int from);
  void confirm(Link& link, int from);
  void break_end(Link& link, int end, const Status& status);
  void break_ends(Link& link, int near, Told told, const Status& status);
  void tell_other(Link& link, int end, const char* what);
  std::string where(const Link& link, int end) const;
  void retire(Link& link, int end);
  void deliver(const Mail& mail);
  Link* find(std::uint32_t id);
  Link* link_of(int rank, const Path& path);
  std::int64_t flight_ns();
  void effect(VirtualFault fault) { ++effects_[static_cast<std::size_t>(fault)]; }

  VirtualOptions options_;
  SeededRandom random_;
  std::int64_t now_ns_ = 0;
  std::uint64_t next_order_ = 0;
  std::vector<Event> events_;
  std::vector<VirtualNic> nics_;
  std::map<std::uint32_t, Link> links_;
  std::uint32_t next_link_ = 0;
  std::vector<VirtualTransport*> transports_;
  std::vector<char> ready_;
  std::vector<char> dead_;
  std::vector<char> mail_cut_;
  std::vector<std::vector<Mail>> mailboxes_;
  std::uint64_t mail_lost_ppm_ = 0;
  std::uint64_t mail_doubled_ppm_ = 0;
  std::uint64_t mail_late_ppm_ = 0;
  std::int64_t mail_late_ns_ = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(VirtualFault::count)> injected_{};
  std::array<std::uint64_t, static_cast<std::size_t>(VirtualFault::count)> effects_{};
};

}  // namespace ccl_lab
