// Faults that wait for a point of the recovery protocol, as words in shared memory.
//
// Is: what an injector arms for the ranks of a node, in the segment of the node's lowest rank beside its NICs, and what came
//     of it: the n-th time that a rank passes this point, these words of a NIC are set, there and then, by that rank.
// Is not: the names of points, nor what looks at the words (fault/points.hpp).
//
//   free ──injector arms──► armed ──n-th pass──► firing ──► fired ──injector has read it──► free
//                              └────injector calls it off─────────────────────────────────►
//
// Invariants
//  - While nothing is armed, `armed` is 0, and looking at it is all that triggers cost.
//  - One rank fires a trigger, once, however many pass the point.
//  - What is asked is written while it is free; what came of it is complete before it is `fired`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/nic_faults.hpp"

namespace ccl_lab {

enum class TriggerState : std::uint32_t { free, armed, firing, fired };

// Where, when, and what.
struct TriggerOrder {
  std::int32_t point = 0;
  std::int32_t rank = -1;       // that passes it; -1: any of this node
  std::int32_t node = -1;       // the path at the point has this NIC at one of its ends; -1: any path
  std::int32_t path_nic = -1;
  std::int32_t nic = -1;        // of this node, which it is done to; -1: nothing is done
  std::int32_t signal = 0;      // the rank that fires it sends itself; 0: none
  std::int64_t asked[kNicFaults] = {};  // of that NIC; 0: left as it is; `down` 1: NicShaper.up = 0
};

struct alignas(64) Trigger {
  std::atomic<TriggerState> state;
  std::atomic<std::int64_t> left;  // passes, up to and with the one that fires it
  TriggerOrder order;
  // What came of it.
  std::int32_t fired_by;
  std::uint32_t did;               // bit i: fault i was asked, and is set
  std::int64_t fired_ns;
  std::uint64_t hits[kNicFaults];  // of that NIC, just before
};

inline constexpr std::size_t kTriggers = 16;

struct alignas(64) Triggers {
  std::atomic<std::uint32_t> armed;
  Trigger each[kTriggers];

  bool any() const { return armed.load(std::memory_order_relaxed) != 0; }

  // By the injector, of which there is one at a time. The trigger's number; -1: all are in use.
  int arm(const TriggerOrder& order, std::int64_t passes) {
    for (std::size_t i = 0; i < kTriggers; ++i) {
      Trigger& trigger = each[i];
      if (trigger.state.load(std::memory_order_acquire) != TriggerState::free) continue;
      trigger.order = order;
      trigger.left.store(passes);
      trigger.state.store(TriggerState::armed);
      armed.store(1);
      return static_cast<int>(i);
    }
    return -1;
  }
  // False where a rank fires it, or has.
  bool call_off(std::size_t i) {
    TriggerState seen = TriggerState::armed;
    if (!each[i].state.compare_exchange_strong(seen, TriggerState::free)) return false;
    settle();
    return true;
  }
  // What came of it has been read.
  void release(std::size_t i) { each[i].state.store(TriggerState::free); }
  // As NicFaults::settle: one that is armed meanwhile sets `armed` after it, or is seen here.
  void settle() {
    armed.store(0);
    for (const Trigger& trigger : each)
      if (trigger.state.load() == TriggerState::armed) return armed.store(1);
  }
};

}  // namespace ccl_lab
