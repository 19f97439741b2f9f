// One rank's end of a VirtualNetwork.
//
// Is: the transport contract over virtual links: confirmed and unconfirmed puts, gets, retirement, NIC state.
// Is not: safe for threads; not a clock (time is the network's).
//
// Invariants
//  - Bytes of peers appear in this rank's memory whether it polls or not; it hears of them only when it polls.
//  - A retired link gives no completion, no event and no notice any more, also none that waited to be polled.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/signals.hpp"
#include "transport/regions.hpp"
#include "transport/transport.hpp"
#include "transport/virtual/network.hpp"

namespace ccl_lab {

class VirtualTransport final : public Transport {
 public:
  // Attaches to the network, which outlives this. `signals` are the counters of this rank.
  VirtualTransport(VirtualNetwork& network, int rank, SignalTable signals);
  ~VirtualTransport() override;
  VirtualTransport(const VirtualTransport&) = delete;
  VirtualTransport& operator=(const VirtualTransport&) = delete;

  // Takes this rank's end of a link that was dialled.
  Status attach(std::uint32_t link);
  // Refuses it: closes this end, and the other one hears of that.
  void refuse(std::uint32_t link);
  bool connected(const Path& path) const { return link_of(path) != nullptr; }

  const char* name() const override { return "virtual"; }
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  void set_receiver(Receiver* receiver) override { receiver_ = receiver; }
  void retire(const Path& path) override;
  bool sources_are_free(const Path& path) const override;
  NicState nic_state(std::uint16_t nic) const override;
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  friend class VirtualNetwork;

  struct Landing {
    std::uint32_t link = 0;
    std::uint64_t serial = 0;
    Notice notice;
  };
  struct Done {
    std::uint32_t link = 0;
    Completion completion;
  };
  struct Failure {
    std::uint32_t link = 0;
    LinkEvent event;
  };

  VirtualNetwork::Link* link_of(const Path& path) const;
  int end_of(const VirtualNetwork::Link& link, const Path& path) const;
  void forget(std::uint32_t link);
  void raise(int from, std::int32_t signal, std::uint32_t number);
  bool raise_next(int from, std::int32_t channel);

  VirtualNetwork& network_;
  const int rank_;
  const SignalTable signals_;
  Receiver* receiver_ = nullptr;
  Regions regions_;
  std::vector<std::uint32_t> links_;
  std::vector<std::pair<Path, std::uint32_t>> retired_;   // what was retired last, by path: to tell a mistake from a race
  std::vector<Landing> landings_;
  std::vector<Done> done_;
  std::vector<Failure> failures_;
  // Unconfirmed signals: numbers given out, the next to raise, and those that came too early.
  std::map<std::pair<int, std::int32_t>, std::uint32_t> signals_sent_;
  std::map<std::pair<int, std::int32_t>, std::uint32_t> signals_raised_;
  std::vector<std::pair<std::pair<int, std::int32_t>, std::uint32_t>> parked_;
};

}  // namespace ccl_lab
