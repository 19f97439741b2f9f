// Bytes between ranks over stream sockets, one connection (or several) for each pair of NICs.
//
// Is: the production path where there is no RDMA, and the embedded default of the lab, where a NIC can be held to a rate
//     (shaper.hpp) and pulled (NicShaper.up).
// Is not: what dials, accepts or authenticates: it is given connected descriptors. Not a router: a put names its NICs, and
//     where no connection joins them it is refused.
//
//   put ─► bundle of (peer, nic, peer_nic) ─► segments, to each of its connections that has room, in turn ─► frames (frame.hpp)
//       ─► region of the peer ─► signal, when all segments before have landed
//
// Invariants
//  - Signals of a sender on one channel are raised in posting order, whatever NICs (SignalOrder) and connections
//    (SegmentOrder) their puts took.
//  - A bundle ends with the first of its connections that does (closed, error, bad frame, NIC down): all it had in flight
//    completes with that error, which is reported once: peer_lost where it was the last one to that peer, link_down
//    otherwise. Where a socket ended, what the peer had sent before on the others is received first, for at most kDrainNs,
//    or kShortDrainNs where there is a Receiver: the layer above can have it sent again. Nothing of a bad frame is written.
//  - What a dead bundle carried is not sent again here: later signals of the same channel then stay parked, so nobody
//    skips forward; recovery belongs to the layer above, and starts with reset(), or, where it posts confirmed puts, with
//    retire() of that path.
//  - Puts of several links begin to leave a shaped NIC in the order in which they were posted, where the kernel takes them;
//    short ones at once.
//  - What injectors ask of a NIC (base/nic_faults.hpp) is done to real sockets, and counted where it was done.
//  - One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/segment.hpp"
#include "transport/tcp/connection.hpp"
#include "transport/poller.hpp"
#include "transport/nic_transport.hpp"

namespace ccl_lab {

struct TcpOptions {
  std::uint32_t first_number = 0;   // of segments and of signals; the same on all ranks, and free to be close to 2^32
  std::span<NicFaults> faults = {}; // as `nics`; outlive the transport
};

class TcpTransport final : public NicTransport {
 public:
  static constexpr std::int64_t kDrainNs = 200'000'000;
  static constexpr std::int64_t kShortDrainNs = 2'000'000;
  static constexpr std::int64_t kLookNs = 1'000'000;  // how often one who sleeps looks whether a silence was undone

  // `signals`: the counters of this rank. `nics`: those of the node's lowest rank, by NIC; may be empty (nothing shaped).
  // `trace` may be null. All outlive this.
  TcpTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace, TcpOptions options = {});
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                        std::uint16_t epoch) override;
  bool connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const override;
  std::size_t n_connections() const override;
  bool unsent() const override;

  const char* name() const override { return "tcp"; }
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  void set_receiver(Receiver* receiver) override { context_.receiver = receiver; }
  void retire(const Path& path) override;
  bool sources_are_free(const Path& path) const override;
  void expects_no_more(bool waits) override {
    no_more_ = true;
    waits_ = waits;
  }
  bool owes_confirmations() const override { return context_.n_asked > 0; }
  NicState nic_state(std::uint16_t nic) const override;
  std::uint64_t nic_bytes_per_s(std::uint16_t nic) const override { return nic < nics_.size() ? Shaper::rate_of(nics_[nic]) : 0; }
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  struct Link {
    Link(const TcpContext& context, const ConnectionName& name, SignalOrder& order) : bundle(context, name, order) {}
    Bundle bundle;
    std::vector<std::unique_ptr<Connection>> connections;
    bool unsent() const {
      return std::any_of(connections.begin(), connections.end(), [](const auto& one) { return one->unsent(); });
    }
    std::size_t turn = 0;           // which connection is served first
    Status ended;                   // not ok: only received from, until deadline_ns
    std::int64_t deadline_ns = 0;
    NicFaults* faults = nullptr;    // of its NIC; null: there are none
    bool retired = false;           // in the middle of a poll: not served any more, and freed at its end
    bool mute_tx = false;
    bool mute_rx = false;
  };
  struct Peer {
    std::unique_ptr<SignalOrder> order;  // from the first connection on
    std::vector<Link*> links;
  };

  Status check_connection(const ConnectionName& name, int fd, std::uint16_t epoch) const;
  Link* find(const ConnectionName& name) const;
  Result<Link*> choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const Tag& tag) const;
  int serve_all(std::int64_t now_ns, bool no_more, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  bool idle(const Link& link, std::int64_t now_ns) const;
  bool calm() const;
  bool shapes() const;
  // Nothing has come to a link since it was found to have nothing to do: it is passed over.
  bool rests(const Link& link, std::int64_t now_ns) const { return calm_ && link.bundle.still(now_ns); }
  void find_awake(std::int64_t now_ns);
  void find_oldest();
  bool line_up();
  int take_asides(std::vector<Completion>& completions);
  int confirm_together(std::int64_t now_ns, std::vector<Completion>& completions);
  int serve(Link& link, std::int64_t now_ns, std::vector<Completion>& completions);
  void look(Link& link, std::int64_t now_ns) const;
  int drain(Link& link, std::int64_t now_ns, std::vector<Completion>& completions);
  void end(Link& link, Status status, bool at_once, std::int64_t now_ns);
  bool over(const Link& link, std::int64_t now_ns) const;
  void forget(const Link& link) const;
  void unlist(const Link& link);
  void drop(std::size_t i, std::vector<Completion>& completions, std::vector<LinkEvent>& events);

  TcpContext context_;
  std::span<NicShaper> nics_;
  std::span<NicFaults> faults_;
  Poller poller_;
  std::vector<Peer> peers_;  // by rank
  std::vector<std::unique_ptr<Link>> links_;
  std::size_t next_ = 0;        // whose turn it is
  std::uint64_t n_posted_ = 0;  // puts
  std::vector<Link*> awake_;          // where links may have to queue: those that do not rest
  std::vector<std::uint64_t> first_;  // by NIC: the oldest put that waits to go
  bool calm_ = false;           // as calm() said in this poll
  bool lined_up_ = false;       // a NIC was shaped in the last poll: links may wait for their turn
  bool serving_ = false;        // links may not be freed
  bool retired_ = false;        // one of them is
  bool busy_ = false;           // the last poll did something
  int unlooked_ = 0;            // polls since the poller was asked
  bool no_more_ = false;        // was said since the last poll, and
  bool waits_ = false;          // that confirmations are waited for
  bool takes_acks_ = false;     // nothing else is waited for, or the poller was asked in this poll: what is not there now comes later
  std::int64_t polled_ns_ = 0;  // the time of the last poll, which is what wait_set judges by
};

}  // namespace ccl_lab
