// Puts of one batch that come many times each, and the links on which they take turns.
//
// Is: when each of them has left, in picoseconds and in nominal time. Is not: which puts a batch has (swaps.cpp). Invariant: times are those of
// serving every put by itself, in the order (turn, op) of order.hpp; ops are told row by row, in each of them round by round, lane by lane.
//
// How. Where all puts of two links go over both, they take turns round by round: all rounds but the first one and the last one of a lane are a
// sum, as long as no rate changes. Where a link is met by several others each put gets its turn by itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "changes.hpp"

namespace ccl_lab::sim {

// A put of a lane, so many times; begin_ps: not before. end_ps, tick: when the last of them has left.
struct SwapPut {
  std::int32_t row = 0, lane = 0, a = 0, b = 0;
  std::int32_t next = -1;  // of those that go over the same two links
  std::int64_t times = 1, begin_ps = 0, nbytes = 0, ticks = 0;
  std::int64_t out_ps = 0, into_ps = 0;  // what one takes on each link, where rates do not change
  std::int64_t end_ps = 0, tick = 0;

  [[nodiscard]] std::int64_t each_ps() const { return out_ps > into_ps ? out_ps : into_ps; }
};

// Sums of a lane, each of which it puts before the next one: so many times as the put comes. clock_ps: when it came to the first one, then
// when the last one is done; ready_ps: when whom it puts to has entered.
struct SwapGive {
  SwapPut put;
  std::int64_t clock_ps = 0, work_ps = 0, ready_ps = 0;
  std::int64_t first_ps = 0, second_ps = 0;  // when the first sum is done, and the second
};

enum class SwapStatus : std::uint8_t { ok = 0, overflow = 2, bad_input = 3, unsupported = 5, out_of_memory = 6, deadlock = 7 };

class SwapLinks {
 public:
  SwapLinks(std::span<const std::int64_t> bytes_per_s, std::int64_t alpha_ps, const ChangeColumns& changes);

  // All puts of a batch.
  SwapStatus serve(std::int64_t batch, std::span<SwapPut> puts);
  // What channels of a rank sum and put in the same batches, the first of them that one: a sum in one, its put in the next.
  SwapStatus give(std::int64_t batch, std::int64_t& memory_free_ps, std::span<SwapGive> gives);
  [[nodiscard]] std::int64_t busy_ps(std::int64_t nbytes, std::int32_t link);

 private:
  struct alignas(32) Link {
    std::int64_t free_ps = 0, free_tick = 0;
    std::int32_t batch = -1;  // which one it met last, as they are served
    std::int32_t other = -1;  // where puts of this batch go on, or come from
    std::int32_t first = -1;  // of these puts, where the link sends; of a link that several others meet: its number among those
    std::int32_t last = -1;
  };
  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };

  [[nodiscard]] Link& link(std::int32_t id) { return links_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::int64_t held_ps(const SwapPut& put) const { return put.nbytes > 0 ? alpha_ps_ : 0; }
  [[nodiscard]] std::int64_t through_ps(const SwapPut& put, std::int32_t link, std::int64_t takes_ps, std::int64_t start_ps) const;
  [[nodiscard]] std::int64_t kept(const SwapPut& put) const {
    return kept_.empty() ? -1 : std::max(kept_[static_cast<std::size_t>(put.a)], kept_[static_cast<std::size_t>(put.b)]);
  }
  [[nodiscard]] bool changes(const SwapPut& put) const { return changes_.on(put.a) || changes_.on(put.b); }
  void meet(std::int32_t id, std::int32_t other, std::int32_t put, std::span<SwapPut> puts);
  void one(SwapPut& put);
  SwapStatus prepare(SwapPut& put);
  SwapStatus give_along(std::span<SwapGive> gives, std::int64_t times, std::int64_t sum_ps);
  [[nodiscard]] std::int64_t free_after(std::span<const SwapGive> gives, std::int64_t rounds, std::int64_t sum_ps) const;
  SwapStatus line(std::int32_t first, std::span<SwapPut> puts);
  SwapStatus rounds(std::span<const std::int32_t> line, std::span<SwapPut> puts);
  SwapStatus more(std::span<const std::int32_t> line, std::span<SwapPut> puts, std::int64_t count);
  [[nodiscard]] std::int64_t alike(std::int64_t count, std::span<SwapPut> puts, std::int64_t& sum_ps) const;
  SwapStatus in_turns(std::span<SwapPut> puts);
  SwapStatus in_turns(std::span<const std::int32_t> those, std::span<SwapPut> puts);
  std::size_t joined(std::int32_t local);
  [[nodiscard]] static SwapStatus fits(const SwapPut& put);

  std::span<const std::int64_t> bytes_per_s_;
  std::int64_t alpha_ps_, tick_ = 0;
  std::int32_t batch_ = -1;  // batches with puts, as they are served
  Changes changes_;
  std::vector<Link> links_;
  std::vector<std::int64_t> kept_;  // by link: up to that batch for those who give; empty where nobody does
  std::vector<Known> known_;
  std::vector<std::int32_t> line_, active_, odd_;
  std::vector<std::size_t> joins_;           // by local number of a link: the one that stands for it
  std::vector<std::uint64_t> turns_;         // turn, then number of the put among those that are told
  std::vector<std::int32_t> told_;
};

}  // namespace ccl_lab::sim
