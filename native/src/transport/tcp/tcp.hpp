// Bytes between ranks over stream sockets, one connection (or several) for each pair of NICs.
//
// Is: the production path where there is no RDMA, and the embedded default of the lab, where a NIC can be held to a rate
//     (shaper.hpp) and pulled (NicShaper.up).
// Is not: what dials, accepts or authenticates: it is given connected descriptors. Not a router: a put names its NICs, and
//     where no connection joins them it is refused.
//
//   put ─► connection of (peer, nic, peer_nic) with the least queued ─► frames (frame.hpp) ─► region of the peer ─► signal
//
// Invariants
//  - Signals of a sender on one channel are raised in posting order, whatever connections their puts took (SignalOrder).
//  - A connection that ends (closed, error, bad frame, NIC down) completes all it had in flight with that error and is
//    reported once: peer_lost where it was the last one to that peer, link_down otherwise. Nothing of a bad frame is written.
//  - What a dead connection carried is not sent again here: later signals of the same channel then stay parked, so nobody
//    skips forward; recovery belongs to the layer above, and starts with reset().
//  - One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/segment.hpp"
#include "transport/tcp/connection.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

class TcpTransport final : public Transport {
 public:
  // `signals`: the counters of this rank. `nics`: those of the node's lowest rank, by NIC; may be empty (nothing shaped).
  // `trace` may be null. All outlive this.
  TcpTransport(int rank, SignalTable signals, std::span<NicShaper> nics, SpanWriter* trace);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // Takes over `fd`, a connected and authenticated stream socket, also when it fails (then it is closed).
  Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                        std::uint16_t epoch);
  bool connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const;
  std::size_t n_connections() const { return connections_.size(); }

  const char* name() const override { return "tcp"; }
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  struct Peer {
    std::unique_ptr<SignalOrder> order;  // from the first connection on
    std::vector<Connection*> connections;
  };

  Result<Connection*> choose(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const Tag& tag) const;
  int serve(Connection& connection, short ready, std::int64_t now_ns, std::vector<Completion>& completions, Status& status);
  void drop(std::size_t i, Status status, std::vector<Completion>& completions, std::vector<LinkEvent>& events);

  TcpContext context_;
  std::span<NicShaper> nics_;
  std::vector<Peer> peers_;  // by rank
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<pollfd> ready_;
  std::size_t next_ = 0;     // whose turn it is
  std::int64_t polled_ns_ = 0;  // the time of the last poll, which is what wait_set judges by
};

}  // namespace ccl_lab
