// Units in a row that wait for messages on and on, since one before them is slower than they are: messages are followed through them (own_time.hpp).
//
// Is: those units from a place on, which is the same in all of them. Is not: a choice of which units these are. Invariant: what they send, and what is left
// in them, is as message by message.
//
// Where a unit waits for each message nothing is left of the one before, and as long as no message catches up with another one each takes as long through each unit
// as through the one before it. So it is jumped over units here (followed_way.hpp), where else units jump over messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "followed_way.hpp"
#include "own_time_reference.hpp"
#include "own_time_sent.hpp"
#include "trail.hpp"

namespace ccl_lab::sim {

class Band {
 public:
  Band(const FollowedUnits& units, const Lengths& lengths, RingsOutput& out);

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  // The place of the message that comes next.
  [[nodiscard]] std::int64_t place() const { return place_; }

  // One unit, to which messages come from `source`; shift: as of its reader (SentReader). again: it was in a band before, which was taken apart.
  void begin(std::int64_t unit, std::int64_t place, const std::int64_t* state, Sent&& source, std::int64_t shift, bool again);
  // The next unit, at the same place.
  void push(const std::int64_t* state);

  // The next message through all of them, and on into `out`. The last message of a slice goes no further than the last unit, which leaves the band then: its
  // state before that message, and when it comes, are in `state()` and `came()`. False where too much is evaluated, more than `most_rounds` in all.
  enum class Done : std::uint8_t { went_on, ended, stayed, too_much };  // stayed: nobody sends it on, and no slice ends
  Done follow(Sent& out, std::int64_t most_rounds);
  [[nodiscard]] const std::vector<std::int64_t>& state() const { return state_; }
  [[nodiscard]] const std::vector<std::int64_t>& came() const { return came_; }

  // Whether units may not have to wait for messages any more: these have taken about as long to follow as unit by unit, of late, or so long in all that
  // it does not cost much to see.
  [[nodiscard]] bool in_vain() const { return in_vain_; }
  [[nodiscard]] bool is_worth_a_look() const;
  // States of all units, one after the other; the band is empty then.
  std::vector<std::int64_t> take_apart(Sent& source);

 private:
  const FollowedUnits& units_;
  const Lengths& lengths_;
  RingsOutput& out_;
  Way way_;
  std::int64_t first_ = 0, size_ = 0, place_ = 0, shift_ = 0;
  Sent source_;
  SentReader reader_;
  Trail left_, next_;
  std::vector<std::int64_t> state_, came_;
  bool in_vain_ = false;
  std::int64_t followed_ = 0, rounds_ = 0, all_rounds_ = 0;  // messages since the last look, and rounds that they took; rounds since it began
  std::int64_t long_ = 0;  // rounds for each unit after which a look is worth it
};

}  // namespace ccl_lab::sim
