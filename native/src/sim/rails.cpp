// See rails.hpp.
#include "rails.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "order.hpp"
#include "stream.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kStrip = 16;  // hops at a time

bool good(const RailsInput& in, const RailsOutput& out) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v < std::int64_t{1} << 58; };
  const auto below = [](std::int64_t end) { return [end](std::int64_t v) { return v >= 0 && v < end; }; };
  if (in.nodes < 2 || in.units < 1 || in.nodes % in.units != 0 || in.group < 1 || in.nics < 1 || in.puts < 1 || in.classes < 1) return false;
  const auto units = static_cast<std::size_t>(in.units), group = static_cast<std::size_t>(in.group), classes = static_cast<std::size_t>(in.classes);
  const auto nics = static_cast<std::size_t>(in.nics) * units, lanes = group * (in.channel < 0 ? in.near_bytes.size() : 1);
  const auto times = [&](const auto& column, std::size_t size) { return column.size() == size && all(column, time); };
  const auto rates = [&](const auto& column, std::size_t size) { return column.size() == size && all(column, [](std::int64_t v) { return v >= 0; }); };
  if (!time(in.alpha_ps) || !time(in.hop_ps) || !all(in.near_bytes, time) || in.near_bytes.empty() || in.channel >= std::ssize(in.near_bytes)) return false;
  if (in.nic.empty() || in.nic.size() % lanes != 0 || !all(in.nic, below(in.nics))) return false;
  if (in.map_of.size() != units || !all(in.map_of, below(static_cast<std::int64_t>(in.nic.size() / lanes)))) return false;
  if (in.class_of.size() != units || !all(in.class_of, below(in.classes))) return false;
  if (in.bytes.size() != lanes * static_cast<std::size_t>(in.puts) || !all(in.bytes, [&](std::int64_t v) { return v == -1 || time(v); })) return false;
  if (!rates(in.tx_bytes_per_s, nics) || !rates(in.rx_bytes_per_s, nics) || !times(in.tx_latency_ps, nics) || !times(in.rx_latency_ps, nics)) return false;
  for (const auto& column : {in.near_tx_bytes_per_s, in.near_rx_bytes_per_s})
    if (!rates(column, group * classes)) return false;
  for (const auto& column : {in.near_tx_latency_ps, in.near_rx_latency_ps, in.near_late_ps})
    if (!times(column, group * classes)) return false;
  if (!times(in.late_ps, lanes * units) || !Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0)))) return false;
  for (const auto& ids : {in.tx_link, in.rx_link})
    if (ids.size() != (in.changes.link.empty() ? 0 : nics) || !all(ids, below(in.links))) return false;
  if (!PairTiers::good(in.tiers, in.nodes) || (!in.tiers.latency_ps.empty() && in.units != in.nodes)) return false;
  for (const auto& column : {out.arrived_ps, out.left_ps})
    if (column.size() != lanes * units) return false;
  return out.seen_ps.size() == lanes * classes && out.near_left_ps.size() == lanes * classes && runs(in.target);
}

// A put of all units to those so many further on: rows of units.
struct Rows {
  std::int64_t *a, *b, *left, *arrived;
  const std::int64_t *time_a, *time_b, *latency_a, *latency_b, *late_to;
  std::size_t from;  // local index
};

// What one rank of each unit puts, in units that are plain.
struct Plain {
  std::int64_t *a, *b;
  std::int64_t time;
};

struct Block {
  std::span<const Rows> rows;
  std::span<const Plain> plain;   // empty: not plain
  const std::int64_t* ready;      // by lane
  std::int64_t hop_ps;            // what comes arrives so much later
  const std::int64_t* adds;       // what switches add to each latency, or nullptr: nothing
};

template <bool kAdds>
[[gnu::always_inline]] inline void put(const Rows& rows, const Block& block, std::size_t u, std::size_t v, std::size_t count) {
  const std::int64_t ready = block.ready[rows.from], hop_ps = block.hop_ps;
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w) {
    const std::int64_t start = std::max(std::max(ready, rows.late_to[v + w]), std::max(rows.a[u + w], rows.b[v + w]));
    rows.a[u + w] = start + rows.time_a[u + w];
    rows.b[v + w] = start + rows.time_b[v + w];
    const std::int64_t leaves = std::max(rows.a[u + w], rows.b[v + w]);
    rows.left[u + w] = std::max(rows.left[u + w], leaves);
    const std::int64_t arrives = leaves + rows.latency_a[u + w] + rows.latency_b[v + w] + hop_ps + (kAdds ? block.adds[w] : 0);
    rows.arrived[v + w] = std::max(rows.arrived[v + w], arrives);
  }
}

[[gnu::always_inline]] inline void put_plainly(const Plain& plain, std::int64_t ready, std::size_t u, std::size_t v, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t w = 0; w < count; ++w)
    plain.a[u + w] = plain.b[v + w] = std::max(ready, std::max(plain.a[u + w], plain.b[v + w])) + plain.time;
}

[[gnu::always_inline]] inline void puts_of(const Block& block, std::size_t u, std::size_t v, std::size_t count) {
  for (std::size_t i = 0; i < block.plain.size(); ++i) put_plainly(block.plain[i], block.ready[i], u, v, count);
  for (const Rows& each : block.plain.empty() ? block.rows : std::span<const Rows>{})
    block.adds != nullptr ? put<true>(each, block, u, v, count) : put<false>(each, block, u, v, count);
}

CCL_FOR_TARGETS(puts, (const Block& block, std::size_t u, std::size_t v), puts_of(block, u, v, kWide))

class Rails {
 public:
  Rails(const RailsInput& in, RailsOutput& out)
      : in_(in), out_(out), units_(static_cast<std::size_t>(in.units)), group_(static_cast<std::size_t>(in.group)),
        lanes_(group_ * (in.channel < 0 ? in.near_bytes.size() : 1)),
        nics_(static_cast<std::size_t>(in.nics)), most_(static_cast<std::size_t>(in.puts)), classes_(static_cast<std::size_t>(in.classes)),
        changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))), tiers_(in.tiers, units_),
        table_(3 * lanes_ + 5 * nics_ + 2 * lanes_ * most_, units_), near_tx_(group_ * classes_, 0), near_rx_(near_tx_),
        ready_(kStrip * lanes_ * classes_), puts_(puts_for(in.target)) {}

  RailsStatus run() {
    for (std::size_t l = 0; l < lanes_; ++l)
      for (std::int64_t* const row : {late(l), left(l), arrived(l)}) fill(row, in_.late_ps, l);
    for (std::size_t i = 0; i < out_.seen_ps.size(); ++i) out_.seen_ps[i] = out_.near_left_ps[i] = in_.near_late_ps[i % in_.near_late_ps.size()];
    if (!prepare()) return RailsStatus::overflow;
    // Few units stay in a cache anyway.
    const std::size_t strip = units_ >= 4 * kWide ? kStrip : 1;
    const auto nodes = static_cast<std::size_t>(in_.nodes);
    for (std::size_t d = 1; d < nodes; d += strip) {
      const std::size_t n = std::min(strip, nodes - d);
      first_ = d;
      for (std::size_t i = 0; i < n; ++i) inside(&ready_[i * lanes_ * classes_]);
      strips(units_, d, n, [&](std::size_t hop, std::size_t u, std::size_t end) { round(hop, u, end); });
      if (!fits()) return RailsStatus::overflow;
    }
    inside(nullptr);
    if (!plain_.empty()) settle(nodes);
    for (std::size_t l = 0; l < lanes_; ++l) {
      std::copy_n(left(l), units_, out_.left_ps.begin() + static_cast<std::ptrdiff_t>(l * units_));
      std::copy_n(arrived(l), units_, out_.arrived_ps.begin() + static_cast<std::ptrdiff_t>(l * units_));
    }
    const auto early = [](std::int64_t v) { return v <= kLatest; };
    return std::ranges::all_of(out_.arrived_ps, early) && std::ranges::all_of(out_.left_ps, early) && fits() ? RailsStatus::ok : RailsStatus::overflow;
  }

 private:
  // Rows of the table.
  std::int64_t* left(std::size_t l) { return table_[l]; }
  std::int64_t* arrived(std::size_t l) { return table_[lanes_ + l]; }
  std::int64_t* late(std::size_t l) { return table_[2 * lanes_ + l]; }
  std::int64_t* of_nics(std::size_t kind, std::size_t nic) { return table_[3 * lanes_ + kind * nics_ + nic]; }
  std::int64_t* tx(std::size_t nic) { return of_nics(0, nic); }  // when it is free
  std::int64_t* rx(std::size_t nic) { return of_nics(1, nic); }
  std::int64_t* latency_tx(std::size_t nic) { return of_nics(2, nic); }
  std::int64_t* latency_rx(std::size_t nic) { return of_nics(3, nic); }
  std::int64_t* settled(std::size_t nic) { return of_nics(4, nic); }  // when the receiving side was free when `arrived` was last up to date
  std::int64_t* time_tx(std::size_t i) { return table_[3 * lanes_ + 5 * nics_ + 2 * i]; }  // of the i-th put of the usual map
  std::int64_t* time_rx(std::size_t i) { return table_[3 * lanes_ + 5 * nics_ + 2 * i + 1]; }
  void fill(std::int64_t* row, std::span<const std::int64_t> column, std::size_t i) { std::ranges::copy(column.subspan(i * units_, units_), row); }
  [[nodiscard]] std::size_t nic(std::size_t map, std::size_t l) const { return static_cast<std::size_t>(in_.nic[map * lanes_ + l]); }
  [[nodiscard]] std::int64_t bytes(std::size_t l, std::size_t j) const { return in_.bytes[l * most_ + j]; }
  [[nodiscard]] std::int64_t busy(std::int64_t nbytes, std::int64_t rate) const {
    if (rate == 0) return 0;  // of a NIC that nobody uses
    return (nbytes > 0 ? in_.alpha_ps : 0) + std::min(duration_ps(nbytes, rate), kLatest);
  }

  bool fits() {
    for (std::size_t i = 0; i < nics_; ++i)
      if (std::any_of(tx(i), tx(i) + units_, [](std::int64_t t) { return t > kLatest; })) return false;
    const auto early = [](std::int64_t v) { return v <= kLatest; };
    return std::ranges::all_of(near_tx_, early) && std::ranges::all_of(out_.seen_ps, early);
  }

  // A put of a hop: of local index l, the j-th one. In the order of service, for two maps of local indices to NICs.
  struct Put {
    std::size_t l, j;
    std::int64_t turn;
  };
  const std::vector<Put>& dealt(std::size_t from, std::size_t to) {
    const auto [found, fresh] = dealt_.try_emplace({from, to});
    if (!fresh) return found->second;
    Turns turns(2 * nics_);
    for (std::size_t j = 0; j < most_; ++j)
      for (std::size_t l = 0; l < lanes_; ++l)
        if (bytes(l, j) >= 0)
          found->second.push_back({l, j, turns.next(static_cast<std::int32_t>(nic(from, l)), static_cast<std::int32_t>(nics_ + nic(to, l)))});
    std::ranges::stable_sort(found->second, {}, &Put::turn);
    return found->second;
  }

  // What each put takes on each NIC; false where a strip of them could take more time than fits.
  bool prepare() {
    std::int64_t longest = 0, most = 0;
    for (std::size_t i = 0; i < nics_; ++i) {
      fill(latency_tx(i), in_.tx_latency_ps, i);
      fill(latency_rx(i), in_.rx_latency_ps, i);
    }
    for (const Put& p : dealt(0, 0)) {
      const std::size_t own = nic(0, p.l), at = rows_.size();
      for (std::size_t u = 0; u < units_; ++u) {
        time_tx(at)[u] = busy(bytes(p.l, p.j), in_.tx_bytes_per_s[own * units_ + u]);
        time_rx(at)[u] = busy(bytes(p.l, p.j), in_.rx_bytes_per_s[own * units_ + u]);
      }
      rows_.push_back({tx(own), rx(own), left(p.l), arrived(p.l), time_tx(at), time_rx(at), latency_tx(own), latency_rx(own), late(p.l), p.l});
    }
    for (const std::int64_t each : in_.bytes) most = std::max(most, each);
    for (const auto& rates : {in_.tx_bytes_per_s, in_.rx_bytes_per_s})
      if (const auto least = slowest(rates); least > 0) longest = std::max(longest, busy(most, least));
    odd_.assign(units_, false);
    for (std::size_t u = 0; u < units_; ++u) odd_[u] = in_.map_of[u] != 0;
    for (std::size_t i = 0; i < in_.tx_link.size(); ++i)
      if (changes_.on(in_.tx_link[i]) || changes_.on(in_.rx_link[i])) odd_[i % units_] = true;
    find_plain();
    odd_before_.assign(units_ + 1, 0);
    for (std::size_t u = 0; u < units_; ++u)
      odd_before_[u + 1] = odd_before_[u] + (odd_[u] || (u > 0 && in_.class_of[u] != in_.class_of[u - 1] && u % kWide != 0));
    if (!plain_.empty()) told_from_ = told_from(tiers_, odd_before_, latency_, std::ranges::min_element(plain_, {}, &Plain::time)->time);
    return longest < kLatest / static_cast<std::int64_t>(kStrip * lanes_ * most_);
  }

  static std::int64_t slowest(std::span<const std::int64_t> rates) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t rate : rates)
      if (rate > 0) least = std::min(least, rate);
    return least;
  }

  // Where most units are plain, and each NIC serves one rank, the others are odd, and theirs are timed put by put.
  void find_plain() {
    std::vector<bool> used(nics_, false), odd(odd_);
    for (std::size_t l = 0; l < lanes_; ++l) {
      if (used[nic(0, l)] || bytes(l, 0) <= 0) return;
      used[nic(0, l)] = true;
    }
    if (units_ < 4 * kWide) return;
    const std::size_t like = most_common();
    std::size_t found = 0;
    for (std::size_t u = 0; u < units_; ++u) found += odd[u] = odd[u] || !plainly(u, like);
    if (found * kRare > units_) return;
    odd_ = odd;
    latency_ = latency_tx(nic(0, 0))[like] + latency_rx(nic(0, 0))[like];
    for (std::size_t l = 0; l < lanes_; ++l) {
      plain_.push_back({tx(nic(0, l)), rx(nic(0, l)), 0});
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].from == l) plain_.back().time += time_tx(i)[like];
    }
  }

  // The one among a few units that most of these are like.
  std::size_t most_common() {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      std::size_t alike = 0;
      for (std::size_t k = 0; k < 8; ++k) alike += plainly(k * units_ / 8, i * units_ / 8);
      if (alike > most) best = i * units_ / 8;
      most = std::max(most, alike);
    }
    return best;
  }

  // Whether all NICs that unit u uses are like the first one of another unit, and no rank of it is late.
  bool plainly(std::size_t u, std::size_t like) {
    const std::size_t first = nic(0, 0);
    for (std::size_t l = 0; l < lanes_; ++l) {
      const std::size_t own = nic(0, l), at = own * units_ + u;
      const std::int64_t rate = in_.tx_bytes_per_s[first * units_ + like];
      if (late(l)[u] != 0 || in_.tx_bytes_per_s[at] != rate || in_.rx_bytes_per_s[at] != rate) return false;
      if (latency_tx(own)[u] != latency_tx(first)[like] || latency_rx(own)[u] != latency_rx(first)[like]) return false;
    }
    return true;
  }

  // A put inside each class.
  void inside(std::size_t channel, std::size_t from, std::size_t to) {
    const std::int64_t nbytes = in_.near_bytes[channel];
    for (std::size_t c = 0; c < classes_; ++c) {
      const std::size_t a = from * classes_ + c, b = to * classes_ + c;
      const std::int64_t start = std::max({in_.near_late_ps[a], in_.near_late_ps[b], near_tx_[a], near_rx_[b]});
      near_tx_[a] = std::min(start + busy(nbytes, in_.near_tx_bytes_per_s[a]), 2 * kLatest);
      near_rx_[b] = std::min(start + busy(nbytes, in_.near_rx_bytes_per_s[b]), 2 * kLatest);
      if (in_.channel >= 0 && channel != static_cast<std::size_t>(in_.channel)) continue;
      const std::size_t first = in_.channel >= 0 ? 0 : channel * group_ * classes_;
      const std::int64_t leaves = std::max(near_tx_[a], near_rx_[b]);
      out_.seen_ps[first + b] = std::max(out_.seen_ps[first + b], leaves + in_.near_tx_latency_ps[a] + in_.near_rx_latency_ps[b]);
      out_.near_left_ps[first + a] = std::max(out_.near_left_ps[first + a], leaves);
    }
  }

  // The puts inside nodes that the next hop waits for, or at last those that stay there; and when each rank of a class has seen all so far.
  void inside(std::int64_t* ready) {
    for (std::size_t distance = 1; distance < group_; ++distance)
      for (std::size_t channel = 0; channel < in_.near_bytes.size(); ++channel)
        for (std::size_t from = 0; from < group_; ++from) inside(channel, from, (from + distance) % group_);
    if (ready == nullptr) return;
    for (std::size_t c = 0; c < classes_; ++c)
      for (std::size_t l = 0; l < lanes_; ++l) ready[c * lanes_ + l] = out_.seen_ps[l * classes_ + c];
  }

  // Units u to `end` put to those that are d further on.
  void round(std::size_t hop, std::size_t u, std::size_t end) {
    const std::int64_t* const ready = &ready_[(hop - first_) * lanes_ * classes_];
    const std::size_t d = hop % units_;
    while (u < end) {
      const std::size_t v = (u + d) % units_, count = std::min({kWide - u % kWide, end - u, units_ - v});
      const Added added = !plain_.empty() && hop < told_from_ ? Added{} : tiers_.in_row(u, v, count);
      const Block block{rows_, added ? std::span<const Plain>{} : plain_, ready + static_cast<std::size_t>(in_.class_of[u]) * lanes_, hop_ps(hop),
                        added.same};
      if (odd(u, count) || odd(v, count)) {
        for (std::size_t i = 0; i < count; ++i) one(ready, u + i, v + i, hop);
      } else if (count == kWide) {
        puts_(block, u, v);
      } else {
        puts_of(block, u, v, count);
      }
      u += count;
    }
  }

  [[nodiscard]] std::int64_t hop_ps(std::size_t hop) const { return (in_.nodes - 1 - static_cast<std::int64_t>(hop)) * in_.hop_ps; }
  [[nodiscard]] bool odd(std::size_t first, std::size_t count) const { return odd_before_[first + count] != odd_before_[first]; }

  // One unit to one other, whatever they are like.
  void one(const std::int64_t* ready, std::size_t u, std::size_t v, std::size_t hop) {
    const auto from = static_cast<std::size_t>(in_.map_of[u]), to = static_cast<std::size_t>(in_.map_of[v]);
    const std::int64_t* const mine = ready + static_cast<std::size_t>(in_.class_of[u]) * lanes_;
    if (!plain_.empty())
      for (std::size_t l = 0; l < lanes_; ++l) settle(l, v, hop);
    for (const Put& p : dealt(from, to)) {
      const std::size_t a = nic(from, p.l), b = nic(to, p.l);
      const std::int64_t start = std::max({mine[p.l], late(p.l)[v], tx(a)[u], rx(b)[v]});
      tx(a)[u] = through(start, bytes(p.l, p.j), in_.tx_link, a * units_ + u, in_.tx_bytes_per_s);
      rx(b)[v] = through(start, bytes(p.l, p.j), in_.rx_link, b * units_ + v, in_.rx_bytes_per_s);
      const std::int64_t leaves = std::max(tx(a)[u], rx(b)[v]);
      left(p.l)[u] = std::max(left(p.l)[u], leaves);
      arrived(p.l)[v] = std::max(arrived(p.l)[v], leaves + latency_tx(a)[u] + latency_rx(b)[v] + tiers_.of(u, v, a == b) + hop_ps(hop));
    }
    if (!plain_.empty())
      for (std::size_t l = 0; l < lanes_; ++l) settled(nic(0, l))[v] = rx(nic(0, l))[v];
  }

  [[nodiscard]] std::int64_t through(std::int64_t start, std::int64_t nbytes, std::span<const std::int32_t> links, std::size_t at,
                                     std::span<const std::int64_t> rates) {
    if (!links.empty() && changes_.on(links[at]))
      return changes_.through_ps(links[at], start + (nbytes > 0 ? in_.alpha_ps : 0), nbytes, rates[at]);
    Known& known = known_[(static_cast<std::uint64_t>(nbytes) * 31 + static_cast<std::uint64_t>(rates[at])) % known_.size()];
    if (known.bytes != nbytes || known.rate != rates[at]) known = {nbytes, rates[at], busy(nbytes, rates[at])};
    return start + known.ps;
  }

  // What was put plainly to a rank since this was last asked has arrived by then: the last of it, in the hop before this one, since what comes
  // later arrives later.
  void settle(std::size_t l, std::size_t v, std::size_t hop) {
    std::int64_t &then = settled(nic(0, l))[v], &arrives = arrived(l)[v];
    const std::int64_t now = rx(nic(0, l))[v];
    if (now != then) arrives = std::max(arrives, now + latency_ + hop_ps(hop - 1));
    then = now;
  }

  void settle(std::size_t hop) {
    for (std::size_t l = 0; l < lanes_; ++l) {
      for (std::size_t u = 0; u < units_; ++u) {
        if (in_.map_of[u] != 0) continue;  // always odd
        settle(l, u, hop);
        left(l)[u] = std::max(left(l)[u], tx(nic(0, l))[u]);
      }
    }
  }

  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };

  const RailsInput& in_;
  RailsOutput& out_;
  std::size_t units_, group_, lanes_, nics_, most_, classes_, first_ = 1;
  Changes changes_;
  PairTiers tiers_;
  std::size_t told_from_ = 0;  // the first hop of which tiers are asked for plain puts
  Table table_;
  std::vector<std::int64_t> near_tx_, near_rx_;  // by local index and class
  std::vector<std::int64_t> ready_;              // by hop of a strip, class, local index: when it begins its puts
  std::vector<bool> odd_;                        // by unit: timed put by put
  std::vector<std::size_t> odd_before_;          // how many, with those at which another class begins
  std::vector<Rows> rows_;
  std::vector<Plain> plain_;  // by local index; empty: not plain
  std::int64_t latency_ = 0;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Put>> dealt_;
  std::vector<Known> known_ = std::vector<Known>(256);
  decltype(&puts_base) puts_;
};

}  // namespace

RailsStatus simulate_rails(const RailsInput& in, RailsOutput& out) noexcept try {
  return good(in, out) ? Rails(in, out).run() : RailsStatus::bad_input;
} catch (const std::bad_alloc&) {
  return RailsStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
