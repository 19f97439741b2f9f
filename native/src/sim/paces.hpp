// Rings of different shares in one unit: how many messages of each make a round.
//
// Is: rounds of nominal time. Is not: the serving of links. A message takes its NIC as many ticks as it has bytes, so where no two rings share
// one, message k of a ring comes to a unit at tick (k + 1) * bytes: a ring of half the share brings two in the time in which others bring one.
// A round is the least time in which all bring whole numbers of them, a *phase* of it what comes in at one tick. Invariant: if rings do not
// come at these ticks (they share NICs) a link is not served in its order, and rings.hpp notices.
//
// The first messages of all stations are under way at once, as many of each ring, which do for more rounds of a heavy ring than of a light
// one: a unit keeps those of heavy rings that it received and has not come to. So many rounds later it has as many kept again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace ccl_lab::sim {

struct Pace {
  std::int64_t messages = 1;  // in a round
  std::int64_t kept = 0;      // between rounds
};

struct Coming {
  std::int64_t chain, message;  // the n-th of its round
};

struct Paces {
  std::vector<Pace> of;                      // by chain
  std::vector<std::vector<Coming>> phases;   // of a round; what comes at one tick in the order of ops: by its number on its ring
  std::vector<std::int64_t> different;       // a chain of each pace
  std::int64_t least = 1;                    // messages in a round, of any chain
  std::int64_t first_rounds;                 // for which the first messages do: so many rounds a unit is behind the one before

  // under_way: messages of each ring that a unit sends before it receives. All of one pace where `fit` is false.
  Paces(std::span<const std::int64_t> nominal_bytes, std::int64_t under_way) : of(nominal_bytes.size()), first_rounds(under_way) {
    if (!even(nominal_bytes) && fit(nominal_bytes, under_way)) {
      const std::int64_t ticks = round_ticks(nominal_bytes);
      std::int64_t most = 1;
      for (std::size_t c = 0; c < of.size(); ++c) most = std::max(most, of[c].messages = ticks / nominal_bytes[c]);
      first_rounds = under_way / most;
      for (Pace& each : of) each.kept = under_way - first_rounds * each.messages;
    }
    std::vector<std::tuple<std::int64_t, std::int64_t, Coming>> all;  // tick, and what it is ordered by there: the heaviest come first
    for (std::size_t c = 0; c < of.size(); ++c) {
      least = c == 0 ? of[c].messages : std::min(least, of[c].messages);
      const auto as = [&](std::int64_t other) { return of[static_cast<std::size_t>(other)].messages == of[c].messages; };
      if (std::ranges::none_of(different, as)) different.push_back(static_cast<std::int64_t>(c));
      for (std::int64_t m = 0; m < of[c].messages; ++m) all.push_back({(m + 1) * nominal_bytes[c], -nominal_bytes[c], {static_cast<std::int64_t>(c), m}});
    }
    std::ranges::stable_sort(all, {}, [](const auto& each) { return std::pair(std::get<0>(each), std::get<1>(each)); });
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == 0 || std::get<0>(all[i]) != std::get<0>(all[i - 1])) phases.emplace_back();
      phases.back().push_back(std::get<2>(all[i]));
    }
  }

  [[nodiscard]] static bool even(std::span<const std::int64_t> nominal_bytes) {
    return std::ranges::all_of(nominal_bytes, [&](std::int64_t each) { return each == nominal_bytes[0]; });
  }

  // Whether what is under way at first does for a round.
  [[nodiscard]] static bool fit(std::span<const std::int64_t> nominal_bytes, std::int64_t under_way) {
    const auto [least, most] = std::ranges::minmax(nominal_bytes);
    return least == most || (least > 0 && most <= least * under_way && round_ticks(nominal_bytes) / least <= under_way);
  }

 private:
  static std::int64_t round_ticks(std::span<const std::int64_t> nominal_bytes) {
    const std::int64_t most = std::int64_t{1} << 40;  // far more than any that fits
    return std::accumulate(nominal_bytes.begin(), nominal_bytes.end(), std::int64_t{1}, [&](std::int64_t a, std::int64_t b) {
      return a > most || b > most ? most + 1 : std::lcm(a, b);
    });
  }
};

}  // namespace ccl_lab::sim
