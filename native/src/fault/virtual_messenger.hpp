// Messages between ranks of a VirtualNetwork, as its mail.
//
// Is: the Messenger contract in virtual time: mail out of band, and probes that obey the NICs they name.
// Is not: reliable, on purpose: the network loses, doubles and delays.
#pragma once

#include <vector>

#include "fault/messenger.hpp"
#include "transport/virtual/network.hpp"

namespace ccl_lab {

class VirtualMessenger final : public Messenger {
 public:
  // The network outlives this.
  VirtualMessenger(VirtualNetwork& network, int rank) : network_(network), rank_(rank) {}

  void send(const Datagram& datagram) override;
  int poll(std::int64_t now_ns, std::vector<Datagram>& arrived) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  VirtualNetwork& network_;
  const int rank_;
  std::uint16_t epoch_ = 0;
  std::vector<Mail> mails_;
};

}  // namespace ccl_lab
