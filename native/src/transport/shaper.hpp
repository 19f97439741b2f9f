// How a NIC of the lab is held to a rate.
//
// Is: two rules over one word per NIC and direction, `tat`: the time at which the wire has carried all bytes admitted so
//     far. The word lies in shared memory; the ranks of a node share a NIC by compare-and-swap, without locks.
// Is not: a model of latency or loss. It knows no clock: `now_ns` comes from the caller, so tests run on virtual time.
//
//   sending    reserve first: a frame gets the slot [max(tat, ready), + its bytes / rate) of the wire, and a quantum of it may
//              be handed to the kernel once its part of the slot has passed. `ready` is when the bytes began to wait, so a
//              process that the system did not run for a while catches up exactly what it missed, and idle time is never
//              saved up. Frames of several connections leave one after the other, as a schedule's transfers do in the
//              simulator: sharing the wire would end the first as late as the last. Short ones, which carry
//              acknowledgements and addresses, do not queue: they take their part of the wire up to kMostEarlyNs early.
//   receiving  pay afterwards: one may read while tat <= now, then tat = max(tat, sent) + read / rate, `sent` being when the
//              sender's wire took the frame. Bytes that come alone are not delayed, they took their time on the sender's
//              wire; an incast waits its turn, frame after frame; a receiver that was late catches up.
//
// Invariants
//  - Over any span T of time at most rate * (T + kMostLateNs + kMostEarlyNs) + one frame per connection leave a NIC, and at most
//    rate * (T + kMostLateNs) + one quantum per rank are read from it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/segment.hpp"

namespace ccl_lab {

inline constexpr std::int64_t kMostLateNs = 10'000'000;
// More than the frames of a NIC's connections take that may lie before a short one, at a rate that is worth it.
inline constexpr std::int64_t kMostEarlyNs = 100'000'000;

class Shaper {
 public:
  Shaper() = default;  // shapes nothing
  explicit Shaper(NicShaper* nic) : nic_(nic) {}

  static std::uint64_t rate_of(const NicShaper& nic) { return nic.bytes_per_s.load(std::memory_order_relaxed); }
  std::uint64_t rate() const { return nic_ == nullptr ? 0 : rate_of(*nic_); }
  bool up() const { return nic_ == nullptr || nic_->up.load(std::memory_order_relaxed) != 0; }

  // How many bytes are admitted at one go: half a millisecond's worth, in bounds.
  static std::uint64_t quantum(std::uint64_t rate) {
    return std::clamp<std::uint64_t>(rate / 2000, 4 * 1024, 256 * 1024);
  }

  // A header and what says where something is. More would be data that no link delays: whole messages come in such pieces.
  static constexpr std::uint64_t kShortBytes = 512;

  struct Slot {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  // A slot of the sending wire for `nbytes` that have waited since `ready_ns`. rate > 0.
  Slot reserve(std::uint64_t nbytes, std::uint64_t rate, std::int64_t ready_ns, std::int64_t now_ns) const {
    const std::int64_t earliest = std::max(std::min(ready_ns, now_ns), now_ns - kMostLateNs);
    return advance(nic_->tx_tat_ns, duration_ns(nbytes, rate), earliest);
  }

  // The same for a short frame: its slot is at the end of the queue too, but it need not wait there.
  Slot reserve_short(std::uint64_t nbytes, std::uint64_t rate, std::int64_t ready_ns, std::int64_t now_ns) const {
    const Slot slot = reserve(nbytes, rate, ready_ns, now_ns);
    const std::int64_t begin = std::min(slot.begin_ns, std::max(now_ns, slot.begin_ns - kMostEarlyNs));
    return {begin, begin + slot.end_ns - slot.begin_ns};
  }

  // When one may read next: at or before now_ns means at once.
  std::int64_t readable_ns() const { return nic_->rx_tat_ns.load(std::memory_order_relaxed); }

  // Pays for bytes read. `sent_ns` comes from the peer: only a plausible time counts.
  Slot pay(std::uint64_t nbytes, std::uint64_t rate, std::int64_t sent_ns, std::int64_t now_ns) const {
    const std::int64_t earliest = std::max(std::min(sent_ns, now_ns), now_ns - kMostLateNs);
    return advance(nic_->rx_tat_ns, duration_ns(nbytes, rate), earliest);
  }

  void count_tx(std::uint64_t nbytes) const {
    if (nic_ != nullptr) nic_->tx_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  }
  void count_rx(std::uint64_t nbytes) const {
    if (nic_ != nullptr) nic_->rx_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  }

  static std::int64_t duration_ns(std::uint64_t nbytes, std::uint64_t rate) {
    return static_cast<std::int64_t>((nbytes * 1'000'000'000u + rate - 1) / rate);
  }

 private:
  static Slot advance(std::atomic<std::int64_t>& tat, std::int64_t duration_ns, std::int64_t earliest_ns) {
    std::int64_t seen = tat.load(std::memory_order_relaxed);
    for (;;) {
      const std::int64_t begin = std::max(seen, earliest_ns);
      if (tat.compare_exchange_weak(seen, begin + duration_ns, std::memory_order_relaxed))
        return {begin, begin + duration_ns};
    }
  }

  NicShaper* nic_ = nullptr;
};

}  // namespace ccl_lab
