// Segments of the puts between two NICs, in posting order, though several connections carry them.
//
// Is: the number of the next segment that is missing, and which later ones have landed, each with what it says (its Mark:
//     the signal it carries, say). That fires when the segment and every one before it have landed; nobody skips forward.
// Is not: aware of bytes: a segment is reported here after its payload has been written. Not aware of other pairs of NICs:
//     signals that took those are ordered by SignalOrder.
//
//   landed(n): n == next ─► fire, next++, then what has landed of next, next + 1, ... ; n after next ─► kept
//
// Invariants
//  - Numbers count modulo 2^32. A segment kMostAhead or more after the next one is early: its connection is not read until
//    the others have caught up, so what is kept here is bounded and the sender feels it as a full socket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace ccl_lab {

enum class SegmentPlace : std::uint8_t { wanted, early, seen };

template <class Mark>
class InOrder {
 public:
  static constexpr std::uint32_t kMostAhead = 4096;  // a power of two: positions are masked
  using Place = SegmentPlace;

  explicit InOrder(std::uint32_t first = 0) : next_(first) {}

  std::uint32_t next() const { return next_; }

  // Judges a number before the payload is written.
  Place place(std::uint32_t number) const {
    const std::uint32_t ahead = number - next_;
    if (static_cast<std::int32_t>(ahead) < 0) return Place::seen;
    if (ahead >= kMostAhead) return Place::early;
    return !kept_.empty() && kept_[number & (kMostAhead - 1)].landed ? Place::seen : Place::wanted;
  }

  // Calls fire(mark) for each segment that now is next in order, until one returns an error.
  template <class Fire>
  Status landed(std::uint32_t number, Mark mark, Fire&& fire) {
    if (number == next_ && n_kept_ == 0) {
      ++next_;
      return fire(mark);
    }
    if (place(number) != Place::wanted)
      return Status(Code::link_down, "bad frame: segment " + std::to_string(number) + " came twice, expected " +
                                         std::to_string(next_));
    if (number != next_) {
      if (kept_.empty()) kept_.resize(kMostAhead);
      kept_[number & (kMostAhead - 1)] = {true, mark};
      ++n_kept_;
      return {};
    }
    for (;;) {
      ++next_;
      if (Status status = fire(mark); !status.ok()) return status;
      if (n_kept_ == 0) return {};
      Kept& following = kept_[next_ & (kMostAhead - 1)];
      if (!following.landed) return {};
      following.landed = false;
      --n_kept_;
      mark = following.mark;
    }
  }

  std::size_t n_kept() const { return n_kept_; }

 private:
  struct Kept {
    bool landed = false;
    Mark mark;
  };

  std::uint32_t next_;
  std::vector<Kept> kept_;  // ring by number; made when the first segment overtakes
  std::size_t n_kept_ = 0;
};

// Where a segment says no more than a signal and its number.
struct SignalMark {
  std::int32_t signal = -1;
  std::uint32_t sequence = 0;
};

class SegmentOrder : public InOrder<SignalMark> {
 public:
  using InOrder::InOrder;

  // Calls fire(signal, sequence), as above.
  template <class Fire>
  Status landed(std::uint32_t number, std::int32_t signal, std::uint32_t sequence, Fire&& fire) {
    return InOrder::landed(number, {signal, sequence}, [&](const SignalMark& mark) { return fire(mark.signal, mark.sequence); });
  }
};

}  // namespace ccl_lab
