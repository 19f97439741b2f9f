// Bytes between ranks of one node, through each other's mapped segments.
//
// Is: put = memcpy into the peer's region, a release-increment of its signal, a ring of its doorbell; get = memcpy from it.
//     Regions 0 and 1 of a peer lie in its segment. Other keys are plain memory of the peer (RegionSlot), reached by
//     process_vm_writev/readv, which the system may forbid (then the op fails and says so).
// Is not: the owner of segments: they outlive it. Not for peers on other nodes.
//
//   put() ─► queue of the peer ─► poll: slices, round robin over peers ─► last byte ─► signal ─► doorbell ─► completion
//
// Invariants
//  - One poll moves at most kSliceBytes in all, so that other work of the progress thread is never far away.
//  - Ops to one peer are done in posting order. After an op failed, later ones to that peer fail too: a signal never
//    counts for a put that did not happen.
//  - One thread at a time; the peers' segments are shared with their processes through atomics only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/segment.hpp"
#include "trace/ring.hpp"
#include "transport/queue.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

inline constexpr std::uint64_t kShmSliceBytes = 256 * 1024;

class ShmTransport final : public Transport {
 public:
  // `own` is connected as a peer too, so that a rank can put to itself. `trace` may be null.
  ShmTransport(const RankSegment& own, SpanWriter* trace);
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  // `segment` outlives the transport or its next reset.
  Status add_peer(std::int32_t peer, const RankSegment& segment);

  const char* name() const override { return "shm"; }
  // Keys 0 and 1 must be what the own segment says they are; other keys are published to the peers as plain memory.
  Status register_region(RegionKey key, std::byte* base, std::uint64_t size) override;
  Status deregister_region(RegionKey key) override;
  bool connected(std::int32_t peer) const override;
  Status put(const Put& put) override;
  Status get(const Get& get) override;
  int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) override;
  void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const override;
  void reset(std::uint16_t epoch) override;

 private:
  struct Item {
    bool is_get = false;
    bool plain = false;              // remote memory is not mapped: copy across processes
    std::byte* local = nullptr;
    std::uint64_t remote = 0;        // address: here if mapped, in the peer if plain
    std::uint64_t nbytes = 0;
    std::uint64_t done = 0;
    std::int32_t signal = -1;
    std::uint64_t cookie = 0;
    Tag tag;
    std::int64_t begin_ns = 0;
  };
  struct Peer {
    const RankSegment* segment = nullptr;
    int process = -1;                // pidfd: readable when the peer's process has ended; -1: not watched
    Status failed;
    Queue<Item> queue;
  };

  Status check_peer(std::int32_t peer, const Tag& tag) const;
  Status enqueue(std::int32_t peer, Item item, Remote remote, const char* what);
  Status copy_slice(const Peer& peer, Item& item, std::uint64_t nbytes) const;
  int drain(std::int32_t peer, std::uint64_t& budget, std::vector<Completion>& completions);
  void finish(const Peer& peer, std::int32_t rank, const Item& item);
  void fail(std::int32_t peer, const Status& status, std::vector<Completion>& completions);
  int find_ended(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events);
  void drop_peers();

  const RankSegment& own_;
  SpanWriter* trace_;
  std::uint16_t epoch_ = 0;
  std::vector<Peer> peers_;          // by rank
  std::vector<pollfd> processes_;    // of watched peers; rebuilt when one comes or goes
  std::vector<std::int32_t> process_ranks_;
  std::size_t queued_ = 0;           // items in all queues
  std::size_t next_ = 0;             // whose turn it is
  std::int64_t next_check_ns_ = 0;
};

}  // namespace ccl_lab
