// In which order memories copy what direct algorithms put in place, in nominal time.
//
// Is: of each copy of a rank, how many copies its memory makes from that one on. Is not: time. Invariant: the order is that of order.hpp, where
// turns repeat block by block (pairs.hpp), or a rank has one channel, whose copies come as they are written.
//
// In nominal time a lane waits for what comes to it, round by round, a put of turn t coming at tick t + 1. After each wait it flushes, which takes until
// all that it puts has left, and copies. Each of these is a batch, the next one or the first of the tick at which it goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

// Turns in a block: of what comes to a lane in round k, and of the last that it puts.
struct LaneTurns {
  std::vector<std::int64_t> coming;
  std::int64_t last = 0;
};

class PairCopies {
 public:
  PairCopies() = default;

  // amounts: of each lane, what one of its copies counts. crossing: rounds between nodes, the first ones, if anything crosses; those of one
  // block of `turns` turns after the other.
  PairCopies(std::size_t rounds, std::size_t group, std::span<const std::int64_t> amounts, std::size_t crossing, std::int64_t turns,
             std::span<const LaneTurns> lanes)
      : rounds_(rounds), copies_(rounds * amounts.size()) {
    for (std::size_t rank = 0; rank < group; ++rank) {
      std::vector<Walk> channels;
      std::int64_t left = 0;
      for (std::size_t lane = rank; lane < amounts.size(); lane += group) {
        channels.push_back({.lane = lane, .turns = lanes[lane], .block = turns, .group = group, .crossing = crossing});
        channels.back().go_on();
        left += static_cast<std::int64_t>(rounds) * amounts[lane];
      }
      for (std::size_t i = 0; i < rounds * channels.size(); ++i) {
        Walk& next = earliest(channels, rounds);
        copies_[next.lane * rounds + next.round] = left;
        left -= amounts[next.lane];
        ++next.round;
        ++next.batch;
        next.go_on();
      }
    }
  }

  // From the copy of that round on.
  [[nodiscard]] std::int64_t of(std::size_t lane, std::size_t round) const { return copies_[lane * rounds_ + round]; }

 private:
  // A lane, before the copy of a round.
  struct Walk {
    std::size_t lane;
    const LaneTurns& turns;
    std::int64_t block;
    std::size_t group, crossing, round = 0;
    std::int64_t tick = 0, batch = 1;  // all puts are batch 0

    void go_on() {
      until(round < crossing ? static_cast<std::int64_t>(round / group) * block + turns.coming[round % group] + 1 : 0);  // the wait
      ++batch;
      ++batch;  // the flush
      until(crossing > 0 ? static_cast<std::int64_t>(crossing / group - 1) * block + turns.last + 1 : 0);
    }

    void until(std::int64_t then) {
      if (then <= tick) return;
      tick = then;
      batch = 0;
    }
  };

  static Walk& earliest(std::vector<Walk>& channels, std::size_t rounds) {
    Walk* found = nullptr;
    for (Walk& each : channels)
      if (each.round < rounds && (found == nullptr || each.tick < found->tick || (each.tick == found->tick && each.batch < found->batch))) found = &each;
    return *found;
  }

  std::size_t rounds_ = 0;
  std::vector<std::int64_t> copies_;  // [lanes][rounds]
};

}  // namespace ccl_lab::sim
