// Messages about paths as UDP datagrams: out of band over a management address, and probes over each NIC of the node.
//
// Is: one nonblocking socket bound to the management address and one to the address of each NIC of this node; datagrams of
//     kDatagramBytes: the message and a tag over it (siphash.hpp) that only ranks of the job can make.
// Is not: reliable, nor in order, nor secret. Not a finder of peers: addresses are handed in.
//
//   send(nic k, peer_nic j)   from the socket of NIC k to the peer's socket of NIC j;   out of band: management to management
//   send ─► lost, doubled, late (injected; only out of band)          ─► sendto
//        ─► dropped: own NIC k down, silent or unplugged; late: delay ─►
//   recvfrom ─► dropped: size, tag, epoch, sender, NIC k down, silent or unplugged ─► poll()
//
// Invariants
//  - The sender's rank and the epoch of a message are filled in here, and the NICs of one that takes NICs.
//  - Nothing of a datagram is believed before its tag is right; what is dropped is counted.
//  - A poll reads at most kMostReads datagrams, whoever sends them, and asks the system at most every kLookNs.
//  - One thread at a time.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/segment.hpp"
#include "fault/messenger.hpp"
#include "fault/siphash.hpp"

namespace ccl_lab {

// An IPv4 or IPv6 address in digits, and a port; 0: the system chooses one.
struct Endpoint {
  std::string address;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};

struct UdpOptions {
  int rank = -1;
  int n_ranks = 0;
  SipKey key{};                            // of the job
  Endpoint out_of_band;                    // of this rank
  std::vector<Endpoint> nics;              // of this rank, one for each NIC of its node; empty: no probes over NICs
  std::span<NicShaper> shapers = {};       // of the node; may be empty. These outlive the messenger
  std::span<NicFaults> nic_faults = {};
  MessageFaults* message_faults = nullptr; // of this rank
};

class UdpMessenger final : public Messenger {
 public:
  static constexpr std::size_t kDatagramBytes = kMessageBytes + 8;
  static constexpr int kMostReads = 64;
  static constexpr std::int64_t kLookNs = 200'000;

  struct Counters {
    std::uint64_t sent = 0;      // handed to the system
    std::uint64_t received = 0;  // handed out
    std::uint64_t unsent = 0;    // the system refused, or nobody knows the address
    std::uint64_t strange = 0;   // of a wrong size, tag or form, or of no peer
    std::uint64_t stale = 0;     // of another epoch
  };

  // Binds all sockets. An error names the address.
  static Result<std::unique_ptr<UdpMessenger>> create(UdpOptions options);
  ~UdpMessenger() override;
  UdpMessenger(const UdpMessenger&) = delete;
  UdpMessenger& operator=(const UdpMessenger&) = delete;

  // Where peers reach this rank, with the ports that the system chose.
  const Endpoint& out_of_band() const { return options_.out_of_band; }
  const std::vector<Endpoint>& nics() const { return options_.nics; }
  // Where a peer is; again to replace it. `nics`: by its NIC; an entry without an address is none.
  Status set_peer(std::int32_t peer, const Endpoint& out_of_band, const std::vector<Endpoint>& nics);
  const Counters& counters() const { return counters_; }

  void send(const Datagram& datagram) override;
  int poll(std::int64_t now_ns, std::vector<Datagram>& arrived) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  struct Address {
    sockaddr_storage raw{};
    socklen_t size = 0;  // 0: none
  };
  struct Peer {
    Address out_of_band;
    std::vector<Address> nics;
  };
  struct Late {
    std::int64_t at_ns = 0;
    Datagram datagram;
  };

  explicit UdpMessenger(UdpOptions options);
  static Result<Address> parse(const Endpoint& endpoint);
  Status open(int nic, Endpoint& endpoint);
  bool mute(std::int32_t nic, bool sending) const;
  std::int64_t waits(std::int32_t nic);
  void send_now(const Datagram& datagram);
  void take(std::size_t socket, const std::byte* bytes, std::size_t nbytes, std::vector<Datagram>& arrived);
  std::uint64_t random();

  UdpOptions options_;
  std::vector<int> sockets_;  // out of band, then by NIC
  int poller_ = -1;
  std::vector<Peer> peers_;   // by rank
  std::vector<Late> late_;    // in no order
  std::uint16_t epoch_ = 0;
  std::int64_t polled_ns_ = 0;
  std::int64_t looked_ns_ = -kLookNs;
  bool more_ = false;         // the last look did not read all
  std::size_t first_ = 0;     // which socket is read first
  std::uint64_t random_ = 0;
  Counters counters_;
};

}  // namespace ccl_lab
