// See pairs.hpp.
#include "pairs.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <new>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "pair_after.hpp"
#include "pair_block.hpp"
#include "pair_inputs.hpp"
#include "pair_lasts.hpp"
#include "pair_puts.hpp"
#include "pair_turns.hpp"
#include "stream.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

using Times = std::vector<std::int64_t>;

constexpr int kSparse = 12;  // of 64 units; so many are put one by one

CCL_FOR_TARGETS(puts, (const Block& block, std::size_t u, std::size_t v), puts_of(block, u, v))
CCL_FOR_TARGETS(word, (const Word& puts), any_word(puts))

class Pairs {
 public:
  Pairs(const PairsInput& in, PairsOutput& out)
      : in_(in), out_(out), units_(static_cast<std::size_t>(in.units)), group_(static_cast<std::size_t>(in.group)),
        nics_(static_cast<std::size_t>(in.nics)), channels_(static_cast<std::size_t>(in.channels)), lanes_(channels_ * group_),
        cuts_(in.cuts, group_, nics_), tiers_(in.tiers, units_), bytes_(cuts_.any() ? in.cuts.bytes : in.bytes),
        changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))),
        table_(2 * lanes_ + 3 * group_ + (5 + 2 * bytes_.size()) * nics_, units_),
        after_(in), lasts_(static_cast<std::size_t>(in.nodes), units_, lanes_, group_), puts_to_(puts_for(in.target)),
        word_to_(word_for(in.target)) {}

  PairsStatus run() {
    for (std::size_t rank = 0; rank < group_; ++rank) fill(late(rank), in_.late_ps, rank);
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      for (std::int64_t* const row : {left(lane), arrived(lane)}) fill(row, in_.late_ps, lane % group_);
    const bool repeats = in_.nodes == 1 || (deal() && in_.odd_node.empty());
    if (copies()) {
      if (const PairsStatus status = after_.find(puts_, repeats, in_.most_work); status != PairsStatus::ok) return status;
      time_copies();
    }
    if (in_.nodes > 1) {
      if (!prepare()) return PairsStatus::overflow;
      const PairsStatus status = repeats ? by_blocks() : by_turns();
      if (status != PairsStatus::ok) return status;
    }
    if (asked() && in_.nodes > 1) lasts_.places(in_.flushes, out_.places);
    if (plain()) settle();
    inside();
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      std::copy_n(left(lane), units_, out_.left_ps.begin() + static_cast<std::ptrdiff_t>(lane * units_));
      std::copy_n(arrived(lane), units_, out_.arrived_ps.begin() + static_cast<std::ptrdiff_t>(lane * units_));
    }
    const auto fits = [](std::int64_t v) { return v <= kLatest; };
    return std::ranges::all_of(out_.arrived_ps, fits) && std::ranges::all_of(out_.left_ps, fits) ? PairsStatus::ok : PairsStatus::overflow;
  }

 private:
  // Rows of the table.
  std::int64_t* left(std::size_t lane) { return table_[lane]; }
  std::int64_t* arrived(std::size_t lane) { return table_[lanes_ + lane]; }
  std::int64_t* late(std::size_t rank) { return table_[2 * lanes_ + rank]; }
  std::int64_t* copy(std::size_t rank) { return table_[2 * lanes_ + group_ + rank]; }  // what one takes
  std::int64_t* longer(std::size_t rank) { return table_[2 * lanes_ + 2 * group_ + rank]; }  // and a longer one more
  std::int64_t* of_nics(std::size_t kind, std::size_t nic) { return table_[2 * lanes_ + 3 * group_ + kind * nics_ + nic]; }
  std::int64_t* tx(std::size_t nic) { return of_nics(0, nic); }  // when it is free
  std::int64_t* rx(std::size_t nic) { return of_nics(1, nic); }
  std::int64_t* latency_tx(std::size_t nic) { return of_nics(2, nic); }
  std::int64_t* latency_rx(std::size_t nic) { return of_nics(3, nic); }
  std::int64_t* settled(std::size_t nic) { return of_nics(4, nic); }  // when the receiving side was free when `arrived` was last up to date
  std::int64_t* time_tx(std::size_t size, std::size_t nic) { return of_nics(5 + 2 * size, nic); }  // of a put
  std::int64_t* time_rx(std::size_t size, std::size_t nic) { return of_nics(6 + 2 * size, nic); }
  void fill(std::int64_t* row, std::span<const std::int64_t> column, std::size_t i) { std::ranges::copy(column.subspan(i * units_, units_), row); }

  // Whether it matters where lanes come to their sums: not in nominal time in which nothing takes a tick.
  [[nodiscard]] bool asked() const {
    return !out_.places.empty() && channels_ > 1 && std::ranges::any_of(in_.bytes, [](std::int64_t n) { return n > 0; });
  }

  [[nodiscard]] std::size_t round_of(const PairPut& p, std::size_t further) const { return after_.round_of(p.from, p.to, further); }

  [[nodiscard]] bool copies() const { return !in_.copy_ps.empty(); }

  // What a copy takes, and how much longer one of a lane with longer parts.
  void time_copies() {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t rank = lane % group_, short_one = after_.shortest() * group_ + rank;
      if (lane < group_) fill(copy(rank), in_.copy_ps, short_one);
      for (std::size_t u = 0; after_.is_longer(lane) && u < units_; ++u)
        longer(rank)[u] = in_.copy_ps[lane * units_ + u] - in_.copy_ps[short_one * units_ + u];
    }
  }

  // The puts of a block, in the order of service.
  bool deal() {
    if (cuts_.any()) {
      cut_.resize(cuts_.kinds() * cuts_.kinds());
      for (const CutPut& p : cuts_.puts(0, 0)) puts_.push_back({p.size * group_ + p.from, p.size * group_ + p.to, p.a, p.b, p.size, p.from, p.to, 0});
      like_.resize(group_ * group_);
      for (std::size_t i = 0; i < puts_.size(); ++i) like_[puts_[i].from_rank * group_ + puts_[i].to_rank] = i;
      return true;
    }
    return deal_block(in_, puts_);
  }

  PairsStatus by_blocks() {
    // Strips of rounds that stay in a cache; few units do anyway.
    const std::size_t strip = units_ >= 4 * kWide ? kWide : 1, nodes = static_cast<std::size_t>(in_.nodes);
    for (std::size_t d = 1; d < nodes; d += strip) {
      afters_.clear();
      for (std::size_t further = d; copies() && further < std::min(d + strip, nodes); ++further)
        for (const PairPut& p : puts_) afters_.push_back(after_(p, further));
      strips(units_, d, std::min(strip, nodes - d), [&](std::size_t further, std::size_t u, std::size_t end) {
        round(further % units_, copies() ? afters_.data() + (further - d) * puts_.size() : nullptr, u, end);
      });
      if (late_nics()) return PairsStatus::overflow;
    }
    const std::int64_t before = (in_.nodes - 2) * (puts_.back().turn + 1);
    for (const PairPut& p : puts_)
      if (asked()) lasts_.put(before + p.turn, round_of(p, nodes - 1), p.from, p.to);
    return PairsStatus::ok;
  }

  bool late_nics() {
    for (std::size_t nic = 0; nic < nics_; ++nic)
      if (std::any_of(tx(nic), tx(nic) + units_, [](std::int64_t t) { return t > kLatest; })) return true;
    return false;
  }

  // Turn by turn, each for all nodes; where these are alike the turns of one are those of all.
  PairsStatus by_turns() {
    PairTurns turns = dealer(in_);
    if (asked() && !in_.odd_node.empty()) lasts_.count_puts(static_cast<std::uint64_t>(in_.nodes - 1) * group_);
    while (turns.next()) {
      for (const PutsOfTurn& some : turns.puts()) word(some);
      for (const SinglePut& some : turns.singles()) single(some);
      if (++out_.dealt % kWide == 0 && late_nics()) return PairsStatus::overflow;
      if (turns.work() > in_.most_work) return PairsStatus::too_long;
    }
    return late_nics() ? PairsStatus::overflow : PairsStatus::ok;
  }

  // What nodes put in one turn from one lane to one that is as far.
  void word(const PutsOfTurn& some) {
    const Rows& rows = rows_[some.row];
    const std::size_t u = std::size_t{64} * some.word, to = u + some.further, v = to < units_ ? to : to - units_;
    const std::size_t count = std::min<std::size_t>(64, units_ - u);
    if (asked()) {
      const PairPut& p = puts_[some.row];
      lasts_.put(out_.dealt, round_of(p, some.further), p.from, p.to, u, v, some.from);
    }
    const bool wraps = v + count > units_, by_node = after_.by_node() || tiers_.any();
    const After then = after_.by_node() ? After{} : after_(puts_[some.row], some.further);
    if (!by_node && !wraps && !odd(u, count) && !odd(v, count) && std::popcount(some.from) > kSparse) {
      word_to_({rows, plain() ? &times_[some.row] : nullptr, then, after_.copies(), some.from, u, v});
      return;
    }
    for (std::uint64_t bits = some.from; bits != 0; bits &= bits - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(bits));
      const std::size_t from = u + i, at = v + i < units_ ? v + i : v + i - units_;
      if (by_node || odd_[from] || odd_[at]) {
        one(puts_[some.row], rows, after_.by_node() ? after_(puts_[some.row], some.further, from, at) : then, from, at);
      } else {
        few(some.row, then, from, at, 1);
      }
    }
  }

  // A put that has NICs of its own; where one node is dealt for, all nodes put so.
  void single(const SinglePut& some) {
    PairPut at = puts_[some.row];
    const std::size_t round = round_of(at, some.further);
    if (in_.odd_node.empty()) {
      if (asked()) lasts_.put(out_.dealt, round, at.from, at.to);
      return row(some.row, some.further, 0, units_);
    }
    if (asked()) lasts_.put(out_.dealt, round, at.from, at.to, some.from, some.to, 1);
    at.a = some.a;
    at.b = some.b;
    one(at, rows_of(at), after_(at, some.further, some.from, some.to), some.from, some.to);
  }

  // What each put takes on each NIC; false where a strip of them could take more time than fits.
  bool prepare() {
    std::int64_t longest = 0;
    for (std::size_t nic = 0; nic < nics_; ++nic) {
      fill(latency_tx(nic), in_.tx_latency_ps, nic);
      fill(latency_rx(nic), in_.rx_latency_ps, nic);
      for (std::size_t size = 0; size < bytes_.size(); ++size) {
        for (std::size_t u = 0; u < units_; ++u) {
          time_tx(size, nic)[u] = busy(bytes_[size], in_.tx_bytes_per_s[nic * units_ + u]);
          time_rx(size, nic)[u] = busy(bytes_[size], in_.rx_bytes_per_s[nic * units_ + u]);
          longest = std::max({longest, time_tx(size, nic)[u], time_rx(size, nic)[u]});
        }
      }
    }
    odd_.assign(units_, false);
    for (std::size_t i = 0; i < in_.tx_link.size(); ++i)
      if (changes_.on(in_.tx_link[i]) || changes_.on(in_.rx_link[i])) odd_[i % units_] = true;
    for (const std::int32_t node : in_.odd_node) odd_[static_cast<std::size_t>(node)] = true;
    for (std::size_t u = 0; cuts_.any() && u < units_; ++u)
      if (cuts_.kind(u) != 0) odd_[u] = true;
    for (const PairPut& p : puts_) rows_.push_back(rows_of(p));
    find_plain();
    odd_before_.assign(units_ + 1, 0);
    for (std::size_t u = 0; u < units_; ++u) odd_before_[u + 1] = odd_before_[u] + odd_[u];
    if (plain()) told_from_ = told_from(tiers_, odd_before_, latency_, static_cast<std::int64_t>(group_) * std::ranges::min(times_));
    return longest < kLatest / static_cast<std::int64_t>(kWide * std::max(puts_.size(), group_ * in_.cuts.size.size()));
  }

  Rows rows_of(const PairPut& p) {
    return {tx(p.a), rx(p.b), left(p.from), arrived(p.to), time_tx(p.size, p.a), time_rx(p.size, p.b), latency_tx(p.a), latency_rx(p.b),
            late(p.from_rank), late(p.to_rank), copy(p.from_rank), copy(p.to_rank), longer(p.from_rank), longer(p.to_rank), p.a == p.b};
  }

  // Where most units are plain, and each NIC serves one lane, the others are odd, and theirs are timed put by put.
  void find_plain() {
    std::vector<bool> used(nics_, false);
    for (const std::int32_t nic : in_.nic) used[static_cast<std::size_t>(nic)] = true;
    if (lanes_ != nics_ || !std::ranges::all_of(used, std::identity{}) || units_ < 4 * kWide || copies()) return;
    std::vector<bool> odd(odd_);
    const std::size_t like = most_common();
    std::size_t found = 0;
    for (std::size_t u = 0; u < units_; ++u)
      if (!odd[u] && !plainly(u, like)) found += odd[u] = true;  // those that are odd are timed put by put anyway
    if (found * kRare > units_ || in_.bytes[0] == 0) return;
    odd_ = odd;
    for (const PairPut& p : puts_) times_.push_back(time_tx(p.size, 0)[like]);
    latency_ = latency_tx(0)[like] + latency_rx(0)[like];
  }

  // The one among a few units that most of these are like.
  std::size_t most_common() {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      std::size_t alike = 0;
      for (std::size_t k = 0; k < 8; ++k) alike += plainly(k * units_ / 8, i * units_ / 8);
      if (alike > most) std::tie(best, most) = std::pair{i * units_ / 8, alike};
    }
    return best;
  }

  // Whether all lanes of a unit are as the first one of another, and no rank of it is late.
  bool plainly(std::size_t u, std::size_t like) {
    for (std::size_t rank = 0; rank < group_; ++rank)
      if (late(rank)[u] != 0) return false;
    for (std::size_t nic = 0; nic < nics_; ++nic) {
      if (latency_tx(nic)[u] != latency_tx(0)[like] || latency_rx(nic)[u] != latency_rx(0)[like]) return false;
      for (std::size_t c = 0; c < channels_; ++c)
        if (time_tx(c, nic)[u] != time_tx(c, 0)[like] || time_rx(c, nic)[u] != time_tx(c, 0)[like]) return false;
    }
    return true;
  }

  [[nodiscard]] bool plain() const { return !times_.empty(); }

  // What was put plainly to a lane since this was last asked has arrived by then: the last of it, since what comes later arrives later.
  void settle(const PairPut& p, std::size_t v) {
    std::int64_t &arrives = arrived(p.to)[v], &then = settled(p.b)[v];
    const std::int64_t now = rx(p.b)[v];
    if (now != then) arrives = std::max(arrives, now + latency_);
    then = now;
  }

  void settle() {
    for (std::size_t i = 0; i < lanes_; ++i) {  // each lane once
      const PairPut& p = *std::ranges::find(puts_, i, &PairPut::to);
      for (std::size_t u = 0; u < units_; ++u) {
        settle(p, u);
        const std::size_t own = static_cast<std::size_t>(in_.nic[i]);
        if (!odd_[u]) left(i)[u] = std::max(left(i)[u], tx(own)[u]);
      }
    }
  }

  [[nodiscard]] std::int64_t busy(std::int64_t nbytes, std::int64_t rate) const {
    if (rate == 0) return 0;  // of a NIC that nobody uses
    return (nbytes > 0 ? in_.alpha_ps : 0) + std::min(duration_ps(nbytes, rate), kLatest);
  }

  // Units u to `end` put to those that are d further on; after: of each put of a block, or nullptr.
  void round(std::size_t d, const After* after, std::size_t u, std::size_t end) {
    while (u < end) {
      const std::size_t v = (u + d) % units_, count = std::min({kWide, end - u, units_ - v});
      const Added added = plain() && d < told_from_ ? Added{} : tiers_.in_row(u, v, count);
      if (odd(u, count) || odd(v, count)) {
        count == kWide ? among_odd(after, u, v, added) : around_odd(after, u, v, count, added);
      } else if (count == kWide) {
        puts_to_({rows_, times_, after, after_.copies(), added}, u, v);
      } else {
        blocks(after, u, v, count, added);
      }
      u += count;
    }
  }

  // Blocks of so many units, which are not odd.
  void blocks(const After* after, std::size_t u, std::size_t v, std::size_t count, const Added& added) {
    for (std::size_t i = 0; i < rows_.size(); ++i) few(i, after != nullptr ? after[i] : After{}, u, v, count, added);
  }

  // All at once, and those of which a unit is odd once more, from what was there before: that takes less than to pass over them.
  void among_odd(const After* after, std::size_t u, std::size_t v, const Added& added) {
    numbers_.clear();
    for (std::size_t i = 0; i < kWide; ++i)
      if (odd_[u + i] || odd_[v + i]) changed(u + i, v + i, [&](std::int64_t number) { numbers_.push_back(number); });
    puts_to_({rows_, times_, after, after_.copies(), added}, u, v);
    auto before = numbers_.cbegin();
    for (std::size_t i = 0; i < kWide; ++i)
      if (odd_[u + i] || odd_[v + i]) changed(u + i, v + i, [&](std::int64_t& number) { number = *before++; });
    for (std::size_t i = 0; i < kWide; ++i)
      if (odd_[u + i] || odd_[v + i]) block(after, u + i, v + i);
  }

  // What the puts of unit u to unit v may change.
  void changed(std::size_t u, std::size_t v, const auto& each) {
    for (std::size_t nic = 0; nic < nics_; ++nic) each(tx(nic)[u]), each(rx(nic)[v]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) each(left(lane)[u]), each(arrived(lane)[v]);
  }

  // No two of these blocks share a NIC.
  void around_odd(const After* after, std::size_t u, std::size_t v, std::size_t count, const Added& added) {
    for (std::size_t i = 0, first = 0; i <= count; ++i) {
      const bool is_odd = i < count && (odd_[u + i] || odd_[v + i]);
      if (i < count && !is_odd) continue;
      if (first < i) blocks(after, u + first, v + first, i - first, added.from(first));
      if (is_odd) block(after, u + i, v + i);
      first = i + 1;
    }
  }

  [[nodiscard]] bool odd(std::size_t first, std::size_t count) const { return odd_before_[first + count] != odd_before_[first]; }

  // A put of units that are not odd.
  void few(std::size_t i, const After& after, std::size_t u, std::size_t v, std::size_t count, const Added& added = {}) {
    if (added) return put<Copies::some_longer, true>(rows_[i], after, u, v, count, added.of(rows_[i].same_nic));
    if (plain()) return put_plainly(rows_[i], times_[i], u, v, count);
    if (!copies()) return put<Copies::none>(rows_[i], after, u, v, count);
    put<Copies::some_longer>(rows_[i], after, u, v, count);
  }

  // The puts of one row, of units u to `end` to those so many further on.
  void row(std::size_t i, std::size_t further, std::size_t u, std::size_t end) {
    const After then = after_(puts_[i], further);
    while (u < end) {
      const std::size_t v = (u + further) % units_, count = std::min({kWide, end - u, units_ - v});
      if (tiers_.any() || odd(u, count) || odd(v, count)) {
        for (std::size_t w = 0; w < count; ++w) one(puts_[i], rows_[i], then, u + w, v + w);
      } else {
        few(i, then, u, v, count);
      }
      u += count;
    }
  }

  // A block of one unit to one other.
  void block(const After* after, std::size_t u, std::size_t v) {
    if (cuts_.any() && (cuts_.kind(u) != 0 || cuts_.kind(v) != 0)) {
      return odd_block(cut(cuts_.kind(u), cuts_.kind(v)), after, u, v);
    }
    for (std::size_t i = 0; i < puts_.size(); ++i) one(puts_[i], rows_[i], after != nullptr ? after[i] : After{}, u, v);
  }

  // Of nodes that exchange pieces of their own.
  struct Cut {
    std::vector<std::pair<PairPut, Rows>> puts;
    std::vector<PairPut> first;  // that comes over each NIC
    OddBlock block;
  };

  void odd_block(const Cut& cut, const After* after, std::size_t u, std::size_t v) {
    if (after == nullptr && in_.tx_link.empty()) {
      for (std::size_t i = 0; plain() && i < cut.first.size(); ++i) settle(cut.first[i], v);
      cut.block(u, v, tiers_, numbers_);
      for (std::size_t i = 0; plain() && i < cut.first.size(); ++i) settled(cut.first[i].b)[v] = rx(cut.first[i].b)[v];
      return;
    }
    for (const auto& [put, rows] : cut.puts) one(put, rows, after != nullptr ? after[like_[put.from * group_ + put.to]] : After{}, u, v);
  }

  // What a node of one kind puts to a node of another one; as lanes, its ranks have that of channel 0.
  const Cut& cut(std::size_t from, std::size_t to) {
    Cut& found = cut_[from * cuts_.kinds() + to];
    if (found.puts.empty()) {
      for (const CutPut& p : cuts_.puts(from, to)) {
        const PairPut put{p.from, p.to, p.a, p.b, p.size, p.from, p.to, 0};
        const Rows rows = rows_of(put);
        found.puts.emplace_back(put, rows);
        found.block.add(rows);
        if (std::ranges::find(found.first, p.b, &PairPut::b) == found.first.end()) found.first.push_back(put);
      }
    }
    return found;
  }

  // One put of one unit to one other, whatever they are like.
  void one(const PairPut& p, const Rows& at, const After& after, std::size_t u, std::size_t v) {
    if (plain()) settle(p, v);
    const std::int64_t start = std::max({at.late_from[u], at.late_to[v], at.a[u], at.b[v]});
    at.a[u] = start + at.time_a[u];
    at.b[v] = start + at.time_b[v];
    if (!in_.tx_link.empty()) {
      const std::size_t a = p.a * units_ + u, b = p.b * units_ + v;
      at.a[u] = through(start, p, in_.tx_link[a], at.time_a[u], in_.tx_bytes_per_s[a]);
      at.b[v] = through(start, p, in_.rx_link[b], at.time_b[v], in_.rx_bytes_per_s[b]);
    }
    const std::int64_t leaves = std::max(at.a[u], at.b[v]);
    at.left[u] = std::max(at.left[u], leaves + after_left<Copies::some_longer>(at, after, u));
    const std::int64_t arrives = leaves + at.latency_a[u] + at.latency_b[v] + tiers_.of(u, v, at.same_nic);
    at.arrived[v] = std::max(at.arrived[v], arrives + after_arrived<Copies::some_longer>(at, after, v));
    if (plain()) settled(p.b)[v] = at.b[v];
  }

  [[nodiscard]] std::int64_t through(std::int64_t start, const PairPut& put, std::int32_t link, std::int64_t time, std::int64_t rate) const {
    const std::int64_t nbytes = bytes_[put.size];
    return changes_.on(link) ? changes_.through_ps(link, start + (nbytes > 0 ? in_.alpha_ps : 0), nbytes, rate) : start + time;
  }

  // The rounds of the own node: in each, every rank puts to another one.
  void inside() {
    Times tx(group_ * units_, 0), rx(tx);
    const std::span<const std::int64_t> sizes = cuts_.any() ? in_.cuts.near_bytes : in_.bytes;
    for (std::size_t k = 1; k < group_; ++k) {
      for (std::size_t lane = 0; lane < sizes.size() * group_; ++lane) {
        const std::size_t channel = lane / group_, from = lane % group_, to = (from + k) % group_, others = static_cast<std::size_t>(in_.nodes - 1);
        for (std::size_t u = 0; u < units_; ++u) {
          const After then = after_.of(lane, channel * group_ + to, others * group_ + k - 1, others * group_ + group_ - k - 1, u, u);
          const std::size_t a = from * units_ + u, b = to * units_ + u;
          const std::int64_t start = std::max({late(from)[u], late(to)[u], tx[a], rx[b]});
          tx[a] = std::min(start + busy(sizes[channel], in_.near_tx_bytes_per_s[a]), 2 * kLatest);
          rx[b] = std::min(start + busy(sizes[channel], in_.near_rx_bytes_per_s[b]), 2 * kLatest);
          const std::int64_t leaves = std::max(tx[a], rx[b]);
          std::int64_t &gone = left(lane)[u], &came = arrived(channel * group_ + to)[u];
          gone = std::max(gone, leaves + then.from * copy(from)[u] + then.longer_from * longer(from)[u]);
          const std::int64_t arrives = leaves + in_.near_tx_latency_ps[a] + in_.near_rx_latency_ps[b];
          came = std::max(came, arrives + then.to * copy(to)[u] + then.longer_to * longer(to)[u]);
        }
      }
    }
  }

  const PairsInput& in_;
  PairsOutput& out_;
  std::size_t units_, group_, nics_, channels_, lanes_;
  PairCuts cuts_;
  PairTiers tiers_;
  std::size_t told_from_ = 0;            // the first round of which tiers are asked for plain puts
  std::span<const std::int64_t> bytes_;  // of a put of each size
  std::vector<Cut> cut_;                 // by kinds of both nodes; empty: not asked for yet
  std::vector<std::size_t> like_;        // by ranks of both ends: which of `puts_`, of one channel, has as many copies after it
  std::vector<std::int64_t> numbers_;    // of an odd block
  Changes changes_;
  Table table_;
  std::vector<bool> odd_;                 // by unit: timed put by put
  std::vector<std::size_t> odd_before_;  // how many
  std::vector<std::int64_t> times_;      // of plain puts; empty: not plain
  std::int64_t latency_ = 0;
  std::vector<PairPut> puts_;
  std::vector<Rows> rows_;
  PairAfter after_;
  std::vector<After> afters_;  // of a strip of rounds: [rounds][puts of a block]
  PairLasts lasts_;
  decltype(&puts_base) puts_to_;
  decltype(&word_base) word_to_;
};

}  // namespace

PairsStatus simulate_pairs(const PairsInput& in, PairsOutput& out) noexcept try {
  return good(in, out) ? Pairs(in, out).run() : PairsStatus::bad_input;
} catch (const std::bad_alloc&) {
  return PairsStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
