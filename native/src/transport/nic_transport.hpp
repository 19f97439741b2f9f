// What transports between nodes have in common: paths over named NICs, made of sockets that others dialled.
//
// Is: the part of tcp and verbs that `comm` needs beside the contract of transport.hpp.
// Is not: for ranks that share memory.
#pragma once

#include <cstdint>
#include <string>

#include "transport/transport.hpp"

namespace ccl_lab {

class NicTransport : public Transport {
 public:
  // Takes over `fd`, a connected and authenticated stream socket, also when it fails (then it is closed). `index`: of the
  // connections between two NICs.
  virtual Status add_connection(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, std::uint16_t index, int fd,
                                std::uint16_t epoch) = 0;
  virtual bool connected(std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic) const = 0;
  using Transport::connected;
  virtual std::size_t n_connections() const = 0;
  // Memory of a GPU that starts at `base` there, by its dma-buf, of which it is the first `size` bytes: on every NIC of this node at once, or
  // on none. The descriptor may be closed afterwards. unsupported where a NIC, or this transport, takes none, and why.
  [[nodiscard]] virtual Status register_device(RegionKey, std::byte*, std::uint64_t, int) {
    return Status(Code::unsupported, std::string("what goes over ") + name() + " is read and written by the host, which memory of a GPU is not");
  }
  // Whether puts are not with the system yet.
  virtual bool unsent() const = 0;
  // Whether what peers are to get has left for good: from then on this may be closed without a loss to them.
  virtual bool quiet() const { return !unsent(); }

 protected:
  // Why an op cannot be posted: nothing joins these NICs. `name`: what would.
  Status no_path(const std::string& name, std::int32_t peer, std::uint16_t nic, const Tag& tag) const {
    const bool others = connected(peer);
    return Status(others ? Code::link_down : Code::connect,
                  "no " + name + " for op " + std::to_string(tag.op_id) +
                      (others ? "; other NICs still reach that rank" : "; connect it first, or reset after a failure"),
                  peer, nic, tag.op_id);
  }
};

}  // namespace ccl_lab
