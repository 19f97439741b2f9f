// Ranks in one thread: a transport for tests of everything above transports.
//
// Is: a hub that N LoopTransports share; a put is a memcpy done by the sender's poll. With seed 0 ops are done in posting
//     order at the next poll. With another seed each poll does a random part of a random op: bytes of a put appear in
//     pieces, ops overtake each other, and only what the contract promises holds (signals of one sender on one channel
//     in order, each after its put's bytes). The same seed and calls give the same history.
// Is not: safe for threads, or quick with long queues.
//
// Invariants
//  - Two ranks are connected while both are attached, were linked after their last reset, and have the same epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/signals.hpp"
#include "transport/queue.hpp"
#include "transport/regions.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

class LoopTransport;

class LoopHub {
 public:
  explicit LoopHub(int n_ranks, std::uint64_t seed = 0) : seed_(seed), ranks_(static_cast<std::size_t>(n_ranks)) {}

 private:
  friend class LoopTransport;
  std::uint64_t seed_;
  std::vector<LoopTransport*> ranks_;
};

class LoopTransport final : public Transport {
 public:
  // Attaches to the hub, which outlives this, and links to every rank. `signals` are the counters of this rank.
  LoopTransport(LoopHub& hub, int rank, SignalTable signals);
  ~LoopTransport() override;
  LoopTransport(const LoopTransport&) = delete;
  LoopTransport& operator=(const LoopTransport&) = delete;

  // Links to `peer` again after a reset; both sides have to.
  void link(std::int32_t peer);

  const char* name() const override { return "loop"; }
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  enum Link : char { kUnlinked, kLinked, kSeen };  // seen: was connected at some poll

  struct Item {
    bool is_get = false;
    std::int32_t peer = -1;
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;
    std::uint64_t nbytes = 0;
    std::uint64_t done = 0;
    Remote remote;
    std::int32_t signal = -1;
    std::uint64_t cookie = 0;
    Tag tag;
  };

  std::uint64_t random();
  Status check_peer(std::int32_t peer, const Tag& tag) const;
  bool may_finish(std::size_t i);
  bool advance(Item& item, std::uint64_t nbytes, bool may_signal, Status& status);
  void report_lost(std::vector<Completion>& completions, std::vector<LinkEvent>& events);

  LoopHub& hub_;
  int rank_;
  SignalTable signals_;
  Regions regions_;
  std::uint16_t epoch_ = 0;
  std::uint64_t random_state_;
  std::vector<Link> linked_;
  Queue<Item> queue_;
};

}  // namespace ccl_lab
