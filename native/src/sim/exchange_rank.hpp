// What evaluations of exchanges (exchanges.hpp) know of a rank and of a link, and the arithmetic of one op.
//
// Is: what one op does to its rank and to the links of its path. Is not: which op comes next, nor where ranks are kept. Invariant: equal ranks on
// equal links that do the same are equal after it, whoever they are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exact.hpp"
#include "exchanges.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {

struct alignas(32) ExchangeLink {
  std::int64_t free_ps = 0, free_tick = 0, batch = -1;
  std::uint64_t turns = 0;  // of `batch` that are given away, a bit each

  bool operator==(const ExchangeLink&) const = default;
};

// What a rank raised and its partner has not come to yet.
struct alignas(32) Raised {
  std::int64_t seen_ps = 0, tick = 0, batch = 0, row = -1;

  bool operator==(const Raised&) const = default;
};

inline constexpr std::size_t kRaised = 4;  // that a rank may be ahead of its partners

struct ExchangeRank {
  std::int64_t clock_ps = 0, batch = -1, left_ps = 0, left_tick = 0, memory_free_ps = 0;
  std::int32_t at = 0;       // its next row; where it waits, that of the wait
  std::int32_t row = 0;      // whether its last op was a put or a signal
  std::int32_t flushes = 0;  // whether it waits until its puts are served
  std::int32_t puts = 0;     // that are not served yet
  std::int32_t ways = 0;     // what it has for good, by number
  Raised raised[kRaised];
};

enum class Went : std::uint8_t { on, put, signal, flushes };

// The next op of a rank, other than a wait; work_ps: how long work takes.
inline Went go_past(ExchangeRank& me, Step step, std::int64_t work_ps) {
  if (step == Step::put || step == Step::signal) {
    me.batch += !me.row;
    me.row = 1;
    me.puts += step == Step::put;
    return step == Step::put ? Went::put : Went::signal;
  }
  if (step == Step::flush) {
    me.flushes = me.puts > 0;
    if (me.flushes) return Went::flushes;
    me.clock_ps = std::max(me.clock_ps, me.left_ps);
    me.batch = std::max(me.batch + 1, (me.left_tick << kPlaceBits) - 1);
  } else {
    ++me.batch;
    me.clock_ps = me.memory_free_ps = std::max(me.clock_ps, me.memory_free_ps) + work_ps;
  }
  me.row = 0;
  return Went::on;
}

// After a wait for what was raised.
inline void take_raised(ExchangeRank& me, const Raised& raised, std::int64_t latency_ps) {
  const std::int64_t tick = std::max(std::max<std::int64_t>(me.batch, 0) >> kPlaceBits, raised.tick);
  me.batch = std::max(tick << kPlaceBits, std::max(me.batch, raised.batch) + 1);
  me.clock_ps = std::max(me.clock_ps, raised.seen_ps + latency_ps);
  me.row = 0;
}

// Whether a rank that went past an op is still where numbers fit.
inline bool fits(const ExchangeRank& me, Step step) {
  return me.clock_ps <= kLatest && (step == Step::flush || (me.batch & (kPlaces - 1)) <= kPlaces - 8);
}

// The turn of a put of batch `number` on its two links, which is given away; -1 where they served later batches already, or have no turn left.
inline int next_turn(ExchangeLink& a, ExchangeLink& b, std::int64_t number) {
  for (ExchangeLink* link : {&a, &b}) {
    if (link->batch > number) return -1;
    if (link->batch < number) *link = {link->free_ps, link->free_tick, number, 0};
  }
  const int turn = std::countr_one(a.turns | b.turns);
  if (turn > 63) return -1;
  a.turns |= std::uint64_t{1} << turn;
  b.turns |= std::uint64_t{1} << turn;
  return turn;
}

// What a put takes: each link in picoseconds, and both in nominal time (0 inside nodes).
struct PutTimes {
  std::int64_t out_ps = 0, into_ps = 0, ticks = 0;
  bool near = false;
};

// A put of `me` in its turn, not before `from_ps`: what it raises.
inline Raised serve_put(ExchangeRank& me, ExchangeLink& out, ExchangeLink& into, std::int64_t from_ps, const PutTimes& takes, std::int64_t number,
                        std::int64_t row) {
  const std::int64_t start = std::max({from_ps, out.free_ps, into.free_ps});
  out.free_ps = start + takes.out_ps;
  into.free_ps = start + takes.into_ps;
  const std::int64_t done = std::max(out.free_ps, into.free_ps);
  std::int64_t tick = number >> kPlaceBits;
  me.left_ps = std::max(me.left_ps, done);
  if (!takes.near) {
    tick = out.free_tick = into.free_tick = std::max({tick, out.free_tick, into.free_tick}) + takes.ticks;
    me.left_tick = std::max(me.left_tick, tick);
  }
  --me.puts;
  return {done, tick, number, row};
}

inline bool fits(const Raised& raised) { return raised.seen_ps <= kLatest && raised.tick <= kLastTick; }

// Where each row that raises something keeps it: round and round.
inline std::vector<std::int32_t> places_of(std::span<const std::uint8_t> steps) {
  std::vector<std::int32_t> places(steps.size());
  std::int32_t raises = 0;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (static_cast<Step>(steps[i]) == Step::put || static_cast<Step>(steps[i]) == Step::signal)
      places[i] = raises++ % static_cast<std::int32_t>(kRaised);
  return places;
}

}  // namespace ccl_lab::sim
