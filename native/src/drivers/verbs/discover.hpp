// The RDMA devices of this machine, as the system's files describe them.
//
// Is: what /sys/class/infiniband says: devices, ports, states, rates, GIDs, network interfaces, NUMA nodes; and which of them
//     a network address belongs to. Needs no library and no permission.
// Is not: whether a device can be opened (verbs.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "drivers/verbs/verbs.hpp"

namespace ccl_lab::verbs {

struct GidEntry {
  int index = 0;
  Gid gid{};
  std::string type;     // "RoCE v2", "IB/RoCE v1"
  std::string netdev;
  bool mapped = false;  // an IPv4 address
};

struct PortInfo {
  std::uint8_t number = 1;
  PortState state = PortState::nop;
  std::string link_layer;       // Ethernet or InfiniBand
  double gbits_per_s = 0;
  std::string netdev;
  std::vector<GidEntry> gids;   // that are set
};

struct DeviceInfo {
  std::string name;
  int numa_node = -1;           // -1: not known
  std::string pci;              // address on the bus; empty: a device of software
  std::vector<PortInfo> ports;
};

// By name. Empty where there are none.
std::vector<DeviceInfo> discover(const std::string& root = "/sys/class/infiniband");

// A device, one of its ports and one of that port's GIDs.
struct Nic {
  std::string device;  // empty: none
  std::uint8_t port = 1;
  int gid_index = 0;

  bool operator==(const Nic&) const = default;
};

// Which of `devices` carries what is sent from this address (of a network interface). GIDs of RoCE v2 before others, IPv4
// before IPv6. unsupported, saying what was looked at, where there is none.
Result<Nic> nic_of(const std::vector<DeviceInfo>& devices, const std::string& address);

// The GID a connection should use; -1: the port has none.
int best_gid(const PortInfo& port);

}  // namespace ccl_lab::verbs
