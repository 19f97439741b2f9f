// Units in a row that do the same: two of them are visited, the rest follows.
//
// Is: what rings.hpp calls a visit, of as many units at a time as go on in one way. Is not: an approximation. Invariant: states, messages and
// results are those of visiting every unit.
//
// How. A visit takes the state of a unit and the messages that come in, and gives the state after it and the messages that go out. All of
// these are numbers, and while every decision falls in the same way, what comes out are sums of what goes in (path.hpp). Take units with the
// same links whose states form an arithmetic progression. If the messages from unit to unit went on by the same progression twice, and the
// last two visits took the same path, then so does the next one, whose numbers are the next ones of every progression: up to the unit where a
// state is no member of it, or where a number that decided something would reach 0, which is known in advance.
// Where only every other unit has the same links (a flat ring passes through odd nodes the other way round), the same holds of pairs: each
// of the last two visits is compared with the one two units before it, and `stride_` is 2. Where a unit has several stations, or messages
// under way, its loops have a period; a unit further on the wave is a whole number of periods later, or nothing follows.
// A visit of many rounds that decide is not compared: its path would take more memory and time than the visits that it might spare.
// A wave that a slow link sends round the ring moves on by a message a unit, so most of a ring of equal nodes is a few such runs.
#pragma once

#include <cstdint>
#include <vector>

#include "path.hpp"
#include "rings.hpp"
#include "stream.hpp"
#include "unit.hpp"

namespace ccl_lab::sim {

class Runs {
 public:
  Runs(const RingsInput& in, RingsOutput& out, Unit& unit);

  // Visits `unit`, and those behind it that follow. `unit` becomes the last of them, and `sent` what that one sends.
  RingsStatus visit(std::int64_t& unit, const std::vector<Stream>& received, std::vector<Stream>& sent);
  // The unit before this one that has the same links, and so sends the same before it receives; -1: none.
  [[nodiscard]] std::int64_t as_before(std::int64_t unit) const {
    return unit >= stride_ && last_alike_[static_cast<std::size_t>(unit - stride_)] >= unit ? unit - stride_ : -1;
  }

 private:
  struct Visit {
    std::int64_t unit = -1, round = 0;
    std::vector<std::int64_t> state;       // before it, as `round`
    std::vector<Stream> received;
    std::vector<std::size_t> ended;
    Path path;
  };

  void find_alike(std::int64_t stride);
  [[nodiscard]] bool alike(std::int64_t unit, std::int64_t stride) const;
  [[nodiscard]] bool worth_noting(std::int64_t unit);
  // Those of the last two strides.
  [[nodiscard]] Visit& noted(std::int64_t unit) { return visits_[static_cast<std::size_t>(unit % (2 * stride_))]; }
  [[nodiscard]] std::int64_t followers(std::int64_t unit, const std::vector<Stream>& sent);
  [[nodiscard]] std::int64_t followers_like(std::int64_t unit);
  [[nodiscard]] std::int64_t streams_go_on(std::int64_t unit, const std::vector<Stream>& sent);
  [[nodiscard]] std::int64_t in_progression(std::int64_t unit, std::int64_t most);
  [[nodiscard]] bool fits(std::int64_t unit, std::int64_t followers);
  void follow(std::int64_t unit, std::int64_t followers);

  const RingsInput& in_;
  RingsOutput& out_;
  Unit& unit_;
  std::int64_t stride_ = 1;
  std::vector<std::int64_t> last_alike_;  // per unit: the last one behind it, by strides, with the same links, all between them having those too
  std::vector<Visit> visits_;
  std::int64_t in_a_row_ = 0;              // visits that were noted
  std::vector<std::int64_t> progress_, last_progress_;  // from the messages of one stride to those of the next
  std::vector<std::int64_t> step_, next_;  // of states
  std::int64_t failed_ = 0, pause_ = 0;   // in a row; visits that are not worth noting
};

}  // namespace ccl_lab::sim
