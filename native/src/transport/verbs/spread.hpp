// How a put is spread over the queue pairs of a path, and how its pieces are put in order again (DQPLB).
//
// Is: the settings, the 32 bits of an immediate, and the choice of the next queue pair. Numbers and rules, no devices.
// Is not: what posts (link.hpp) or orders (transport/segment_order.hpp).
//
//   immediate   bit 31      30    29    28..24   23..0
//               notify      fast  ack   0        number
//
//   number   of a segment, over all queue pairs of the path in posting order, mod 2^24
//   notify   the last segment of a put: it carries a signal or a notice, or it is the one that says a sprayed put is there
//   fast     a put of one segment, when nothing else waited: it took queue pair 0
//   ack      not a segment: `number` is the next one that is missing of those that go the other way
//
// Source: NCCLX (arXiv 2510.20171), section on queue-pair load balancing; `ack` is ours: it returns receives, and confirms.
//
// Invariants
//  - At most kWindow segments are numbered and not acknowledged, far less than half of the numbers: they never collide.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ccl_lab {

inline constexpr std::uint32_t kSequenceBits = 24;
inline constexpr std::uint32_t kSequenceMask = (1u << kSequenceBits) - 1;
inline constexpr std::uint32_t kAckBit = 1u << 29;
inline constexpr std::uint32_t kFastBit = 1u << 30;
inline constexpr std::uint32_t kNotifyBit = 1u << 31;
inline constexpr std::uint32_t kWindow = 2048;

// The number near `near` (less than 2^23 away) whose low 24 bits an immediate carries.
constexpr std::uint32_t widen(std::uint32_t imm, std::uint32_t near) {
  const std::uint32_t ahead = (imm - near) & kSequenceMask;
  return near + (ahead < (1u << (kSequenceBits - 1)) ? ahead : ahead - (1u << kSequenceBits));
}

// dqplb: every segment is a write with immediate. spray: plain writes, and one immediate when all of them are done.
enum class SpreadMode : std::uint8_t { dqplb, spray };

// What lies between two nodes, or what an algorithm says it needs.
enum class Reach : std::uint8_t { same_rack, same_zone, cross_zone, cross_building, all_to_all };

struct Spread {
  std::uint64_t segment_bytes = 512 * 1024;  // 0: a put is split evenly over the queue pairs
  int queue_pairs = 16;
  std::uint32_t inflight_max = 128;          // segments of a queue pair
  SpreadMode mode = SpreadMode::dqplb;

  // Product of the three: about the bandwidth-delay product of the path, or more.
  static Spread of(Reach reach) {
    Spread spread;
    if (reach == Reach::same_rack || reach == Reach::same_zone) return spread;
    spread.segment_bytes = 1024 * 1024;
    spread.mode = SpreadMode::spray;
    if (reach == Reach::all_to_all) spread.queue_pairs = 4;
    return spread;
  }

  // The most that the next segment of a put of `nbytes` may have.
  std::uint64_t segment_of(std::uint64_t nbytes) const {
    if (segment_bytes > 0) return segment_bytes;
    const auto n = static_cast<std::uint64_t>(queue_pairs);
    return std::max<std::uint64_t>((nbytes + n - 1) / n, 1);
  }
};

// Of one path: how its puts are spread, and those of an all_to_all. A path has queue pairs for the larger of the two.
struct PathSpread {
  Spread usual;
  Spread all_to_all;
};

// Round robin over those with room: a faster queue pair frees its room sooner, and so carries more.
class Turn {
 public:
  // room(i): whether queue pair i of n takes a segment. -1: none does.
  template <class Room>
  int next(int n, Room&& room) {
    for (int k = 0; k < n; ++k) {
      const int i = (at_ + k) % n;
      if (!room(i)) continue;
      at_ = (i + 1) % n;
      return i;
    }
    return -1;
  }

 private:
  int at_ = 0;
};

}  // namespace ccl_lab
