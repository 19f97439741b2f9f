// The way of a message through units, one after the other: what is alike on it is jumped over (followed.hpp says why that is exact).
//
// Is: what it does in each unit, given what the one before it has left behind there. Is not: which messages there are. Invariant: the same as unit by unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "followed_units.hpp"
#include "trail.hpp"

namespace ccl_lab::sim {

class Way {
 public:
  Way(const FollowedUnits& units, RingsOutput& out) : units_(units), out_(out), n_(static_cast<std::int64_t>(units.units)) {}

  // Which units are alike. Before all else.
  void find_runs();
  // Units after which all repeats, 1 or 2; whether it does everywhere.
  [[nodiscard]] std::int64_t period() const { return period_; }
  [[nodiscard]] bool all_alike() const { return alike_; }
  // How many units from this one on are like those a period before them.
  [[nodiscard]] std::int64_t run(std::int64_t unit) const { return runs_[static_cast<std::size_t>(unit)]; }

  struct Part {
    std::int64_t unit, n, count;  // the first one, of which it is the n-th message, and how many there are
  };
  // came: when the message comes to the first unit, then to the one behind the last. reader: what the message before it left behind. state: room for that of
  // a unit. False where more than `most_rounds` are evaluated by then.
  bool go(const Part& part, const std::uint8_t* size, TrailReader& reader, std::int64_t* state, std::vector<std::int64_t>& came, Trail& out,
          std::int64_t most_rounds);

 private:
  using Column = std::vector<std::int64_t>;
  struct Seen {  // of the messages in as many units as a period has
    Column gaps, states, came;
    std::size_t noted = 0;
  };

  std::int64_t go_on(std::int64_t here, std::int64_t n, std::int64_t most, const std::uint8_t* size, TrailReader& reader, Column& came, Trail& out);

  const FollowedUnits& units_;
  RingsOutput& out_;
  const std::int64_t n_;
  std::int64_t period_ = 1;
  bool alike_ = false;
  Column runs_, steps_, change_, earlier_;
  Seen seen_[2];
};

}  // namespace ccl_lab::sim
