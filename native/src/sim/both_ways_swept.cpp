// See both_ways_swept.hpp.
#include "both_ways_swept.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "both_ways_abreast.hpp"
#include "busy.hpp"
#include "changes.hpp"
#include "stream.hpp"
#include "unit.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr double kMost = static_cast<double>(std::int64_t{1} << 52);
// Of a chain, that a tile handles before the next one does, and visits of it, at least; and units of it for each of them.
constexpr std::size_t kMessagesOfTile = 64, kVisitsOfTile = 16, kUnitsOfTile = 32;

#define CCL_VISIT(name, ...) CCL_FOR_TARGETS(name, (const Rounds& at, const UnitsAbreast& of), (visit<__VA_ARGS__>(at, of)))
CCL_VISIT(visit_all, kAbreast, false, false)
CCL_VISIT(visit_all_longer, kAbreast, true, false)
CCL_VISIT(visit_one, 1, true, false)
CCL_VISIT(visit_changing, 1, true, true)

// What units abreast have: rows of `fixed`, and where their numbers are, if that is the same for all of them, and no rate of theirs changes.
struct Group {
  std::size_t fixed = 0;
  std::int64_t places = -1;
};

class Sweep {
 public:
  explicit Sweep(const RingsInput& in)
      : in_(in), units_(static_cast<std::size_t>(in.units)), chains_(static_cast<std::size_t>(in.chains)),
        stations_(static_cast<std::size_t>(in.stations)), depth_(static_cast<std::size_t>(in.depth)), rows_(chains_ * stations_),
        period_(stations_ * depth_), visits_((static_cast<std::size_t>(in.steps) * depth_ + period_ - 1) / period_),
        changes_(in.changes, static_cast<std::size_t>(in.all_links)) {}

  [[nodiscard]] bool fits() {
    if (chains_ > kMostChains) return false;
    const auto [least, most] = std::ranges::minmax(in_.bytes);
    bytes_ = least;
    more_ = most - least;
    if (!std::ranges::all_of(in_.bytes, [&](std::int64_t bytes) { return bytes == bytes_ || bytes == bytes_ + more_; })) return false;
    find_order();
    find_places();
    find_fixed();
    std::size_t differ = 0;
    for (std::size_t u = 1; u < units_; ++u) differ += places_at(u) != places_at(u - 1);
    stride_ = 2 * differ > units_ ? 2 : 1;
    find_longer();
    return true;
  }

  RingsStatus run(RingsOutput& out) {
    if (const auto status = begin(); status != RingsStatus::ok) return status;
    // As many visits of a tile as keep what it needs beside it small.
    const std::size_t often = std::max(kMessagesOfTile / period_, kVisitsOfTile);
    form_tiles(often);
    for (std::size_t done = 0; done < visits_; done += often) {
      for (std::size_t tile = 0; tile < tiles_; ++tile) {
        load(tile);
        for (std::size_t v = done; v < std::min(done + often, visits_); ++v) visit_tile(tile, v);
        keep(tile);
      }
      now_.swap(then_);
    }
    out.rounds = in_.units * in_.steps * in_.depth;
    return finish(out);
  }

 private:
  using Column = std::vector<double>;

  [[nodiscard]] std::size_t kind_row(std::size_t unit) const { return static_cast<std::size_t>(in_.kind_row(static_cast<std::int64_t>(unit))); }

  // Rows of a unit in the order in which they are served in a round.
  void find_order() {
    for (std::size_t i = 0; i < stations_; ++i)
      for (std::size_t chain = 0; chain < chains_; ++chain) served_.push_back(chain * stations_ + i);
  }

  // A kind's links, numbered as its rows come to them: so nodes that are passed through the other way round have the same numbers.
  struct Links {
    std::vector<std::size_t> of_rows;  // memories, first links, second ones
    std::vector<std::size_t> ids;      // as the unit numbers them
  };
  [[nodiscard]] Links links_of(std::size_t kind_row) const {
    Links links;
    for (const auto& column : {in_.memory, in_.link_a, in_.link_b}) {
      for (std::size_t r = 0; r < rows_; ++r) {
        const auto id = static_cast<std::size_t>(column[kind_row + r]);
        const auto found = static_cast<std::size_t>(std::ranges::find(links.ids, id) - links.ids.begin());
        if (found == links.ids.size()) links.ids.push_back(id);
        links.of_rows.push_back(found);
      }
    }
    return links;
  }

  // Numbers of a unit: clocks, when messages have left, when links are free.
  void find_places() {
    std::map<std::vector<std::size_t>, std::int64_t> known;
    const auto place = [](std::size_t number) { return static_cast<std::uint32_t>(number * kAbreast); };
    for (std::size_t row = 0; row < in_.memory.size(); row += rows_) {
      const Links links = links_of(row);
      words_ = std::max(words_, 2 * rows_ + links.ids.size());
      const auto [found, is_new] = known.try_emplace(links.of_rows, static_cast<std::int64_t>(known.size()));
      places_of_.push_back(found->second);
      for (const std::size_t r : served_) {
        if (!is_new) break;
        places_.push_back({place(r), place(rows_ + r), place(2 * rows_ + links.of_rows[r]), place(2 * rows_ + links.of_rows[rows_ + r]),
                           place(2 * rows_ + links.of_rows[2 * rows_ + r]), static_cast<std::uint32_t>(r / stations_), static_cast<std::uint32_t>(r)});
      }
    }
  }

  [[nodiscard]] std::int64_t places_at(std::size_t unit) const { return places_of_[static_cast<std::size_t>(in_.kind_of[unit])]; }

  // The rows of units of some kinds; the same ones for the same kinds.
  std::size_t fixed_of(const std::array<std::int32_t, kAbreast>& kinds) {
    const auto [found, is_new] = known_.try_emplace(kinds, fixed_.size());
    if (!is_new) return found->second;
    for (const std::size_t r : served_) {
      Fixed& row = fixed_.emplace_back();
      for (std::size_t j = 0; j < kAbreast; ++j) {
        const std::size_t of = static_cast<std::size_t>(kinds[j]) * rows_ + r;
        const auto &least = least_[of], &most = most_[of];
        row.add.lane[j] = static_cast<double>(least.add_ps), row.add_more.lane[j] = static_cast<double>(most.add_ps - least.add_ps);
        row.a.lane[j] = static_cast<double>(least.a_ps), row.a_more.lane[j] = static_cast<double>(most.a_ps - least.a_ps);
        row.b.lane[j] = static_cast<double>(least.b_ps), row.b_more.lane[j] = static_cast<double>(most.b_ps - least.b_ps);
        row.latency.lane[j] = static_cast<double>(in_.latency_ps[of]);
      }
      row.plain = true;
      for (const std::int32_t kind : kinds) row.plain = row.plain && is_plain_[static_cast<std::size_t>(kind) * rows_ + r] != 0;
    }
    return found->second;
  }

  void find_fixed() {
    std::map<std::array<double, 5>, std::int64_t> stations;
    for (std::size_t row = 0; row < in_.memory.size(); ++row) {
      least_.push_back(busy_of(in_, row, bytes_));
      most_.push_back(busy_of(in_, row, bytes_ + more_));
    }
    std::vector<std::int64_t> units(in_.memory.size() / rows_);
    for (const std::int32_t kind : in_.kind_of) ++units[static_cast<std::size_t>(kind)];
    const auto plain = [&](std::size_t row) {
      const auto ps = [](std::int64_t v) { return static_cast<double>(v); };
      return std::array{ps(least_[row].add_ps), ps(least_[row].a_ps), ps(most_[row].add_ps - least_[row].add_ps), ps(most_[row].a_ps - least_[row].a_ps),
                        ps(in_.latency_ps[row])};
    };
    const auto one = [&](std::size_t row) { return least_[row].a_ps == least_[row].b_ps && most_[row].a_ps == most_[row].b_ps; };
    for (std::size_t row = 0; row < in_.memory.size(); ++row)
      if (one(row)) stations[plain(row)] += units[row / rows_];
    if (stations.empty()) stations[{}] = 0;
    const auto& most = std::ranges::max_element(stations, {}, [](const auto& each) { return each.second; })->first;
    plain_ = {most[0], most[1], most[2], most[3], most[4]};
    for (std::size_t row = 0; row < in_.memory.size(); ++row) is_plain_.push_back(one(row) && plain(row) == most);
  }

  // Which messages of a chain are longer, by number among those under way, and the place that stations begin a round with; from unit to the next
  // one abreast, in the order in which they come through one: those of a backward ring the other way round. All of them once for each unit that is
  // the first of some abreast, and more, so that those of any units abreast lie in a row.
  void find_longer() {
    if (more_ == 0) return;
    const auto sizes = static_cast<std::size_t>(in_.n_sizes);
    longer_.resize(chains_ * depth_ * stations_ * stride_ * all_longer());
    auto next = longer_.begin();
    for (std::size_t c = 0; c < chains_; ++c)
      for (std::size_t i = 0; i < depth_; ++i)
        for (std::size_t place = 0; place < stations_; ++place)
          for (std::size_t first = 0; first < stride_; ++first)
            for (std::size_t k = 0; k < all_longer(); ++k) {
              const std::size_t at = (first + k * stride_) % units_, unit = in_.backward[c] != 0 ? (2 * units_ - 2 - at) % units_ : at;
              *next++ = in_.bytes[(c * depth_ + i) * sizes + (sizes == 1 ? 0 : unit * stations_ + place)] != bytes_;
            }
  }
  [[nodiscard]] std::size_t all_longer() const { return (units_ + stride_ - 1) / stride_ + kAbreast; }

  // Where the messages of a chain's round begin in `longer_`, and how many units on its units are from there.
  struct Began {
    std::size_t row, on;
  };
  [[nodiscard]] Began began(std::size_t c, std::size_t round) const {
    const std::size_t step = round / depth_, around = step / stations_ % units_, place = stations_ - 1 - step % stations_;
    return {((c * depth_ + round % depth_) * stations_ + place) * stride_ * all_longer(), in_.backward[c] != 0 ? around : units_ - around - 1};
  }

  RingsStatus begin() {
    for (auto* all : {&now_, &then_}) all->assign(words_ + chains_ * period_, Column(units_));
    RingsOutput none;
    Unit unit(in_, none, Manner{.together_at_first = true}, 0, true);
    std::vector<Stream> sent(chains_, Stream(static_cast<std::int64_t>(period_)));
    for (std::size_t u = 0; u < units_; ++u) {
      if (const auto status = unit.begin(static_cast<std::int64_t>(u), sent); status != RingsStatus::ok) return status;
      const std::int64_t* const state = unit.state_of(static_cast<std::int64_t>(u));
      for (std::size_t r = 0; r < rows_; ++r) {
        now_[r][u] = static_cast<double>(state[3 * r]);
        now_[rows_ + r][u] = static_cast<double>(state[3 * r + 2]);
      }
      const Links links = links_of(kind_row(u));
      for (std::size_t k = 0; k < links.ids.size(); ++k) now_[2 * rows_ + k][u] = static_cast<double>(state[3 * rows_ + 5 * links.ids[k]]);
      for (std::size_t c = 0; c < chains_; ++c) {
        std::size_t row = words_ + c * period_;
        for (Reader reader(sent[c]); !reader.empty(); ++row) now_[row][u] = static_cast<double>(reader.next().arrive_ps);
        sent[c].clear();
      }
    }
    return RingsStatus::ok;
  }

  void form_tiles(std::size_t often) {
    const auto whole = [&](std::size_t units) { return (units + kAbreast * stride_ - 1) / (kAbreast * stride_) * kAbreast * stride_; };
    beside_ = whole(often);
    inner_ = whole(std::min(kUnitsOfTile * often, units_));
    tiles_ = (units_ + inner_ - 1) / inner_;
    in_a_row_ = (inner_ + 2 * beside_) / kAbreast / stride_;
    apart_ = stride_ * (in_a_row_ + 2) * kAbreast;  // as many more on both sides, whose messages are read by units that do not matter
    state_.resize(stride_ * in_a_row_ * words_);
    for (auto& each : messages_) each.resize(chains_ * period_ * apart_ / kAbreast);
    for (std::size_t tile = 0; tile < tiles_; ++tile)
      for (std::size_t g = 0; g < stride_ * in_a_row_; ++g) groups_.push_back(group_of(unit_of(tile, g, 0)));
  }

  // Units abreast are every one, or every other one: then groups of even ones come before those of odd ones.
  [[nodiscard]] std::size_t unit_of(std::size_t tile, std::size_t group, std::size_t lane) const {
    const std::size_t first = tile * inner_ + beside_ * units_ - beside_;
    return (first + group / in_a_row_ + (group % in_a_row_ * kAbreast + lane) * stride_) % units_;
  }
  // Where their messages begin, and those of the units before or after them.
  [[nodiscard]] std::size_t lanes_of(std::size_t group) const { return (group + 2 * (group / in_a_row_) + 1) * kAbreast; }
  [[nodiscard]] std::size_t lanes_beside(std::size_t group, bool after) const {
    if (stride_ == 1) return after ? lanes_of(group) + 1 : lanes_of(group) - 1;
    const bool odd = group >= in_a_row_;
    return lanes_of(odd ? group - in_a_row_ : group + in_a_row_) + static_cast<std::size_t>(odd && after) - static_cast<std::size_t>(!odd && !after);
  }

  Group group_of(std::size_t first) {
    std::array<std::int32_t, kAbreast> kinds;
    bool same = true;
    for (std::size_t j = 0; j < kAbreast; ++j) {
      const std::size_t unit = (first + j * stride_) % units_;
      kinds[j] = in_.kind_of[unit];
      same = same && places_of_[static_cast<std::size_t>(kinds[j])] == places_of_[static_cast<std::size_t>(kinds[0])] &&
             !in_.changing(static_cast<std::int64_t>(unit));
    }
    return {fixed_of(kinds), same ? places_of_[static_cast<std::size_t>(kinds[0])] : -1};
  }

  // Numbers of the units of a tile, and what they have sent.
  void load(std::size_t tile) {
    for (std::size_t g = 0; g < stride_ * in_a_row_; ++g) {
      const std::size_t unit = unit_of(tile, g, 0);
      const auto some = [&](const Column& from, double* to) {
        if (unit + kAbreast * stride_ <= units_) {
          for (std::size_t j = 0; j < kAbreast; ++j) to[j] = from[unit + j * stride_];
        } else {
          for (std::size_t j = 0; j < kAbreast; ++j) to[j] = from[(unit + j * stride_) % units_];
        }
      };
      for (std::size_t w = 0; w < words_; ++w) some(now_[w], state_[g * words_ + w].lane.data());
      for (std::size_t m = 0; m < chains_ * period_; ++m) some(now_[words_ + m], flat(messages_[0]) + m * apart_ + lanes_of(g));
    }
  }

  void keep(std::size_t tile) {
    const std::size_t first = tile * inner_, end = std::min(first + inner_, units_), before = beside_ / kAbreast / stride_;
    for (std::size_t g = 0; g < stride_ * in_a_row_; ++g) {
      const std::size_t row = g % in_a_row_, begin = first + g / in_a_row_ + (row - before) * kAbreast * stride_;
      if (row < before || row >= in_a_row_ - before || begin >= end) continue;
      const std::size_t count = std::min(kAbreast, (end - begin + stride_ - 1) / stride_);
      const auto some = [&](const double* from, Column& to) {
        for (std::size_t j = 0; j < count; ++j) to[begin + j * stride_] = from[j];
      };
      for (std::size_t w = 0; w < words_; ++w) some(state_[g * words_ + w].lane.data(), then_[w]);
      for (std::size_t m = 0; m < chains_ * period_; ++m) some(flat(messages_[0]) + m * apart_ + lanes_of(g), then_[words_ + m]);
    }
  }

  void visit_tile(std::size_t tile, std::size_t number) {
    const std::int64_t all = in_.steps * in_.depth, first = static_cast<std::int64_t>(number * period_);
    const Rounds at{.first = first, .count = std::min(static_cast<std::int64_t>(period_), all - first), .adding = in_.reducing * in_.depth,
                    .sending = all - in_.depth, .all = all, .depth = in_.depth, .stations = stations_, .chains = chains_};
    const bool tells = first + 3 * static_cast<std::int64_t>(period_) > all;  // when the last messages leave
    const auto count = static_cast<std::size_t>(at.count);
    std::array<const double*, kMostChains> came{};
    std::array<double*, kMostChains> goes{};
    longer_of_.resize(chains_ * count);
    began_.clear();
    for (std::size_t c = 0; c < chains_ && more_ != 0; ++c)
      for (std::size_t k = 0; k < count; ++k) began_.push_back(began(c, number * period_ + k));
    for (std::size_t g = 0; g < stride_ * in_a_row_; ++g) {
      const std::size_t unit = unit_of(tile, g, 0);
      for (std::size_t c = 0; c < chains_; ++c) {
        came[c] = flat(messages_[0]) + c * period_ * apart_ + lanes_beside(g, in_.backward[c] != 0);
        goes[c] = flat(messages_[1]) + c * period_ * apart_ + lanes_of(g);
      }
      for (std::size_t m = 0; m < began_.size(); ++m) {
        std::size_t at_unit = began_[m].on + unit;
        if (at_unit >= units_) at_unit -= units_;
        longer_of_[m] = longer_.data() + began_[m].row + at_unit % stride_ * all_longer() + at_unit / stride_;
      }
      const Group& group = groups_[tile * stride_ * in_a_row_ + g];
      UnitsAbreast of{.state = state_[g * words_].lane.data(), .places = nullptr, .fixed = fixed_.data() + group.fixed, .came = came.data(),
                    .goes = goes.data(), .longer = longer_of_.data(), .apart = apart_, .plain = &plain_};
      if (group.places >= 0 && !tells) {
        of.places = places_.data() + static_cast<std::size_t>(group.places) * rows_;
        (more_ != 0 ? all_longer_ : all_)(at, of);
      } else {
        each_by_itself(at, of, tile, g);
      }
    }
    messages_[0].swap(messages_[1]);
  }

  // Units that have not the same links, or whose rates change.
  void each_by_itself(const Rounds& at, const UnitsAbreast& all, std::size_t tile, std::size_t group) {
    static constexpr std::uint8_t none = 0;
    std::array<const double*, kMostChains> came{};
    std::array<double*, kMostChains> goes{};
    std::vector<const std::uint8_t*> longer(chains_ * static_cast<std::size_t>(at.count), &none);
    for (std::size_t j = 0; j < kAbreast; ++j) {
      const std::size_t unit = unit_of(tile, group, j), row = kind_row(unit);
      for (std::size_t c = 0; c < chains_; ++c) came[c] = all.came[c] + j, goes[c] = all.goes[c] + j;
      for (std::size_t k = 0; k < longer.size() && more_ != 0; ++k) longer[k] = all.longer[k] + j;
      UnitsAbreast of = all;
      of.state += j, of.lane = j, of.came = came.data(), of.goes = goes.data(), of.longer = longer.data();
      of.places = places_.data() + static_cast<std::size_t>(places_of_[row / rows_]) * rows_;
      if (!in_.changing(static_cast<std::int64_t>(unit))) {
        one_(at, of);
        continue;
      }
      const Changing changing{&changes_, in_.all_a.data() + unit * rows_, in_.all_b.data() + unit * rows_, in_.a_bytes_per_s.data() + row,
                              in_.b_bytes_per_s.data() + row, bytes_, more_, in_.alpha_ps};
      of.changing = &changing;
      changing_(at, of);
    }
  }

  RingsStatus finish(RingsOutput& out) const {
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t u = 0; u < units_; ++u) {
        const double end = std::max(now_[r][u], now_[rows_ + r][u]);
        if (!(end < kMost)) return RingsStatus::bad_input;
        out.finish_ps[u * rows_ + r] = static_cast<std::int64_t>(end);
      }
    }
    return RingsStatus::ok;
  }

  static double* flat(std::vector<Abreast>& numbers) { return reinterpret_cast<double*>(numbers.data()); }

  const RingsInput& in_;
  // period: messages of a chain that a unit handles in a visit.
  const std::size_t units_, chains_, stations_, depth_, rows_, period_, visits_;
  const Changes changes_;
  decltype(&visit_all_base) all_ = visit_all_for(Target::best), all_longer_ = visit_all_longer_for(Target::best),
                              one_ = visit_one_for(Target::best), changing_ = visit_changing_for(Target::best);
  std::int64_t bytes_ = 0, more_ = 0;        // of a message, and how many more a longer one has
  std::vector<std::uint8_t> longer_;
  std::vector<std::size_t> served_;
  std::size_t words_ = 0;                    // numbers of a unit
  std::size_t stride_ = 1;                   // from one unit abreast to the next one
  std::vector<Places> places_;               // rows of those that differ
  std::vector<std::int64_t> places_of_;      // which of them, by kind of unit
  std::vector<Busy> least_, most_;           // by row of a kind
  Plain plain_;                              // of most stations
  std::vector<std::uint8_t> is_plain_;       // by row of a kind
  std::vector<Fixed> fixed_;                 // rows of those that differ
  std::map<std::array<std::int32_t, kAbreast>, std::size_t> known_;  // their kinds, and where theirs begin
  std::vector<Column> now_, then_;           // by number of a unit, and message that it sent
  std::size_t beside_ = 0, inner_ = 0, tiles_ = 0, in_a_row_ = 0, apart_ = 0;  // of a tile: units on each side of those that it is for, these, groups of each parity
  std::vector<Group> groups_;                // by tile and group
  std::vector<Abreast> state_;               // of a tile: by group and number
  std::array<std::vector<Abreast>, 2> messages_;  // by chain and round: that came in, and that go out
  std::vector<Began> began_;                 // by chain and round of a visit
  std::vector<const std::uint8_t*> longer_of_;
};

}  // namespace

bool fits_both_ways_swept(const RingsInput& in) {
  return in.begin_ps.empty() && in.steps > in.stations && in.backward.size() == static_cast<std::size_t>(in.chains) &&
         std::ranges::all_of(in.slices, [](std::int64_t slices) { return slices == 1; });
}

RingsStatus both_ways_swept(const RingsInput& in, RingsOutput& out) {
  out.jumped = 0;
  Sweep sweep(in);
  return sweep.fits() ? sweep.run(out) : RingsStatus::bad_input;
}

}  // namespace ccl_lab::sim
