// What a unit does that never waits for a message, over all the places at which units like it may be (own_time.hpp).
//
// Is: states, when messages are needed and when they go, and how close each maximum was. Is not: a unit of the ring: it begins in no time that matters.
// Invariant: every round is the one that followed_units.hpp evaluates.
//
// A place is a round less `group` rounds for each unit before: the message that a unit sends on at a place comes to the next unit at the same place,
// and lengths of messages depend on the place alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "followed_units.hpp"

namespace ccl_lab::sim {

// Which lengths messages have, place by place.
class Lengths {
 public:
  void lay_out(const FollowedUnits& units);
  [[nodiscard]] const std::uint8_t* at(std::int64_t place) const {
    const std::int64_t wrapped = place % all_;
    return sizes_.data() + static_cast<std::size_t>(wrapped < 0 ? wrapped + all_ : wrapped) * chains_;
  }
  [[nodiscard]] std::int64_t all() const { return all_; }

 private:
  std::int64_t all_ = 1;
  std::size_t chains_ = 1;
  std::vector<std::uint8_t> sizes_;
};

// Rounds in which all stations do the same kind of work.
struct Work {
  std::int64_t begin, end;
  bool adds;
};

class Reference {
 public:
  // unit: one that it stands for. Units are at places from that of the last one at the begin of the work to that of the first one at its end.
  // asks: whether stations may wait for memories; if not it is to be seen whether they do.
  Reference(const FollowedUnits& units, const Lengths& lengths, std::size_t unit, const Work& work, std::int64_t stride, bool asks);

  // Places of its first round, and behind the last.
  [[nodiscard]] std::int64_t begin() const { return begin_; }
  [[nodiscard]] std::int64_t end() const { return end_; }
  // One number for each of `words`, at every `stride`-th place.
  [[nodiscard]] const std::int64_t* state(std::int64_t place) const {
    return states_.data() + static_cast<std::size_t>((place - begin_) / stride_) * words_.size();
  }
  // Words of a unit's state that it tells.
  [[nodiscard]] const std::vector<std::size_t>& words() const { return words_; }
  // By chain: until when a message is not waited for at a place, and when it comes to the next unit.
  [[nodiscard]] std::int64_t needed(std::int64_t place, std::size_t chain) const { return at(place) + needed_[row(place) + chain]; }
  [[nodiscard]] std::int64_t goes(std::int64_t place, std::size_t chain) const { return at(place) + goes_[row(place) + chain]; }
  // Whether the times of a place lie close enough together to be kept, and nobody waits for a memory that is not asked for.
  [[nodiscard]] bool fits() const { return fits_; }
  // Whether stations may wait for memories, or it is known that nobody does.
  [[nodiscard]] bool asks() const { return asks_; }

  [[nodiscard]] std::size_t bytes() const { return (states_.size() + at_.size() + (needed_.size() + goes_.size()) / 2) * sizeof(std::int64_t); }

  // Whether a maximum has one offset at all places, where those of its sides differ by so much.
  [[nodiscard]] bool keeps(std::size_t maximum, std::int64_t offset) const {
    const std::int64_t least = least_[maximum], most = most_[maximum];
    return offset == 0 || (least >= 0 && least + offset >= 0) || (most <= 0 && most + offset <= 0);
  }
  // Whether nobody waits for a memory that is not asked for, where its gap differs by so much.
  [[nodiscard]] bool keeps_memory(std::size_t station, std::int64_t offset) const { return most_memory_[station] + offset <= 0; }

 private:
  [[nodiscard]] std::size_t row(std::int64_t place) const { return static_cast<std::size_t>(place - begin_) * chains_; }
  [[nodiscard]] std::int64_t at(std::int64_t place) const { return at_[static_cast<std::size_t>(place - begin_)]; }
  void note(const std::int64_t* gaps, std::size_t count, const std::vector<std::int64_t>& memory_gaps);
  void keep(const std::vector<std::int64_t>& needed, const std::vector<std::int64_t>& goes, const std::uint8_t* size);

  std::size_t chains_;
  std::int64_t begin_, end_, stride_;
  std::vector<std::size_t> words_;
  bool asks_, fits_ = true;
  std::vector<std::int64_t> states_, at_;    // at_: a time of each place
  std::vector<std::int32_t> needed_, goes_;  // after that
  std::vector<std::int64_t> least_, most_, most_memory_;  // gap of each maximum
};

// How much later at most than it is needed a message comes, where sender and receiver follow references: by blocks of places, and in them by phases,
// every so many-th place.
class Lags {
 public:
  static constexpr std::int64_t kBlock = 256;

  Lags(const Reference& sends, const Reference& needs, std::size_t chains, std::int64_t phases);

  // Over the blocks of two places, and all between.
  [[nodiscard]] std::int64_t most(std::int64_t place, std::int64_t last, std::size_t chain) const;
  // Whether the lags of a place's block are below these, [phases][chains].
  [[nodiscard]] bool in_block(std::int64_t place, const std::vector<std::int64_t>& most) const;
  [[nodiscard]] std::size_t phase(std::int64_t place) const {
    const std::int64_t after = (place - begin_) % phases_;
    return static_cast<std::size_t>(after < 0 ? after + phases_ : after);
  }
  [[nodiscard]] std::int64_t block_end(std::int64_t place) const { return begin_ + static_cast<std::int64_t>(block(place) + 1) * kBlock; }

 private:
  [[nodiscard]] std::size_t block(std::int64_t place) const { return static_cast<std::size_t>((place - begin_) / kBlock); }

  std::size_t chains_;
  std::int64_t phases_, begin_;
  std::vector<std::int64_t> most_, by_phase_;
};

}  // namespace ccl_lab::sim
