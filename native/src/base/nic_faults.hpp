// What an injector has asked of one NIC of a node, and how often it came true.
//
// Is: words in shared memory, one set for each NIC beside its NicShaper, of the node's lowest rank, shared by the node's
//     ranks: written by injectors, obeyed by whatever moves bytes or messages over that NIC.
// Is not: what carries a fault out (transport/tcp, fault/udp_messenger). Rates and `down` are words of NicShaper.
//
//   kind        value                      what it does                                            a hit is
//   silent_tx   0 or 1                     nothing is sent, nobody is told; undone, it goes out    a connection held
//   silent_rx   0 or 1                     nothing is read, nobody is told; undone, it is read     a connection held
//   unplugged   0 or 1                     both, and the system says so                            a connection held
//   damage      frames left to damage      a bit of the header is wrong on the wire                a frame damaged
//   sever       connections left to shut   the socket is shut, both ways                           a connection shut
//   delay_ns    ns                         what is sent waits so long                              what was delayed
//   jitter_ns   ns                         and up to so much longer, at random                     what was delayed
//   down        NicShaper.up is 0          sockets are shut, and the system says so                a path ended
//
// Probes (fault/udp_messenger.hpp) over a NIC that is silent, unplugged or down are dropped, each a hit.
//
// Invariants
//  - While nothing is asked, `any` is 0, and looking at it is all that faults cost.
//  - Counts are taken one by one: over all ranks, as many frames are damaged and connections shut as were asked for.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ccl_lab {

enum class NicFault : std::uint8_t { silent_tx, silent_rx, unplugged, damage, sever, delay_ns, jitter_ns, down };

inline constexpr std::size_t kNicFaults = 8;
inline constexpr std::array<const char*, kNicFaults> kNicFaultNames = {"silent_tx", "silent_rx", "unplugged", "damage",
                                                                       "sever",     "delay_ns",  "jitter_ns", "down"};

struct alignas(64) NicFaults {
  std::atomic<std::uint32_t> any;
  std::atomic<std::int64_t> values[kNicFaults];  // that of `down` stays 0
  alignas(64) std::atomic<std::uint64_t> hits[kNicFaults];

  static std::size_t index(NicFault kind) { return static_cast<std::size_t>(kind); }

  bool asked() const { return any.load(std::memory_order_relaxed) != 0; }
  std::int64_t value(NicFault kind) const { return values[index(kind)].load(std::memory_order_relaxed); }
  bool on(NicFault kind) const { return value(kind) > 0; }
  bool mute_tx() const { return on(NicFault::silent_tx) || on(NicFault::unplugged); }
  bool mute_rx() const { return on(NicFault::silent_rx) || on(NicFault::unplugged); }

  void hit(NicFault kind) { hits[index(kind)].fetch_add(1, std::memory_order_relaxed); }
  void hit_mute(NicFault silence) { hit(on(NicFault::unplugged) ? NicFault::unplugged : silence); }

  // By an injector.
  void set(NicFault kind, std::int64_t value) {
    values[index(kind)].store(value);
    any.store(1);
    if (value == 0) settle();
  }
  // The same, where nothing is left of what was asked before.
  bool ask(NicFault kind, std::int64_t value) {
    std::int64_t none = 0;
    if (!values[index(kind)].compare_exchange_strong(none, value)) return false;
    any.store(1);
    return true;
  }
  // One of what is counted; false where none is left.
  bool take(NicFault kind) {
    std::atomic<std::int64_t>& left = values[index(kind)];
    std::int64_t seen = left.load(std::memory_order_relaxed);
    do {
      if (seen <= 0) return false;
    } while (!left.compare_exchange_weak(seen, seen - 1));
    hit(kind);
    if (seen == 1) settle();
    return true;
  }

 private:
  // An injector that sets a word in between sets `any` after it, or this sees the word: both are sequentially consistent.
  void settle() {
    any.store(0);
    for (const std::atomic<std::int64_t>& each : values)
      if (each.load() != 0) return any.store(1);
  }
};
static_assert(sizeof(NicFaults) == 192, "no padding that differs by compiler");

}  // namespace ccl_lab
