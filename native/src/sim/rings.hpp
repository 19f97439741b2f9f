// The exact tier for schedules made of rings, without a row per op: time and memory that do not grow with ranks times steps.
//
// Is: units in a circle. A unit has `chains`; a chain runs through `stations` of the unit and on into the next unit. A station waits
// for a message, may add what arrived, and sends it on, over and over: for a flat ring a unit is a node, for a ring over nodes it is the
// ranks that share links. Is not: an approximation: every number is the one that exact.cpp finds for the unrolled schedule, or the
// status says that this evaluation does not apply. Invariants: units use no link in common; no exception leaves.
//
// How. A unit needs nothing but the messages of the one before it, so units are visited one after the other, each for all messages
// that there are by then, or several at once where they do the same (runs.hpp); the circle is gone round until every station is done. Inside a unit ops are evaluated in rounds: message by
// message, station by station, chain by chain.
//
// Order. Links have to be served in the static order of order.hpp, (batch, turn, op). Nominal time is computed along with real time.
// The number of a batch is not: it counts batches of all ranks. But its place among the batches of its tick follows from the op's own
// predecessors (0 where time had to pass, else one more than the later of them), so (tick, place) is, as one number `batch` = tick *
// 2^20 + place, a maximum of sums as well: max(tick << 20, predecessor + 1). Each link is checked to be served in the order (batch, turn,
// op); if it is, the batches found satisfy the definition of the static order, which has one solution (by induction over batches: each is
// determined by those before it). If not: `disorder`.
//
// Jump. With equal sizes every round applies the same maxima of sums to the unit's state and to the messages that come in. Let x be the
// state after a round (or after `period` of them), S the choice that the maxima made, a the messages: x' = S x + a. If the state changed by
// the same v in two rounds in a row, with the same S, and the messages went on by the same slopes, it changes by v in the next one too, as
// long as S stays: v' = S v + a' - a = v. And S stays while no maximum changes its mind: the difference of the two sides of each is then
// affine in the number of rounds, so the first round in which one would change sign is known. Up to there rounds are made by one
// multiplication. Where all of v is one shift, and the messages go on by it too, one round is enough, and no maximum changes its mind. A
// link whose rate changes in time adds two more: whether a message begins after the last change, and whether it is through before the next.
// Places of batches inside a tick must not change (v of a batch is a whole number of ticks), so that tick = batch >> 20 is affine too.
//
// Timetable. All chains of a unit get message m at one tick, whatever their shares, so they share links in the order of rounds.
//
// Rhythm. Rings that wait for one another in a node again and again may come to a rhythm that is no divisor of what is under way: a period is
// looked for in what units send, and then the circle is gone round anew with that one.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "exact.hpp"

namespace ccl_lab::sim {

// Rows of stations are numbered (unit * chains + chain) * stations + station; (unit, station) is a position on the chain's ring. Most units
// are alike, so that what does not change about stations is told by kind of unit: where columns are [kinds], theirs is row
// (kind * chains + chain) * stations + station.
struct RingsInput {
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  std::int64_t units = 0, chains = 0, stations = 0;
  std::int64_t depth = 1;     // messages that a station has under way before it waits for the first
  std::int64_t steps = 0;     // a station waits `steps * depth` times a slice, and sends as often
  std::int64_t reducing = 0;  // the first steps of a slice add what arrived
  // Arrays that a station adds to what arrived. Several are those of the ranks of its node: it waits for the others, and adds them up before it sends the
  // first messages of a slice.
  std::int64_t own = 1;
  std::int64_t alpha_ps = 0;  // how long a transfer occupies its links beyond its bytes
  std::int64_t n_sizes = 1;   // 1, or one size for each position of the ring
  std::int64_t nominal_bytes = 0;  // of every message, in nominal time
  // How many may be evaluated, neither jumped over nor passed on: messages of rings both ways, 50 ns to 0.2 us each, rounds in which nodes wait for one another, some 10 us, and messages of units in their own time, 10 ns.
  std::int64_t most_both_ways = kNoLimit, most_rounds = kNoLimit, most_own_time = kNoLimit;
  bool copies = false;        // a station copies its own message after it sent it
  bool passes_on = false;     // puts to others follow the last wait of a slice, in a batch of their own
  bool jumps = true;          // false: every round is evaluated, for tests
  bool one_by_one = false;    // puts of one batch begin in the order of ops, or it is `disorder` (else the other manner of Unit is tried)
  bool together_at_first = false;  // but for the puts before a message comes (unit.hpp)
  bool followed = false;      // every message all the way round, as if they went round by round, one by one (followed.hpp): times alone
  bool own_time = false;      // as followed, where units have no need to wait for messages (own_time.hpp): times alone
  bool swept = false;         // all units at once, every message, as if they went round by round (swept.hpp): times alone
  bool timetable = false;     // message m comes to a unit at tick m + 1, on every chain, and transfers take no ticks (ccl_lab/ir/loops.py)

  std::span<const std::uint8_t> backward;  // [chains] that send to the unit before; empty: none does, or all units are alike (both_ways.hpp)
  // Where rings meet in a NIC (both_ways_meeting.hpp): [units][chains] the link that receives what a chain sends out of a unit.
  std::span<const std::int32_t> far;
  std::span<const std::int64_t> slices;   // [chains] how often the steps are repeated; 1 where stations > 1
  std::span<const std::int64_t> bytes;    // [chains][most slices][depth][n_sizes] of a message that is at position p after step s: p - 1 - s
  std::span<const std::int64_t> group;    // [chains][most slices] place of the slice in the order of ops
  std::span<const std::int32_t> kind_of;  // [units]
  // [kinds] Links of a station, numbered within its unit: its memory, and the two that its transfers use.
  std::span<const std::int32_t> memory, link_a, link_b;
  std::span<const std::int64_t> memory_bytes_per_s, a_bytes_per_s, b_bytes_per_s, latency_ps;
  std::span<const std::uint8_t> ticks;    // whether a byte takes a tick of nominal time on this path
  std::span<const std::int64_t> late_ps, ready_ps;  // when the station's rank, and the one it writes to, enter
  std::span<const std::int64_t> row, row_step;      // [chains][stations] places in the order of ops of a group: of unit 0, and from unit to unit
  std::span<const std::int64_t> begin_ps, begin_batch;  // [units][chains][most slices] when others' parts of a slice are there, and the batch of their signals; empty: at once
  // Where rates change: the links of a station as `changes` numbers them, below `all_links`. Empty where nothing changes.
  std::span<const std::int32_t> all_a, all_b;
  std::int64_t all_links = 0;
  ChangeColumns changes = {};

  [[nodiscard]] std::int64_t rows_of_unit() const { return chains * stations; }
  // Where columns that are told by kind begin for a unit.
  [[nodiscard]] std::int64_t kind_row(std::int64_t unit) const { return kind_of[static_cast<std::size_t>(unit)] * rows_of_unit(); }
  [[nodiscard]] std::int64_t place(std::int64_t unit, std::size_t station) const { return row[station] + unit * row_step[station]; }
  // Places of a group: all stations of all units have one below.
  [[nodiscard]] std::int64_t places() const;
  // Whether two units have the same links, that take as long, and the ranks that they write to enter when theirs do.
  [[nodiscard]] bool same_links(std::int64_t unit, std::int64_t other) const;
  // Whether a rate that a unit depends on changes in time.
  [[nodiscard]] bool changing(std::int64_t unit) const;
};

struct RingsOutput {
  std::span<std::int64_t> finish_ps;            // per station: its last op has ended and its last message has left
  std::span<std::int64_t> end_ps, end_batch;    // [units][chains][most slices] the last wait of a slice; may be empty
  std::int64_t rounds = 0, jumped = 0;          // rounds that were evaluated, and rounds that were not
};

enum class RingsStatus : std::uint8_t {
  ok = 0,
  disorder = 1,       // a link would be served in another order than the static one
  overflow = 2,       // an op happens after 2^60 ps (13 days), or nominal time does not fit
  bad_input = 3,
  out_of_memory = 4,
  too_many = 5,       // units that do different things, in rings both ways
  too_much = 6,       // work, before anything is found (own_time.hpp)
};

[[nodiscard]] RingsStatus simulate_rings(const RingsInput& in, RingsOutput& out) noexcept;

}  // namespace ccl_lab::sim
