// The contract of every transport: it moves bytes and raises signals, nothing else.
//
// Is: the interface between `comm` (which owns memory, keys, signals and decides what to send) and a way to move bytes.
// Is not: a place for schedules, windows, retries or reductions; a transport includes no other transport, no `exec`, no `ir`.
//
// Invariants
//  - No call blocks, allocates per byte, or throws. `poll` does all work that takes time, a bounded slice at a time.
//  - The source of a put or the destination of a get belongs to the transport until its completion is polled.
//  - A put's signal is raised at the peer after the put's bytes are visible there; signals of one sender on one signal
//    channel are raised in posting order, whatever connections their bytes took.
//  - Every posted put or get completes exactly once: with ok, or with an error that names what failed. What is under way on
//    a path that is retired does not complete any more.
//  - A confirmed put completes when its bytes are at the peer and the peer's Receiver was told; those of one path land, and
//    are confirmed, in posting order. One that is to be there `surely` completes so too, and nobody is told.
//  - Offsets from a peer are checked against the registered region before a byte is written or read.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.hpp"

namespace ccl_lab {

// Names a region registered by a rank; chosen by the owner, equal in all its transports. Key 0 is the control region.
using RegionKey = std::uint32_t;
// Keys from here on name memory of GPUs, which nobody of the host reads or writes. They come and go while paths are up, and none is
// given twice.
inline constexpr RegionKey kFirstDeviceKey = 16;
constexpr bool of_device(RegionKey key) { return key >= kFirstDeviceKey; }

struct Remote {
  RegionKey key = 0;
  std::uint64_t offset = 0;
};

// A pair of NICs that joins this rank to a peer, as this rank sees it.
struct Path {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;       // of this rank's node
  std::uint16_t peer_nic = 0;  // of the peer's node

  bool operator==(const Path&) const = default;
};

// What a confirmed put says to the layer above at the peer. The transport carries it and reads nothing of it.
struct Notice {
  std::uint32_t lane = 0;
  std::uint32_t number = 0;
  std::int32_t signal = -1;
  std::uint32_t sequence = 0;

  bool operator==(const Notice&) const = default;
};

// Hears of the confirmed puts of peers, where there is a layer above that orders them (fault/rails.hpp).
class Receiver {
 public:
  virtual ~Receiver() = default;
  // The bytes of the next put of this path are visible.
  virtual void landed(const Path& path, const Notice& notice) = 0;
};

// What an op belongs to, where a transport may move it in another way for that: an all_to_all meets many senders at a receiver.
enum class Traffic : std::uint8_t { usual, all_to_all };

// What an op is called in traces and errors.
struct Tag {
  std::uint32_t coll_id = 0;
  std::int32_t op_id = -1;
  std::uint16_t channel = 0;
  Traffic traffic = Traffic::usual;
};

struct Put {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;         // local NIC of the node that should carry it (ignored inside a node)
  std::uint16_t peer_nic = 0;    // NIC of the peer's node that should receive it
  const std::byte* source = nullptr;
  RegionKey source_key = 0;      // of the region of a GPU that the source is in; 0: memory of the host
  std::uint64_t nbytes = 0;      // 0 with a signal: a pure signal
  Remote destination;
  std::int32_t signal = -1;      // signal channel to raise at the peer, in the row of this rank; -1: none; may be silent
  std::uint64_t cookie = 0;
  Tag tag;
  bool confirmed = false;        // completes when the peer has it; then `notice` instead of `signal`
  bool urgent = false;           // the sender will wait for its completion
  bool together = false;         // and only for that of others that are urgent: they may be confirmed at one go
  bool surely = false;           // completes when the peer has it, confirmed or not, and though its source was copied and is free
  std::uint64_t order = 0;       // a NIC held to a rate takes lower ones first; 0: as posted. Segments of one put have one
  Notice notice;
};

struct Get {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;
  std::uint16_t peer_nic = 0;
  std::byte* destination = nullptr;
  RegionKey destination_key = 0;  // as a put's source_key
  std::uint64_t nbytes = 0;
  Remote source;
  std::uint64_t cookie = 0;
  Tag tag;
};

struct Completion {
  std::uint64_t cookie = 0;
  Status status;
};

// A connection or peer failed outside any one put: reported once, with whom and why.
struct LinkEvent {
  std::int32_t peer = -1;
  std::uint16_t nic = 0;
  Status status;
  std::uint16_t peer_nic = 0;
};

// What the system says of a NIC of this node: local evidence, which tells a NIC that is down from a cable that is pulled.
enum class NicState : std::uint8_t { up = 0, down = 1, unplugged = 2 };

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;

  // Makes [base, base + size) reachable to peers under `key`. The memory outlives the registration.
  [[nodiscard]] virtual Status register_region(RegionKey key, std::byte* base, std::uint64_t size) = 0;
  [[nodiscard]] virtual Status deregister_region(RegionKey key) = 0;

  [[nodiscard]] virtual bool connected(std::int32_t peer) const = 0;
  [[nodiscard]] virtual Status put(const Put& put) = 0;
  [[nodiscard]] virtual Status get(const Get& get) = 0;

  // Whoever hears of confirmed puts; outlives this or is taken back. A transport without paths has none.
  virtual void set_receiver(Receiver*) {}
  // Drops what joins these NICs, at once: from here on no byte that the peer sent over it lands, and nothing is sent.
  virtual void retire(const Path&) {}
  // Whether the system has all bytes of what was put over this path, confirmed or not: sources are read no more. A transport that
  // cannot tell says no, as does one that reads them until they are there.
  virtual bool sources_are_free(const Path&) const { return false; }
  // Until the end of the next poll nothing is waited for here but confirmations, if anything: peers wait for theirs, and no other word
  // will take them along. `waits`: these are waited for, so that what is here of them goes before a look at what else there may be.
  virtual void expects_no_more(bool) {}
  // Whether a peer waits for a confirmation that waits for others to go with: who polls no more says before that it expects no more.
  virtual bool owes_confirmations() const { return false; }
  virtual NicState nic_state(std::uint16_t) const { return NicState::up; }
  // What a NIC of this node is held to; 0: nothing.
  virtual std::uint64_t nic_bytes_per_s(std::uint16_t) const { return 0; }

  // Moves bytes, raises signals, appends completions and events; returns how many things it did (0: idle).
  virtual int poll(std::int64_t now_ns, std::vector<Completion>& completions, std::vector<LinkEvent>& events) = 0;

  // Who polls is about to sleep, if the next poll does nothing: what wakes a sleeper, and costs something to ask for, is asked for in that
  // poll. Who once says so says it ahead of every sleep, or is told by wait_set to poll once more; for who never does, polls ask always.
  virtual void about_to_sleep() {}

  // What to sleep on while idle: appends descriptors, and lowers wake_ns to the latest time (ns, CLOCK_MONOTONIC) by
  // which poll wants to be called again; the caller starts with INT64_MAX, which stays where nothing is timed.
  virtual void wait_set(std::vector<pollfd>& descriptors, std::int64_t& wake_ns) const = 0;

  // Forgets everything in flight (no completions will come) and drops connections; after it `connected` is false
  // and connections of a newer epoch can be added. Used after an abort and by the destructor.
  virtual void reset(std::uint16_t epoch) = 0;
};

}  // namespace ccl_lab
