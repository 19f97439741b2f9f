// Units of rings in both directions side by side, and what a visit does to them (both_ways_swept.hpp).
//
// Is: the maxima and sums of unit.hpp for times alone, for some units in one loop, or for one of them. Is not: which messages come in, nor the order
// in which a unit serves its chains. Invariant: a lane ends as if it were alone. Times are whole numbers below 2^52, which a double holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "changes.hpp"

namespace ccl_lab::sim {

inline constexpr std::size_t kAbreast = 16, kMostChains = 64;

// A number of each of them.
struct alignas(64) Abreast {
  std::array<double, kAbreast> lane;
};

// Where a chain's station finds its numbers among those of its unit; and its chain. Stations follow in the order in which they are served.
struct Places {
  std::uint32_t clock, left, memory, a, b, chain, row;
};

// How long a station adds, and a message keeps its links, how much longer a longer one; and its latency.
struct Plain {
  double add = 0, a = 0, add_more = 0, a_more = 0, latency = 0;
};

// The same of units abreast, for both links. plain: of all of them it is as of most stations.
struct Fixed {
  bool plain;
  Abreast add, a, b, add_more, a_more, b_more, latency;
};

// Where rates of a unit's links change: its links in the order of its rows, and what they begin with.
struct Changing {
  const Changes* changes;
  const std::int32_t *a, *b;
  const std::int64_t *a_bytes_per_s, *b_bytes_per_s;
  std::int64_t bytes, more_bytes, alpha_ps;

  [[nodiscard]] double through(std::int32_t link, double start, double takes_ps, bool longer, std::int64_t bytes_per_s) const {
    if (!changes->on(link)) return start + takes_ps;
    const std::int64_t size = bytes + (longer ? more_bytes : 0), from = static_cast<std::int64_t>(start) + (size > 0 ? alpha_ps : 0);
    return static_cast<double>(changes->through_ps(link, from, size, bytes_per_s));
  }
};

// A visit, the same for all units: `count` rounds from `first` on, and below which message a station adds, sends, and works at all.
struct Rounds {
  std::int64_t first, count, adding, sending, all, depth;
  std::size_t stations, chains;
};

// Of units abreast, or of one lane of theirs: numbers, row after row, and by chain the messages of the neighbour, and their own, one row a round,
// `apart` numbers apart; longer: by chain and round, which messages are longer ones.
struct UnitsAbreast {
  double* state;
  const Places* places;
  const Fixed* fixed;
  const double* const* came;
  double* const* goes;
  const std::uint8_t* const* longer;
  std::size_t apart;
  const Plain* plain;
  std::size_t lane = 0;  // of `fixed`: which one it is, where it is one
  const Changing* changing = nullptr;
};

// What a station and its links were doing, and what its messages take; one number a unit each. message: that comes, and that goes on.
// add, a_ps: of a plain station, longer messages and others.
struct Passing {
  double *clock, *left, *memory, *a, *b, *message;
  const double *longer, *add, *a_ps;
  const Plain* plain;
  const Fixed* fixed;
  std::size_t lane;
};

[[gnu::always_inline]] inline double later_of(double a, double b) { return a > b ? a : b; }

// A message of kLanes units comes to a station and goes on. Numbers of a unit lie in other places than those of any other one. When messages have
// left is told by one unit alone.
template <std::size_t kLanes, bool kAdds, bool kSends, bool kLonger, bool kPlain>
[[gnu::always_inline]] inline void pass(const Passing& at) {
  const auto row = [&](const Abreast& of) { return of.lane.data() + at.lane; };
  const Fixed& fixed = *at.fixed;
  double *clock = at.clock, *left = at.left, *memory = at.memory, *a = at.a, *b = at.b, *message = at.message;
  const double *longer = at.longer, *latency = row(fixed.latency), latency_ps = at.plain->latency;
  const double *add = kPlain ? at.add : row(fixed.add), *a_ps = kPlain ? at.a_ps : row(fixed.a), *b_ps = row(fixed.b);
  const double *add_more = row(fixed.add_more), *a_more = row(fixed.a_more), *b_more = row(fixed.b_more);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t j = 0; j < kLanes; ++j) {
    const auto takes = [&](const double* ps, const double* more) { return kLonger && !kPlain ? ps[j] + longer[j] * more[j] : ps[j]; };
    double now = later_of(clock[j], message[j]);
    if constexpr (kAdds) {
      now = later_of(now, memory[j]) + takes(add, add_more);
      memory[j] = now;
    }
    clock[j] = now;
    if constexpr (kSends) {
      const double start = later_of(now, later_of(a[j], b[j]));
      double gone = start + takes(a_ps, a_more), on_b = gone;
      a[j] = gone;
      if constexpr (!kPlain) on_b = start + takes(b_ps, b_more), gone = later_of(gone, on_b);
      b[j] = on_b;
      if constexpr (kLanes == 1) left[j] = gone;
      message[j] = gone + (kPlain ? latency_ps : latency[j]);
    }
  }
}

template <std::size_t kLanes, bool kLonger, bool kPlain>
[[gnu::always_inline]] inline void pass(const Passing& at, bool adds, bool sends) {
  if (sends) {
    adds ? pass<kLanes, true, true, kLonger, kPlain>(at) : pass<kLanes, false, true, kLonger, kPlain>(at);
  } else {
    adds ? pass<kLanes, true, false, kLonger, kPlain>(at) : pass<kLanes, false, false, kLonger, kPlain>(at);
  }
}

// The same for one unit whose links change.
[[gnu::always_inline]] inline void pass_changing(const Passing& at, const Changing& links, std::size_t row, bool adds, bool sends) {
  pass<1, true, false>(at, adds, false);
  if (!sends) return;
  const bool longer = *at.longer > 0;
  const double start = later_of(*at.clock, later_of(*at.a, *at.b));
  const auto takes = [&](const Abreast& each, const Abreast& more) { return each.lane[at.lane] + *at.longer * more.lane[at.lane]; };
  const double a = links.through(links.a[row], start, takes(at.fixed->a, at.fixed->a_more), longer, links.a_bytes_per_s[row]);
  const double b = links.through(links.b[row], start, takes(at.fixed->b, at.fixed->b_more), longer, links.b_bytes_per_s[row]);
  *at.a = a;
  *at.b = b;
  *at.left = later_of(a, b);
  *at.message = *at.left + at.fixed->latency.lane[at.lane];
}

// kLonger: some messages are. kChanging: rates change (of one lane).
template <std::size_t kLanes, bool kLonger, bool kChanging>
[[gnu::always_inline]] inline void visit(const Rounds& at, const UnitsAbreast& of) {
  // Of a chain in a row: what lies a multiple of 4 KiB apart is taken for the same by a processor that looks for what it has just stored.
  struct Chain {
    Abreast carried, longer, add, a_ps;
  };
  std::array<Chain, kMostChains> chain;
  for (std::int64_t k = 0; k < at.count; ++k) {
    const std::size_t round = static_cast<std::size_t>(k) * of.apart;
    for (std::size_t c = 0; c < at.chains; ++c) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) chain[c].carried.lane[lane] = of.came[c][round + lane];
      if constexpr (kLonger) {
        const std::uint8_t* const from = of.longer[c * static_cast<std::size_t>(at.count) + static_cast<std::size_t>(k)];
        for (std::size_t lane = 0; lane < kLanes; ++lane) chain[c].longer.lane[lane] = from[lane];
        for (std::size_t lane = 0; lane < kLanes; ++lane) chain[c].add.lane[lane] = of.plain->add + chain[c].longer.lane[lane] * of.plain->add_more;
        for (std::size_t lane = 0; lane < kLanes; ++lane) chain[c].a_ps.lane[lane] = of.plain->a + chain[c].longer.lane[lane] * of.plain->a_more;
      } else {
        chain[c].add.lane.fill(of.plain->add);
        chain[c].a_ps.lane.fill(of.plain->a);
      }
    }
    const Places* place = of.places;
    const Fixed* fixed = of.fixed;
    for (std::size_t i = 0; i < at.stations; ++i) {
      const std::int64_t message = at.first + k + static_cast<std::int64_t>(i) * at.depth;
      if (i > 0 && message >= at.all) break;
      const bool adds = message < at.adding, sends = message < at.sending, leaves = sends && i + 1 == at.stations;
      for (const Places* const end = place + at.chains; place < end; ++place, ++fixed) {
        const Passing passing{of.state + place->clock, of.state + place->left, of.state + place->memory, of.state + place->a, of.state + place->b,
                              chain[place->chain].carried.lane.data(), chain[place->chain].longer.lane.data(), chain[place->chain].add.lane.data(),
                              chain[place->chain].a_ps.lane.data(), of.plain, fixed, of.lane};
        if constexpr (kChanging) {
          pass_changing(passing, *of.changing, place->row, adds, sends);
        } else if (kLanes > 1 && fixed->plain) {
          pass<kLanes, kLonger, true>(passing, adds, sends);
        } else {
          pass<kLanes, kLonger, false>(passing, adds, sends);
        }
        if (leaves)
          for (std::size_t lane = 0; lane < kLanes; ++lane) of.goes[place->chain][round + lane] = passing.message[lane];
      }
    }
  }
}

}  // namespace ccl_lab::sim
