#include "chain_unit.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

#include "order.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kKnown = 1024, kFixed = 3;  // costs of a station before those by size

// Finds the order of one unit, batch by batch.
class Finder {
 public:
  Finder(const ChainsInput& in, const ChainUnit& unit, const std::vector<std::int64_t>& free_ticks, Pattern& found)
      : in_(in), unit_(unit), found_(found), chunks_(static_cast<std::int32_t>(in.chunks)), cells_(found.came), free_(free_ticks),
        turns_(unit.links.size()), at_(unit.stations.size(), 0), served_(at_), batch_(unit.stations.size(), -1), busy_(unit.stations.size()) {}

  bool run() {
    found_.first.assign(unit_.links.size(), {-1, -1});
    found_.last = found_.first;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(unit_.stations.size()); ++s) {
      if (unit_.stations[index(s)].source) {  // a row of puts is of one batch
        busy_[index(s)] = true;
        for (std::int32_t i = 0; i < chunks_; ++i) push(0, s, i, false);
      } else {
        advance(s);
      }
    }
    while (fits_ && !due_.empty()) {
      const std::int64_t batch = due_.top().batch;
      now_.clear();
      for (; !due_.empty() && due_.top().batch == batch; due_.pop()) now_.push_back(due_.top());
      serve();
    }
    found_.sent = std::move(cells_);
    return fits_;
  }

 private:
  struct Due {
    std::int64_t batch, op;  // op: its place among those that it may meet
    ChainStep step;
    bool operator<(const Due& other) const { return std::tie(batch, op) > std::tie(other.batch, other.op); }
  };
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::size_t cell(std::int32_t s, std::int32_t i) const { return index(unit_.stations[index(s)].chain * chunks_ + i); }
  [[nodiscard]] bool is_last(std::int32_t s) const { return unit_.stations[index(s)].a < 0; }

  void push(std::int64_t batch, std::int32_t s, std::int32_t chunk, bool works) {
    fits_ = fits_ && (batch & (kPlaces - 1)) <= kPlaces - 8 && (batch >> kPlaceBits) <= kLastTick;
    // Ops are written chunk by chunk and chain by chain; those of one chain meet on no link, and what a first rank puts is of a batch of its own.
    due_.push({batch, static_cast<std::int64_t>(chunk) * in_.chains + unit_.stations[index(s)].chain, {s, chunk, works}});
  }

  // Waits for as many chunks as are there, up to an op that others serve.
  void advance(std::int32_t s) {
    const ChainStation& station = unit_.stations[index(s)];
    while (!busy_[index(s)] && at_[index(s)] < chunks_ && (station.first || served_[index(s - 1)] > at_[index(s)])) {
      const Nominal& seen = cells_[cell(s, at_[index(s)])];
      std::int64_t& batch = batch_[index(s)];
      const std::int64_t tick = std::max(std::max<std::int64_t>(batch, 0) >> kPlaceBits, seen.leaves);
      batch = std::max(tick << kPlaceBits, std::max(batch, seen.batch) + 1);
      if (in_.adds || !is_last(s)) {
        busy_[index(s)] = true;
        push(batch + 1, s, at_[index(s)], in_.adds);
      } else {
        ++at_[index(s)];
      }
    }
  }

  // All that is due in one batch, in turns.
  void serve() {
    turns_.clear();
    by_turn_.clear();
    for (std::size_t i = 0; i < now_.size(); ++i) {
      const ChainStation& s = unit_.stations[index(now_[i].step.station)];
      by_turn_.emplace_back(now_[i].step.works ? turns_.next(s.memory, s.memory) : turns_.next(s.a, s.b), i);
    }
    std::sort(by_turn_.begin(), by_turn_.end());
    for (const auto& [turn, i] : by_turn_) take(now_[i]);
    for (const Due& due : now_) go_on(due);
  }

  void take(const Due& due) {
    const ChainStation& s = unit_.stations[index(due.step.station)];
    found_.steps.push_back(due.step);
    const std::int32_t a = due.step.works ? s.memory : s.a, b = due.step.works ? s.memory : s.b;
    std::int64_t tick = due.batch >> kPlaceBits;
    if (!due.step.works && s.ticks)
      tick = free_[index(a)] = free_[index(b)] = std::max({tick, free_[index(a)], free_[index(b)]}) + in_.nominal_parts[index(s.chain)];
    fits_ = fits_ && tick <= kLastTick;
    for (const std::int32_t link : {a, b}) {
      if (found_.first[index(link)].batch < 0) found_.first[index(link)] = {0, due.batch};
      found_.last[index(link)] = {free_[index(link)], due.batch};
    }
    if (!due.step.works) cells_[cell(due.step.station, due.step.chunk)] = {tick, due.batch};
  }

  void go_on(const Due& due) {
    const std::int32_t s = due.step.station;
    batch_[index(s)] = due.batch;
    if (due.step.works && !is_last(s)) return push(due.batch + 1, s, due.step.chunk, false);
    at_[index(s)] = due.step.chunk + 1;
    busy_[index(s)] = unit_.stations[index(s)].source;
    advance(s);
    if (is_last(s)) return;
    served_[index(s)] = due.step.chunk + 1;
    const auto next = index(s + 1);
    if (next < unit_.stations.size() && !unit_.stations[next].first) advance(s + 1);
  }

  const ChainsInput& in_;
  const ChainUnit& unit_;
  Pattern& found_;
  std::int32_t chunks_;
  std::vector<Nominal> cells_;       // a message, as far as it has come
  std::vector<std::int64_t> free_;   // ticks, by link
  Turns turns_;
  std::vector<std::int32_t> at_, served_;  // per station: the next chunk that it waits for, chunks that it has put
  std::vector<std::int64_t> batch_;
  std::vector<bool> busy_;           // an op of it is due
  std::priority_queue<Due> due_;
  std::vector<Due> now_;
  std::vector<std::pair<std::int64_t, std::size_t>> by_turn_;
  bool fits_ = true;
};

}  // namespace

bool find_pattern(const ChainsInput& in, const ChainUnit& unit, const std::vector<Nominal>& came, const std::vector<std::int64_t>& free_ticks,
                  Pattern& found) {
  found.shape = unit.shape;
  found.came = came;
  return Finder(in, unit, free_ticks, found).run();
}

ChainClock::ChainClock(const ChainsInput& in) : in_(in), changes_(in.changes, in.bytes_per_s.size()), known_(kKnown) {
  for (const std::int64_t nbytes : in.bytes) {
    auto at = std::ranges::find(sizes_, nbytes);
    if (at == sizes_.end()) at = sizes_.insert(sizes_.end(), nbytes);
    size_of_.push_back(static_cast<std::uint16_t>(at - sizes_.begin()));
  }
}

std::int64_t ChainClock::busy(std::int64_t nbytes, std::int32_t link) {
  const std::int64_t rate = in_.bytes_per_s[static_cast<std::size_t>(link)];
  const auto mixed = static_cast<std::uint64_t>(nbytes) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(rate) * 0xC2B2AE3D27D4EB4Full;
  Known& known = known_[(mixed >> 32) % kKnown];
  if (known.bytes != nbytes || known.rate != rate) known = {nbytes, rate, std::min(duration_ps(nbytes, rate), kLatest)};
  return known.ps;
}

bool ChainClock::load(const ChainUnit& unit) {
  costs_.clear();
  bool from_zero = true;
  changing_ = std::ranges::any_of(unit.links, [&](std::int32_t link) { return changes_.on(link); });
  for (std::size_t s = 0; s < unit.stations.size(); ++s) {
    const ChainStation& at = unit.stations[s];
    const auto link = [&](std::int32_t i) { return i < 0 ? -1 : unit.links[static_cast<std::size_t>(i)]; };
    const std::int32_t a = link(at.a), b = link(at.b), memory = link(at.memory);
    const std::int64_t latency = a < 0 ? 0 : at.tier_ps + in_.latency_ps[static_cast<std::size_t>(a)] + in_.latency_ps[static_cast<std::size_t>(b)];
    const std::int64_t late = in_.late_ps[static_cast<std::size_t>(at.rank)];
    const std::int64_t ready = at.next < 0 ? 0 : in_.late_ps[static_cast<std::size_t>(at.next)];
    costs_.insert(costs_.end(), {latency, late, ready});
    from_zero = from_zero && late == 0 && ready == 0;
    for (const std::int64_t nbytes : sizes_) {
      const std::int64_t held = nbytes > 0 ? in_.alpha_ps : 0;
      costs_.insert(costs_.end(), {a < 0 ? 0 : held + busy(nbytes, a), a < 0 ? 0 : held + busy(nbytes, b),
                                   memory < 0 ? 0 : busy(2 * nbytes, memory)});
    }
  }
  return from_zero && !changing_;
}

bool ChainClock::run(const ChainUnit& unit, const Pattern& pattern, std::vector<std::int64_t>& arrives, std::vector<std::int64_t>& free_ps,
                     std::vector<std::int64_t>& finish) {
  return changing_ ? go<true>(unit, pattern, arrives, free_ps, finish) : go<false>(unit, pattern, arrives, free_ps, finish);
}

template <bool kChanging>
bool ChainClock::go(const ChainUnit& unit, const Pattern& pattern, std::vector<std::int64_t>& arrives, std::vector<std::int64_t>& free_ps,
                    std::vector<std::int64_t>& finish) {
  const std::size_t each = kFixed + 3 * sizes_.size();
  clock_.resize(unit.stations.size());
  for (std::size_t s = 0; s < clock_.size(); ++s) clock_[s] = costs_[s * each + 1];
  left_.assign(unit.stations.size(), 0);
  std::int64_t latest = 0;
  for (const ChainStep& step : pattern.steps) {
    const auto s = static_cast<std::size_t>(step.station);
    const ChainStation& at = unit.stations[s];
    const std::size_t cell = static_cast<std::size_t>(at.chain) * static_cast<std::size_t>(in_.chunks) + static_cast<std::size_t>(step.chunk);
    const std::int64_t *const costs = &costs_[s * each], *const busy = costs + kFixed + 3 * static_cast<std::size_t>(size_of_[cell]);
    std::int64_t& clock = clock_[s];
    if (step.works) {
      std::int64_t& memory = free_ps[static_cast<std::size_t>(at.memory)];
      clock = memory = std::max({clock, arrives[cell], memory}) + busy[2];
      latest = std::max(latest, clock);
    } else {
      if (!at.source && !in_.adds) clock = std::max(clock, arrives[cell]);
      std::int64_t &a = free_ps[static_cast<std::size_t>(at.a)], &b = free_ps[static_cast<std::size_t>(at.b)];
      const std::int64_t start = std::max({clock, costs[2], a, b});
      a = start + busy[0];
      b = start + busy[1];
      if constexpr (kChanging) {
        const std::int64_t nbytes = in_.bytes[cell], from = start + (nbytes > 0 ? in_.alpha_ps : 0);
        for (const std::int32_t i : {at.a, at.b}) {
          const std::int32_t link = unit.links[static_cast<std::size_t>(i)];
          if (changes_.on(link))
            free_ps[static_cast<std::size_t>(i)] = changes_.through_ps(link, from, nbytes, in_.bytes_per_s[static_cast<std::size_t>(link)]);
        }
      }
      left_[s] = std::max(a, b);
      arrives[cell] = left_[s] + costs[0];
      latest = std::max(latest, left_[s]);
    }
    if (latest > kLatest) return false;
  }
  finish.resize(unit.stations.size());
  for (std::size_t s = 0; s < finish.size(); ++s) {
    const ChainStation& at = unit.stations[s];
    if (at.a < 0 && !in_.adds)  // it waits for all, and passes nothing on
      for (std::size_t i = 0; i < static_cast<std::size_t>(in_.chunks); ++i)
        clock_[s] = std::max(clock_[s], arrives[static_cast<std::size_t>(at.chain) * static_cast<std::size_t>(in_.chunks) + i]);
    finish[s] = std::max(clock_[s], left_[s]);
  }
  return true;
}

}  // namespace ccl_lab::sim
