// When lanes of direct algorithms come to their sums, in nominal time: after the last put that comes to each, and its own last one.
//
// Is: of each lane the turn and the round of the last put that comes to it, and the turn of the last one that it puts. Is not: turns
// (pair_turns.hpp). Invariant: places of lanes of one rank compare as the batches of their sums (order.hpp), and are equal where those are one.
//
// In nominal time a put that has turn t leaves at tick t + 1: each turn before it one of its NICs has given away, by induction to a put that leaves
// at the end of that turn. Waits come in the order of rounds, each a batch after the one before, or at the tick of what it waits for; of puts
// that come to a lane, all over one NIC, no two leave at the same tick. So the sum comes as many batches after that tick as there are rounds from the
// last put on; where the lane's own puts have to leave before it, a batch later, or first in the tick when they have left.
//
// As many puts come to each lane of each node as leave it, which tells the last ones among those that are dealt as bits: they are counted so, too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ccl_lab::sim {

// Counts in a row of bits: each of `nodes` is counted `times` times, 64 of them at once.
class Countdown {
 public:
  Countdown(std::size_t nodes, std::uint64_t times)
      : nodes_(nodes), digits_(static_cast<std::size_t>(std::bit_width(times))), digit_((nodes + 63) / 64 * digits_) {
    const std::uint64_t first = (std::uint64_t{1} << digits_) - times;  // so that the last one carries over
    for (std::size_t i = 0; i < digit_.size(); ++i) digit_[i] = (first >> i % digits_ & 1) != 0 ? ~std::uint64_t{0} : 0;
  }

  // Counts those of the 64 nodes from `at` on, in a circle, that `bits` says; done(node): it was for the last time.
  void count(std::size_t at, std::uint64_t bits, const auto& done) {
    const std::size_t left = nodes_ - at;
    if (left < 64 && bits >> left != 0) {
      in_row(0, bits >> left, done);
      bits &= (std::uint64_t{1} << left) - 1;
    }
    in_row(at, bits, done);
  }

 private:
  void in_row(std::size_t at, std::uint64_t bits, const auto& done) {
    const std::size_t word = at / 64, by = at % 64;
    in_word(word, bits << by, done);
    if (by != 0 && bits >> (64 - by) != 0) in_word(word + 1, bits >> (64 - by), done);
  }

  void in_word(std::size_t word, std::uint64_t bits, const auto& done) {
    std::uint64_t *digit = digit_.data() + word * digits_, *const end = digit + digits_;
    for (; digit != end && bits != 0; ++digit) {
      const std::uint64_t carry = *digit & bits;
      *digit ^= bits;
      bits = carry;
    }
    for (; bits != 0; bits &= bits - 1) done(64 * word + static_cast<std::size_t>(std::countr_zero(bits)));
  }

  std::size_t nodes_, digits_;
  std::vector<std::uint64_t> digit_;  // [words][digits], the lowest first
};

class PairLasts {
 public:
  PairLasts(std::size_t nodes, std::size_t units, std::size_t lanes, std::size_t group)
      : ranks_(static_cast<std::int64_t>(nodes * group)), units_(units), came_(lanes * units, 0), gone_(lanes * units, 0) {}

  // The puts of lanes are counted from here on: `times` of each in each node.
  void count_puts(std::uint64_t times) {
    const Countdown each(units_, times);
    coming_.assign(came_.size() / units_, each);
    going_.assign(came_.size() / units_, each);
  }

  // A put of lane `from` to lane `to` has this turn, in this round; in all nodes.
  void put(std::int64_t turn, std::size_t round, std::size_t from, std::size_t to) {
    came(turn, round, to * units_, units_);
    gone(turn, from * units_, units_);
  }

  // The same, of those of the 64 nodes from u on that `bits` says, to those from v on; turns never fall.
  void put(std::int64_t turn, std::size_t round, std::size_t from, std::size_t to, std::size_t u, std::size_t v, std::uint64_t bits) {
    coming_[to].count(v, bits, [&](std::size_t node) { came(turn, round, to * units_ + node, 1); });
    going_[from].count(u, bits, [&](std::size_t node) { gone(turn, from * units_ + node, 1); });
  }

  // flushes: sums wait for the lane's own puts.
  void places(bool flushes, std::span<std::int64_t> into) const {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = flushes ? std::max(came_[i] + 1, gone_[i]) : came_[i];
  }

 private:
  static constexpr int kBatches = 32;  // bits for batches of a tick

  void came(std::int64_t turn, std::size_t round, std::size_t first, std::size_t n) {
    const std::int64_t place = (turn + 1) * (std::int64_t{1} << kBatches) + ranks_ - 1 - static_cast<std::int64_t>(round);
    for (std::size_t i = first; i < first + n; ++i) came_[i] = std::max(came_[i], place);
  }

  void gone(std::int64_t turn, std::size_t first, std::size_t n) {
    for (std::size_t i = first; i < first + n; ++i) gone_[i] = (turn + 1) * (std::int64_t{1} << kBatches);
  }

  std::int64_t ranks_;
  std::size_t units_;
  std::vector<std::int64_t> came_, gone_;  // [lanes][units]
  std::vector<Countdown> coming_, going_;  // by lane
};

}  // namespace ccl_lab::sim
