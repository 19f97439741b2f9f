// In which order memories copy what direct algorithms put in place, where each rank of each node has an order of its own (pair_turns.hpp).
//
// Is: of each copy, how many its memory makes from that one on, and how many of these are longer; known once all turns were dealt. Is not: time.
// Invariant: as in pair_copies.hpp.
//
// After its first wait a lane flushes until all that it puts has left, and only what comes later than that, and later than all before it in the order
// of rounds, makes it wait again: a few puts of each lane. Between two of these its copies come in one *run*: in one tick, three batches apart.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pair_copies.hpp"
#include "pair_lasts.hpp"
#include "pair_turns.hpp"

namespace ccl_lab::sim {

class PairOrders {
 public:
  // between: rounds between nodes; rounds: all of them.
  PairOrders(std::size_t nodes, std::size_t group, std::size_t between, std::size_t rounds, std::vector<bool> longer)
      : nodes_(nodes), group_(group), rounds_(static_cast<std::int32_t>(rounds)), longer_(std::move(longer)),
        going_(longer_.size(), Countdown(nodes, between)), gone_(longer_.size(), Circle(nodes)), lanes_(longer_.size() * nodes) {}

  // In this turn, in this round, lane `from` of those of the 64 nodes from u on that `bits` says puts to lane `to` of those from v on.
  void put(std::int32_t turn, std::size_t round, std::size_t from, std::size_t to, std::size_t u, std::size_t v, std::uint64_t bits) {
    if (round == 0) each(v, bits, [&](std::size_t node) { lanes_[to * nodes_ + node].first = turn + 1; });
    each(v, bits & gone_[to].from(v), [&](std::size_t node) { late(lanes_[to * nodes_ + node], turn + 1, static_cast<std::int32_t>(round)); });
    going_[from].count(u, bits, [&](std::size_t node) {
      lanes_[from * nodes_ + node].left = turn + 1;
      last_.emplace_back(from, node);
    });
  }

  void end_turn() {
    for (const auto& [lane, node] : last_) gone_[lane].set(node);
    last_.clear();
  }

  // All turns were dealt.
  void find() {
    for (Lane& lane : lanes_) find_runs(lane);
    for (std::size_t at = 0; at < group_ * nodes_; ++at)
      for (std::size_t lane = at; lane < lanes_.size(); lane += group_ * nodes_) count_later(lanes_[lane], at);
  }

  // From the copy of that round on.
  [[nodiscard]] PairCopies::Count of(std::size_t lane, std::size_t node, std::size_t round) const {
    const auto i = static_cast<std::int32_t>(round);
    const Lane& own = lanes_[lane * nodes_ + node];
    std::size_t r = own.end_run;
    while (runs_[--r].begin > i) {}
    const Run& run = runs_[r];
    const std::int32_t batch = run.batch + 3 * (i - run.begin);
    PairCopies::Count found = run.later;
    for (std::size_t other = lane % group_; other < longer_.size(); other += group_)
      count(found, other, node, run.tick, [&](const Run& at) {
        const std::int32_t ahead = batch - at.batch, there = at.begin + ahead / 3;  // its round in the same batch, if any
        const bool before = ahead >= 0 && ahead % 3 == 0 && (there < i || (there == i && other < lane));
        return std::max(0, at.end - at.begin - std::max(0, (ahead + 2) / 3 + before));
      });
    return found;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Late {
    std::int32_t tick, round;
    std::uint32_t before;  // of the same lane, in an earlier tick and round
  };

  struct Run {
    std::int32_t tick, batch, begin, end;  // rounds
    PairCopies::Count later;               // of the same rank, in later ticks
  };

  // Of one node. first: the tick at which what comes in round 0 does; left: at which all has left.
  struct Lane {
    std::int32_t first = 0, left = 0;
    std::uint32_t late = kNone;
    std::uint32_t first_run = 0, end_run = 0;
  };

  void each(std::size_t at, std::uint64_t bits, const auto& what) const {
    for (; bits != 0; bits &= bits - 1) {
      const std::size_t node = at + static_cast<std::size_t>(std::countr_zero(bits));
      what(node < nodes_ ? node : node - nodes_);
    }
  }

  // What comes after all before it, but in an earlier round than some of it, makes those no matter.
  void late(Lane& lane, std::int32_t tick, std::int32_t round) {
    while (lane.late != kNone && late_[lane.late].round > round) lane.late = late_[lane.late].before;
    late_.push_back({tick, round, lane.late});
    lane.late = static_cast<std::uint32_t>(late_.size() - 1);
  }

  void find_runs(Lane& lane) {
    lane.first_run = static_cast<std::uint32_t>(runs_.size());
    const bool waits = lane.left <= lane.first;  // for what comes in round 0, then it flushes
    runs_.push_back({std::max(lane.left, lane.first), waits ? 2 : 0, 0, rounds_, {}});
    events_.clear();
    for (std::uint32_t i = lane.late; i != kNone; i = late_[i].before) events_.push_back(i);
    for (std::size_t k = events_.size(); k-- > 0;) {
      const Late& event = late_[events_[k]];
      if (event.round == 0 || event.tick <= runs_.back().tick) continue;
      runs_.back().end = event.round;
      runs_.push_back({event.tick, 2, event.round, rounds_, {}});
    }
    lane.end_run = static_cast<std::uint32_t>(runs_.size());
  }

  // at: rank of its node, and node.
  void count_later(const Lane& lane, std::size_t at) {
    for (std::size_t r = lane.first_run; r < lane.end_run; ++r)
      for (std::size_t other = at / nodes_; other < longer_.size(); other += group_) {
        const Lane& its = lanes_[other * nodes_ + at % nodes_];
        for (std::size_t k = its.first_run; k < its.end_run; ++k)
          if (runs_[k].tick > runs_[r].tick) add(runs_[r].later, other, runs_[k].end - runs_[k].begin);
      }
  }

  // Copies of another channel in the same tick.
  void count(PairCopies::Count& found, std::size_t other, std::size_t node, std::int32_t tick, const auto& of_run) const {
    const Lane& its = lanes_[other * nodes_ + node];
    for (std::size_t k = its.first_run; k < its.end_run; ++k)
      if (runs_[k].tick == tick) add(found, other, of_run(runs_[k]));
  }

  void add(PairCopies::Count& found, std::size_t lane, std::int32_t n) const {
    found.all += static_cast<std::uint32_t>(n);
    found.longer += longer_[lane] ? static_cast<std::uint32_t>(n) : 0;
  }

  std::size_t nodes_, group_;
  std::int32_t rounds_;
  std::vector<bool> longer_;
  std::vector<Countdown> going_;                           // by lane
  std::vector<Circle> gone_;                               // by lane: nodes where all has left before this turn
  std::vector<Lane> lanes_;                                // [lanes][nodes]
  std::vector<std::pair<std::size_t, std::size_t>> last_;  // lanes of nodes that put their last one in this turn
  std::vector<Late> late_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> events_;
};

}  // namespace ccl_lab::sim
