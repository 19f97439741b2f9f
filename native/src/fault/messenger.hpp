// How messages about paths travel.
//
// Is: the interface between the fault layer and a way to send datagrams: out of band, or, for probes, over a pair of NICs.
// Is not: reliable: a message may be lost, doubled, late or out of order.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "fault/message.hpp"

namespace ccl_lab {

inline constexpr std::int32_t kOutOfBand = -1;

struct Datagram {
  std::int32_t peer = -1;                // who gets it, or sent it
  std::int32_t nic = kOutOfBand;         // the NIC here that sends or got it
  std::int32_t peer_nic = kOutOfBand;    // the NIC there
  Message message;
};

class Messenger {
 public:
  virtual ~Messenger() = default;
  // Never blocks; what cannot be sent is dropped.
  virtual void send(const Datagram& datagram) = 0;
  // Appends what came; returns how many.
  virtual int poll(std::int64_t now_ns, std::vector<Datagram>& arrived) = 0;
  virtual void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const = 0;
  // Messages of other epochs are dropped.
  virtual void reset(std::uint16_t epoch) = 0;
};

}  // namespace ccl_lab
