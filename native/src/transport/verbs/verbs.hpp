// Bytes between ranks over RDMA: zero-copy writes with immediate, spread over the queue pairs of each pair of NICs.
//
// Is: the production path between nodes. Opens NICs when they are first used, and owns a link for each pair of NICs.
// Is not: what dials or authenticates: it is given connected descriptors, over which the ends of a link exchange cards. Not a
//     router: a put names its NICs, and where no link joins them it is refused.
//
//   put ─► link of (peer, nic, peer_nic) ─► segments over its queue pairs (link.hpp) ─► memory of the peer ─► signal
//   about to sleep ─► completion queues armed ─► one descriptor: completions, events of devices, sockets beside the data
//
// Invariants
//  - Signals of a sender on one channel are raised in posting order, whatever NICs and queue pairs their puts took.
//  - A link ends with its first error (a completion, an event of its device or port, its socket): all it had in flight
//    completes with that error, which is reported once: peer_lost where it was the last one to that peer, link_down otherwise,
//    registration where memory was not there. What was received before counts.
//  - After retire() no byte of that path lands: its queue pairs are gone.
//  - A forked child's copy touches no device: the queue pairs are its parent's.
//  - One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/segment.hpp"
#include "transport/nic_transport.hpp"
#include "transport/poller.hpp"
#include "transport/verbs/link.hpp"

namespace ccl_lab {

struct VerbsOptions {
  std::vector<verbs::Nic> nics;     // by NIC of this node; without a device: not to be used
  Spread spread;                    // where nothing else is said of the peer
  std::vector<Spread> classes;      // of peers, by what lies between
  std::vector<std::uint8_t> class_of;      // by rank: which of `classes`; empty: all as `spread`
  std::optional<Spread> all_to_all; // for such traffic, whatever lies between; none: as everything
  Registration registration = Registration::lazy;
  std::uint64_t chunk_bytes = 4 << 20;
  std::uint8_t timeout = 16;        // of a packet: 4.096 us * 2^timeout, and
  std::uint8_t retries = 6;         // how often it is sent again
  std::uint32_t first_number = 0;   // of segments and signals; the same on all ranks
  std::span<NicFaults> faults = {}; // by NIC; outlive the transport
};

class VerbsTransport final : public NicTransport {
 public:
  static constexpr int kMostUnlooked = 16;  // polls that find work, until devices and sockets are looked at too

  // `driver`, `signals`, `nics` (of the node's lowest rank, by NIC; may be empty) and `trace` (may be null) outlive this.
  VerbsTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace, verbs::Driver& driver, VerbsOptions options);
  ~VerbsTransport() override;
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;

  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                        std::uint16_t epoch) override;
  bool connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const override;
  std::size_t n_connections() const override { return links_.size(); }
  bool unsent() const override;
  bool quiet() const override;
  // Whether all links have exchanged their cards.
  bool settled() const;
  // Of a NIC that was opened; for who counts registrations.
  std::size_t n_registered(std::uint16_t nic) const;

  const char* name() const override { return "verbs"; }
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  Status register_device(RegionKey key, std::byte* base, std::uint64_t size, int fd) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  void set_receiver(Receiver* receiver) override { context_.receiver = receiver; }
  void retire(const Path& path) override;
  NicState nic_state(std::uint16_t nic) const override;
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void about_to_sleep() override { arms_ = says_ = true; }
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  // What an edge of the poller is about.
  enum class Source : std::uint8_t { aside, completions, events, registered };
  struct Watch {
    Source source = Source::aside;
    VerbsLink* link = nullptr;
    std::uint16_t nic = 0;
  };
  struct Opened {
    std::unique_ptr<Adapter> adapter;
    Watch watches[3];
  };
  struct Link {
    Link(const VerbsContext& context, const Path& name, int fd, Adapter& adapter, Shaper shaper, SignalOrder& order,
         const PathSpread& spread)
        : verbs(context, name, fd, adapter, shaper, order, spread), watch{Source::aside, &verbs, name.nic} {}
    VerbsLink verbs;
    Watch watch;
  };
  struct Peer {
    std::unique_ptr<SignalOrder> order;  // from the first link on
    std::vector<Link*> links;
  };
  struct OwnRegion {
    RegionKey key = 0;
    std::byte* base = nullptr;
    std::uint64_t size = 0;
  };

  Status check_connection(const Path& name, std::uint16_t index, std::uint16_t epoch) const;
  Result<Adapter*> open(std::uint16_t nic);
  PathSpread spread_to(std::int32_t peer) const;
  Link* find(const Path& name) const;
  Result<Link*> choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const Tag& tag) const;
  void look();
  void take_events(std::uint16_t nic);
  void end_all(std::uint16_t nic, const Status& why);
  void obey(Link& link);
  int serve_all(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  void drop(std::size_t i, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  void unlist(const Link& link);
  void tell_region(const RegionCard& region);

  const int owner_;  // process
  VerbsContext context_;
  VerbsOptions options_;
  std::span<NicShaper> nics_;
  verbs::Driver& driver_;
  Regions regions_;
  std::vector<OwnRegion> own_;
  Poller poller_;
  std::vector<Opened> opened_;  // by NIC
  std::vector<Peer> peers_;     // by rank
  std::vector<std::unique_ptr<Link>> links_;
  std::size_t next_ = 0;        // whose turn it is
  bool serving_ = false;        // links may not be freed
  bool busy_ = false;
  bool says_ = false;           // who polls says when it is about to sleep; else every poll that finds nothing arms
  mutable bool arms_ = false;   // the next poll arms: a call of the system for each link, which who only yields should not pay
  int unlooked_ = 0;
};

}  // namespace ccl_lab
