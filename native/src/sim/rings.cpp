// See rings.hpp. Units are visited in a circle; what one sends is read by the next and then forgotten, so that only the state of the units
// stays in memory.
#include "rings.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "both_ways.hpp"
#include "both_ways_meeting.hpp"
#include "both_ways_swept.hpp"
#include "changes.hpp"
#include "followed.hpp"
#include "own_time.hpp"
#include "runs.hpp"
#include "swept.hpp"
#include "unit.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kMostOwn = std::int64_t{1} << 16;

bool good(const RingsInput& in) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto positive = [](std::int64_t v) { return v > 0; };
  const auto time = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 60; };
  if (in.units < 1 || in.chains < 1 || in.stations < 1 || in.depth < 1 || in.steps < 1 || in.reducing < 0 || in.own < 1 || in.own > kMostOwn || !time(in.alpha_ps)) return false;
  if (in.slices.size() != static_cast<std::size_t>(in.chains) || !all(in.slices, positive)) return false;
  if (!in.backward.empty() && (in.backward.size() != in.slices.size() || !(in.swept ? fits_both_ways_swept(in) : fits_both_ways(in)))) return false;
  const std::int64_t most = *std::max_element(in.slices.begin(), in.slices.end());
  if ((in.own > 1) == in.begin_ps.empty() || (in.own > 1 && in.stations > 1) || (most > 1 && in.own == 1)) return false;
  if (!in.far.empty() && !(in.swept && fits_both_ways_swept(in) && fits_both_ways_meeting(in))) return false;
  if (in.n_sizes != 1 && in.n_sizes != in.units * in.stations) return false;
  const auto each = static_cast<std::size_t>(in.chains * in.stations), kinds = in.memory.size() / each;
  const auto slots = static_cast<std::size_t>(in.chains * most);
  if (!time(in.nominal_bytes)) return false;
  if (in.bytes.size() != slots * static_cast<std::size_t>(in.depth * in.n_sizes) || in.group.size() != slots) return false;
  const std::size_t rows = kinds * each, of_all = static_cast<std::size_t>(in.units) * each;
  if (in.kind_of.size() != static_cast<std::size_t>(in.units) || !all(in.kind_of, [&](std::int32_t kind) { return kind >= 0 && static_cast<std::size_t>(kind) < kinds; })) return false;
  for (const auto& ids : {in.memory, in.link_a, in.link_b})
    if (ids.size() != rows || !all(ids, [&](std::int32_t id) { return id >= 0 && id < 3 * static_cast<std::int64_t>(of_all); })) return false;
  for (const auto& rates : {in.memory_bytes_per_s, in.a_bytes_per_s, in.b_bytes_per_s})
    if (rates.size() != rows || !all(rates, positive)) return false;
  for (const auto& times : {in.latency_ps, in.late_ps, in.ready_ps})
    if (times.size() != rows || !all(times, time)) return false;
  if (in.row.size() != each || in.row_step.size() != each || in.units >= std::int64_t{1} << 30) return false;
  for (std::size_t i = 0; i < each; ++i)
    if (std::abs(in.row_step[i]) >= std::int64_t{1} << 30 || !time(in.row[i]) || !time(in.place(in.units - 1, i))) return false;
  if (!Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.all_links, 0)))) return false;
  for (const auto& ids : {in.all_a, in.all_b})
    if (!in.changes.link.empty() && (ids.size() != of_all || !all(ids, [&](std::int32_t id) { return id >= 0 && id < in.all_links; }))) return false;
  const std::size_t begins = slots * static_cast<std::size_t>(in.units);
  if (!in.begin_ps.empty() && (in.begin_ps.size() != begins || !all(in.begin_ps, time) || !all(in.begin_batch, time))) return false;
  return in.begin_batch.size() == in.begin_ps.size() && in.ticks.size() == rows && all(in.bytes, [&](std::int64_t b) { return b >= 0 && b <= kLatest / in.depth / (1 + in.own); });
}

// Units of a rack at most.
constexpr std::int64_t kLargestRack = 64;

// Rounds evaluated until the first look at what is sent, and the longest rhythm looked for.
constexpr std::int64_t kLook = 5000, kLongestRhythm = 1000;

// The least number of rounds after which the last messages of all streams go on by the same differences; 0 where there is none.
std::int64_t rhythm(const std::vector<Stream>& streams) {
  const auto goes_on = [](const Stream& stream, std::int64_t rounds) {
    if (stream.parts().empty()) return false;
    const Stream::Part& last = stream.parts().back();
    for (std::int64_t i = last.count - rounds; i < last.count; ++i) {
      if (i < 2 * rounds) return false;
      if (stream.at(last, i) - stream.at(last, i - rounds) != stream.at(last, i - rounds) - stream.at(last, i - 2 * rounds)) return false;
    }
    return true;
  };
  for (std::int64_t rounds = 1; rounds <= kLongestRhythm; ++rounds)
    if (std::ranges::all_of(streams, [&](const Stream& each) { return goes_on(each, rounds); })) return rounds;
  return 0;
}

// period: see Unit. `longer` becomes the one with which all has to be gone round anew, where the rhythm is a longer one.
RingsStatus circle(const RingsInput& in, RingsOutput& out, Manner manner, std::int64_t period, std::int64_t& longer) {
  Unit unit(in, out, manner, period);
  Runs runs(in, out, unit);
  // What units send before they receive is kept for the first time round; of units that send the same, for the first of them.
  std::vector<std::vector<Stream>> first;
  std::vector<std::size_t> first_of(static_cast<std::size_t>(in.units));
  std::vector<Stream> received, sent(static_cast<std::size_t>(in.chains), Stream(unit.period()));
  for (std::int64_t u = 0; u < in.units; ++u) {
    // Where no slice ends before a message comes in: that would be told by each unit.
    if (const std::int64_t like = in.steps >= in.stations ? runs.as_before(u) : -1; like >= 0) {
      unit.begin_like(u, like);
      first_of[static_cast<std::size_t>(u)] = first_of[static_cast<std::size_t>(like)];
      continue;
    }
    if (const auto status = unit.begin(u, sent); status != RingsStatus::ok) return status;
    first.push_back(sent);
    first_of[static_cast<std::size_t>(u)] = first.size() - 1;
    for (Stream& each : sent) each.clear();
  }
  received = first[first_of.back()];
  const bool watches = in.jumps && in.n_sizes == 1;
  std::int64_t look = kLook;
  bool begun = false;
  for (std::int64_t before = -1; !unit.all_done();) {
    if (std::exchange(before, unit.evaluated + unit.jumped) == unit.evaluated + unit.jumped) return RingsStatus::bad_input;
    for (std::int64_t u = 0; u < in.units; ++u) {
      if (!begun && u + 1 < in.units) sent = first[first_of[static_cast<std::size_t>(u)]];
      if (const auto status = runs.visit(u, received, sent); status != RingsStatus::ok) return status;
      received.swap(sent);
      if (watches && unit.evaluated > look) {
        // Rings that wait for one another in a node may do so in a rhythm of their own: seven of them, through eight ranks, in one of seven rounds.
        if (unit.evaluated > in.most_rounds) return RingsStatus::too_much;
        look = 2 * unit.evaluated;
        const std::int64_t rounds = rhythm(received);
        const std::int64_t both = rounds > 0 ? std::lcm(unit.period(), rounds) : 0;
        if (both > unit.period() && both <= kLongestRhythm * in.depth * in.stations) {
          longer = both;
          return RingsStatus::ok;
        }
      }
      for (Stream& each : sent) each.clear();
    }
    begun = true;
  }
  unit.finish();
  out.rounds = unit.evaluated;
  out.jumped = unit.jumped;
  return RingsStatus::ok;
}

// Messages have come through as many units as they are old: where the latencies of units repeat, as from rack to rack, so do their times, and
// not before. The least number of units after which those of most are what they were.
std::int64_t rack(const RingsInput& in) {
  const std::int64_t each = in.rows_of_unit();
  for (std::int64_t units = 1; units <= kLargestRack && units < in.units; ++units) {
    std::int64_t alike = 0;
    for (std::int64_t u = 0; u < in.units; ++u) {
      const auto here = in.latency_ps.begin() + in.kind_row(u), there = in.latency_ps.begin() + in.kind_row((u + units) % in.units);
      alike += std::equal(here, here + each, there);
    }
    if (2 * alike > in.units) return units;
  }
  return 1;
}

// One circle after the other: each keeps the state of all units, so the one before is forgotten first.
RingsStatus circles(const RingsInput& in, RingsOutput& out, Manner manner) {
  const std::int64_t units = in.jumps && in.n_sizes == 1 ? rack(in) : 1;
  for (std::int64_t period = units > 1 ? units * in.stations * in.depth : 0;;) {
    std::int64_t longer = 0;
    const RingsStatus status = circle(in, out, manner, period, longer);
    if (longer == 0) return status;
    period = longer;
  }
}

// As they are numbered, or, where that is not the static order, as rings are served that come to a rank or a NIC by different ways: one put may
// begin before another one of its batch that comes first in the order of ops.
template <class Evaluate>
RingsStatus in_some_manner(const RingsInput& in, RingsOutput& out, const Evaluate& evaluate) {
  RingsStatus status = evaluate(in, out, Manner{.together_at_first = in.together_at_first});
  if (in.one_by_one || in.chains == 1 || (in.stations == 1 && !in.timetable)) return status;
  return status == RingsStatus::disorder ? evaluate(in, out, Manner{.together = true}) : status;
}

}  // namespace

std::int64_t RingsInput::places() const {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < row.size(); ++i) most = std::max({most, place(0, i), place(units - 1, i)});
  return most + 1;
}

bool RingsInput::same_links(std::int64_t unit, std::int64_t other) const {
  const std::int64_t a = kind_row(unit), b = kind_row(other);
  if (a == b) return true;
  const auto same = [&](const auto& column) { return std::equal(column.begin() + a, column.begin() + a + rows_of_unit(), column.begin() + b); };
  for (const auto& ids : {memory, link_a, link_b})
    if (!same(ids)) return false;
  for (const auto& column : {memory_bytes_per_s, a_bytes_per_s, b_bytes_per_s, latency_ps, ready_ps})
    if (!same(column)) return false;
  return same(ticks);
}

bool RingsInput::changing(std::int64_t unit) const {
  if (changes.link.empty()) return false;
  const auto on = [&](const auto& ids) {
    return std::any_of(ids.begin() + unit * rows_of_unit(), ids.begin() + (unit + 1) * rows_of_unit(),
                       [&](std::int32_t id) { return std::ranges::binary_search(changes.link, id); });
  };
  return on(all_a) || on(all_b);
}

RingsStatus simulate_rings(const RingsInput& in, RingsOutput& out) noexcept try {
  if (!good(in) || out.finish_ps.size() != static_cast<std::size_t>(in.units * in.rows_of_unit())) return RingsStatus::bad_input;
  if (in.followed) return followed_rings(in, out);
  if (in.own_time) return own_time_rings(in, out);
  if (in.swept && !in.far.empty()) return both_ways_meeting(in, out);
  if (in.swept) return in.backward.empty() ? swept_rings(in, out) : both_ways_swept(in, out);
  return in_some_manner(in, out, [](const RingsInput& rings, RingsOutput& found, Manner manner) {
    return rings.backward.empty() ? circles(rings, found, manner) : rings_both_ways(rings, found, manner);
  });
} catch (const std::bad_alloc&) {
  return RingsStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
