// In which order memories copy what direct algorithms put in place, in nominal time.
//
// Is: of each copy of a rank, how many copies its memory makes from that one on, and how many of these are longer. Is not: time. Invariant: the order is that of order.hpp, where
// turns are the same in all nodes (pairs.hpp), or a rank has one channel, whose copies come as they are written.
//
// In nominal time a lane waits for what comes to it, round by round, a put of turn t coming at tick t + 1. After each wait it flushes, which takes until
// all that it puts has left, and copies. Each of these is a batch, the next one or the first of the tick at which it goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace ccl_lab::sim {

// Turns: of what comes to a lane, round by round, and of the last that it puts; of one block, after which they repeat, or of all.
struct LaneTurns {
  std::vector<std::int64_t> coming;
  std::int64_t last = 0;
};

class PairCopies {
 public:
  struct Count {
    std::uint32_t all = 0, longer = 0;
  };

  PairCopies() = default;

  // longer: of each lane, whether its copies are. crossing: rounds between nodes, the first ones, if anything crosses. block: turns after
  // which they repeat.
  PairCopies(std::size_t rounds, std::size_t group, const std::vector<bool>& longer, std::size_t crossing, std::int64_t block,
             std::span<const LaneTurns> lanes)
      : rounds_(rounds), copies_(rounds * longer.size()) {
    for (std::size_t rank = 0; rank < group; ++rank) {
      std::vector<Walk> channels;
      Count left;
      for (std::size_t lane = rank; lane < longer.size(); lane += group) {
        channels.push_back({.lane = lane, .turns = lanes[lane], .block = block, .crossing = crossing});
        channels.back().go_on();
        left.all += static_cast<std::uint32_t>(rounds);
        left.longer += longer[lane] ? static_cast<std::uint32_t>(rounds) : 0;
      }
      for (std::size_t i = 0; i < rounds * channels.size(); ++i) {
        Walk& next = earliest(channels, rounds);
        copies_[next.lane * rounds + next.round] = left;
        --left.all;
        left.longer -= longer[next.lane];
        ++next.round;
        ++next.batch;
        next.go_on();
      }
    }
  }

  // From the copy of that round on.
  [[nodiscard]] Count of(std::size_t lane, std::size_t round) const { return copies_[lane * rounds_ + round]; }

 private:
  // A lane, before the copy of a round.
  struct Walk {
    std::size_t lane;
    const LaneTurns& turns;
    std::int64_t block;
    std::size_t crossing, round = 0;
    std::int64_t tick = 0, batch = 1;  // all puts are batch 0

    void go_on() {
      const std::size_t period = turns.coming.size();
      until(round < crossing ? static_cast<std::int64_t>(round / period) * block + turns.coming[round % period] + 1 : 0);  // the wait
      ++batch;
      ++batch;  // the flush
      until(crossing > 0 ? static_cast<std::int64_t>(crossing / period - 1) * block + turns.last + 1 : 0);
    }

    void until(std::int64_t then) {
      if (then <= tick) return;
      tick = then;
      batch = 0;
    }
  };

  // In a batch copies come as they are written, round by round.
  static Walk& earliest(std::vector<Walk>& channels, std::size_t rounds) {
    const auto place = [](const Walk& each) { return std::tuple(each.tick, each.batch, each.round); };
    Walk* found = nullptr;
    for (Walk& each : channels)
      if (each.round < rounds && (found == nullptr || place(each) < place(*found))) found = &each;
    return *found;
  }

  std::size_t rounds_ = 0;
  std::vector<Count> copies_;  // [lanes][rounds]
};

}  // namespace ccl_lab::sim
