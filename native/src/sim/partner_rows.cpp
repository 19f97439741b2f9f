// See partner_rows.hpp.
#include "partner_rows.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "partner_octet.hpp"
#include "partner_takes.hpp"
#include "partner_tiers.hpp"
#include "stream.hpp"
#include "vectors.hpp"

namespace ccl_lab::sim {
namespace {

constexpr int kBatchBits = 12;  // of a batch: its place in its tick
constexpr std::int32_t kLastPlace = (1 << kBatchBits) - 1;
constexpr std::int64_t kMostRanks = 1 << 18;  // a step takes a tick at most, and that many fit beside the place
constexpr std::size_t kSteps = 16, kRow = 128;

// Rows of numbers from some rank on: times, the batch in which it puts, ticks at which its NIC is free on both sides, and the batch of the
// last put to it.
struct Row {
  std::int64_t *clock, *tx, *rx;
  std::int32_t *batch, *tx_tick, *rx_tick, *came;
};

struct RowTakes {
  std::int64_t *tx, *rx, *tx_latency, *rx_latency, *left;
};

// What is not in order, and puts that come in one batch with the one before, as lanes say.
struct Seen {
  I32x8 wrong{}, together{};
};

// Eight ranks of a row meet eight of another one, backwards; added: to latencies, if kAdds.
template <bool kAlike, bool kAdds>
[[gnu::always_inline]] inline void meet_eight(Row one, Row other, RowTakes takes, RowTakes its_takes, const Crossing& back,
                                              const Alike& alike, const std::int64_t* added, Seen& seen) {
  const auto batch = loaded<I32x8>(one.batch), tx_tick = loaded<I32x8>(one.tx_tick), rx_tick = loaded<I32x8>(one.rx_tick);
  const auto brought = [&](const std::int32_t* column) { return crossed(loaded<I32x8>(column), back.by); };
  const I32x8 its_batch = brought(other.batch), its_tx_tick = brought(other.tx_tick), its_rx_tick = brought(other.rx_tick);
  const auto came = loaded<I32x8>(one.came);
  const I32x8 its_came = brought(other.came), last = latest(batch, its_batch);
  const I32x8 leaves = latest(batch >> kBatchBits, latest(tx_tick, its_rx_tick)) + 1;
  const I32x8 its_leaves = latest(its_batch >> kBatchBits, latest(its_tx_tick, rx_tick)) + 1;
  seen.wrong |= (came > its_batch) | (its_came > batch) | ((last & kLastPlace) == kLastPlace);
  seen.together -= (came == its_batch) + (its_came == batch);
  store(one.came, its_batch);
  store(other.came, crossed(batch, back.by));
  store(one.tx_tick, leaves);
  store(one.rx_tick, its_leaves);
  store(other.tx_tick, crossed(its_leaves, back.by));
  store(other.rx_tick, crossed(leaves, back.by));
  store(one.batch, its_leaves > (last >> kBatchBits) ? its_leaves << kBatchBits : last + 1);
  store(other.batch, crossed(leaves > (last >> kBatchBits) ? leaves << kBatchBits : last + 1, back.by));
#pragma GCC unroll 2
  for (std::size_t k = 0; k < 2; ++k)
    pass<kAlike, true, kAdds>(one, other, &takes, &its_takes, back, k, alike, added, I64x4{}, I64x4{}, I64x4{});
}

// All columns of ranks, and of what they take.
struct Ranks {
  Row row;
  RowTakes takes;

  [[gnu::always_inline]] Row at(std::size_t r) const {
    return {row.clock + r, row.tx + r, row.rx + r, row.batch + r, row.tx_tick + r, row.rx_tick + r, row.came + r};
  }
  [[gnu::always_inline]] RowTakes takes_at(std::size_t r) const {
    return {takes.tx + r, takes.rx + r, takes.tx_latency + r, takes.rx_latency + r, takes.left + r};
  }
};

// Ranks low, low + 1, … meet those from high on, backwards: `count` of them, a multiple of eight.
template <bool kAlike, bool kAdds>
[[gnu::always_inline]] inline void meet_row(const Ranks& all, std::size_t low, std::size_t high, std::size_t count, const Crossing& back,
                                            const Alike& alike, const std::int64_t* added, Seen& seen) {
  Seen here = seen;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t r = low + i, p = high - i - (kLanes - 1);
    meet_eight<kAlike, kAdds>(all.at(r), all.at(p), all.takes_at(r), all.takes_at(p), back, alike, added + i, here);
  }
  seen = here;
}

[[gnu::always_inline]] inline void tiers_of_row(const PartnerTiers& tiers, std::size_t low, std::size_t high, std::size_t count,
                                                const Crossing& back, std::int64_t* added) {
  for (std::size_t i = 0; i < count; i += kLanes) tiers.of_eight(low + i, high - i - (kLanes - 1), back, added + i);
}

CCL_FOR_TARGETS(row_alike,
                (const Ranks& all, std::size_t low, std::size_t high, std::size_t count, const Crossing& back, const Alike& alike,
                 const std::int64_t* added, Seen& seen),
                (meet_row<true, false>(all, low, high, count, back, alike, added, seen)))
CCL_FOR_TARGETS(row_any,
                (const Ranks& all, std::size_t low, std::size_t high, std::size_t count, const Crossing& back, const Alike& alike,
                 const std::int64_t* added, Seen& seen),
                (meet_row<false, false>(all, low, high, count, back, alike, added, seen)))
CCL_FOR_TARGETS(row_adds,
                (const Ranks& all, std::size_t low, std::size_t high, std::size_t count, const Crossing& back, const Alike& alike,
                 const std::int64_t* added, Seen& seen),
                (meet_row<false, true>(all, low, high, count, back, alike, added, seen)))
CCL_FOR_TARGETS(row_tiers,
                (const PartnerTiers& tiers, std::size_t low, std::size_t high, std::size_t count, const Crossing& back, std::int64_t* added),
                (tiers_of_row(tiers, low, high, count, back, added)))

// A rank's links inside its node.
struct Near {
  Takes takes;
  std::int64_t tx = 0, rx = 0;
  std::int32_t came = 0;
};

class InRows {
 public:
  InRows(const PartnersInput& in, PartnersOutput& out)
      : in_(in), out_(out), n_(static_cast<std::size_t>(in.ranks)), back_(crossing([](std::size_t l) { return kLanes - 1 - l; })),
        odd_(n_ + 1, 0), near_(n_), tiers_(in.tiers, n_, 0, n_, n_, kRow, std::identity{}), row_alike_(row_alike_for(in.target)),
        row_any_(row_any_for(in.target)), row_adds_(row_adds_for(in.target)), row_tiers_(row_tiers_for(in.target)) {
    for (auto& column : times_) column.assign(n_, 0);
    for (auto& column : ticks_) column.assign(n_, &column == &ticks_[3] ? -1 : 0);
    all_ = {{times_[0].data(), times_[1].data(), times_[2].data(), ticks_[0].data(), ticks_[1].data(), ticks_[2].data(), ticks_[3].data()},
            {times_[3].data(), times_[4].data(), times_[5].data(), times_[6].data(), times_[7].data()}};
  }

  PartnersStatus run() {
    if (!prepare()) return PartnersStatus::too_long;
    for (std::size_t s = 0; s < n_ && !wrong_; s += kSteps) {
      const std::size_t steps = std::min(kSteps, n_ - s);
      block(s, steps, n_, s + 1);  // whose ranks are met by those of the other block in later steps alone
      block(s, steps, 0, 0);
      for (std::size_t l = 0; l < kLanes; ++l) wrong_ = wrong_ || seen_.wrong[l] != 0, turns_ += 2 * std::exchange(seen_.together[l], 0);
      if (s % 4096 == 0 && ended() > kLatest) return PartnersStatus::overflow;
    }
    if (wrong_) return PartnersStatus::out_of_order;
    out_.puts = in_.ranks * (in_.ranks - 1), out_.turns = turns_;
    return ended() > kLatest ? PartnersStatus::overflow : PartnersStatus::ok;
  }

 private:
  bool prepare() {
    std::int64_t longest = std::max(std::ranges::max(in_.begin_ps) / in_.ranks, tiers_.most());
    std::map<Takes, std::size_t> kinds;
    std::vector<Takes> far(n_);
    std::vector<std::size_t> first(n_, n_);
    for (std::size_t r = 0; r < n_; ++r) {
      const auto nic = static_cast<std::size_t>(in_.nic[r]), rank = static_cast<std::size_t>(in_.nics) + r;
      far[r] = takes_of(in_, 2 * nic, 2 * nic + 1);
      near_[r] = {takes_of(in_, 2 * rank, 2 * rank + 1), in_.late_ps[r], in_.late_ps[r], -1};
      longest = std::max({longest, far[r].longest(), near_[r].takes.longest()});
      ++kinds[far[r]];
      std::size_t& from = first[static_cast<std::size_t>(in_.node[r])];
      from = std::min(from, r);
      reach_ = std::max(reach_, r - from + 1);
      all_.row.clock[r] = in_.begin_ps[r];
      all_.row.tx[r] = all_.row.rx[r] = all_.takes.left[r] = in_.late_ps[r];  // nothing is put to a rank before it enters
      all_.takes.tx[r] = far[r].tx_ps, all_.takes.rx[r] = far[r].rx_ps;
      all_.takes.tx_latency[r] = far[r].tx_latency_ps, all_.takes.rx_latency[r] = far[r].rx_latency_ps;
    }
    const Takes usual = std::ranges::max_element(kinds, {}, [](const auto& each) { return each.second; })->first;
    alike_ = {usual.tx_ps, usual.tx_latency_ps + usual.rx_latency_ps};
    for (std::size_t r = 0; r < n_; ++r) odd_[r + 1] = odd_[r] + (far[r] != usual || usual.tx_ps != usual.rx_ps);
    return longest < (kLatest << 1) / (8 * in_.ranks);
  }

  // Steps s, s + 1, … between ranks whose numbers have the sum `wrap` + s, of which the least is `low`, one more in each further step.
  void block(std::size_t s, std::size_t steps, std::size_t wrap, std::size_t low) {
    const auto sum = [&](std::size_t j) { return wrap + s + j; };
    const auto least = [&](std::size_t j) { return wrap > 0 ? low + j : low; };
    std::size_t r = least(steps - 1);
    for (std::size_t j = 0; j < steps; ++j) meet_up_to(least(j), r, sum(j));
    for (; 2 * (r + kRow) + reach_ <= sum(0); r += kRow)
      for (std::size_t j = 0; j < steps; ++j) row(r, sum(j) - r, kRow);
    for (std::size_t j = 0; j < steps; ++j) meet_up_to(r, n_, sum(j));
  }

  // Ranks from r on, to `end` at most, meet those that make up the sum and are more.
  void meet_up_to(std::size_t r, std::size_t end, std::size_t sum) {
    if (2 * r + 2 * kLanes + reach_ <= sum && r + kLanes <= end) {
      const std::size_t count = std::min((sum - reach_) / 2 - r, end - r) / kLanes * kLanes;
      row(r, sum - r, count);
      r += count;
    }
    for (; r < end && 2 * r < sum; ++r) exchange(r, sum - r);
  }

  void row(std::size_t low, std::size_t high, std::size_t count) {
    const bool alike = odd_[low + count] == odd_[low] && odd_[high + 1] == odd_[high + 1 - count];
    if (tiers_.any()) return row_through_tiers(low, high, count, alike);
    (alike ? row_alike_ : row_any_)(all_, low, high, count, back_, alike_, nullptr, seen_);
  }

  void row_through_tiers(std::size_t low, std::size_t high, std::size_t count, bool alike) {
    const auto block = [&](std::size_t r) { return tiers_.block_of(r); };
    const std::int64_t adds = tiers_.between(block(low), block(low + count - 1), block(high + 1 - count), block(high));
    if (alike && adds != PartnerTiers::kMixed) {
      row_alike_(all_, low, high, count, back_, {alike_.takes_ps, alike_.latency_ps + adds}, nullptr, seen_);
      return;
    }
    if (added_.size() < count || adds == PartnerTiers::kMixed || adds != adds_) {
      added_.assign(std::max(count, added_.size()), adds);
      if (adds == PartnerTiers::kMixed) row_tiers_(tiers_, low, high, count, back_, added_.data());
      adds_ = adds;
    }
    row_adds_(all_, low, high, count, back_, alike_, added_.data(), seen_);
  }

  struct Sent {
    std::int64_t arrives_ps = 0;
    std::int32_t leaves = 0;  // tick
  };

  void exchange(std::size_t r, std::size_t p) {
    Row& row = all_.row;
    const bool near = in_.node[r] == in_.node[p];
    const Sent go = near ? put_inside(r, p) : put(r, p), come = near ? put_inside(p, r) : put(p, r);
    const std::int32_t last = std::max(row.batch[r], row.batch[p]), tick = last >> kBatchBits;
    wrong_ = wrong_ || (last & kLastPlace) == kLastPlace;
    const auto go_on = [&](std::size_t i, const Sent& its) {
      row.clock[i] = std::max(row.clock[i], its.arrives_ps);
      row.batch[i] = its.leaves > tick ? its.leaves << kBatchBits : last + 1;
    };
    go_on(r, come);
    go_on(p, go);
  }

  Sent put(std::size_t from, std::size_t to) {
    Row& row = all_.row;
    const RowTakes& takes = all_.takes;
    const std::int64_t start = std::max({row.clock[from], row.tx[from], row.rx[to]});
    row.tx[from] = start + takes.tx[from], row.rx[to] = start + takes.rx[to];
    row.tx_tick[from] = row.rx_tick[to] = std::max({row.batch[from] >> kBatchBits, row.tx_tick[from], row.rx_tick[to]}) + 1;
    came(row.came[to], row.batch[from]);
    const std::int64_t leaves = std::max(row.tx[from], row.rx[to]);
    takes.left[from] = std::max(takes.left[from], leaves);
    return {leaves + takes.tx_latency[from] + takes.rx_latency[to] + tiers_.of(from, to), row.tx_tick[from]};
  }

  Sent put_inside(std::size_t from, std::size_t to) {
    Near &own = near_[from], &its = near_[to];
    const std::int64_t start = std::max({all_.row.clock[from], own.tx, its.rx});
    own.tx = start + own.takes.tx_ps, its.rx = start + its.takes.rx_ps;
    came(its.came, all_.row.batch[from]);
    const std::int64_t leaves = std::max(own.tx, its.rx);
    all_.takes.left[from] = std::max(all_.takes.left[from], leaves);
    return {leaves + own.takes.tx_latency_ps + its.takes.rx_latency_ps, 0};
  }

  void came(std::int32_t& last, std::int32_t batch) {
    wrong_ = wrong_ || last > batch;
    turns_ += last == batch ? 2 : 0;
    last = batch;
  }

  // When each rank has ended so far; the last of them.
  std::int64_t ended() {
    for (std::size_t r = 0; r < n_; ++r) out_.finish_ps[r] = std::max({all_.row.clock[r], all_.row.tx[r], all_.takes.left[r]});
    return std::ranges::max(out_.finish_ps);
  }

  const PartnersInput& in_;
  PartnersOutput& out_;
  std::size_t n_, reach_ = 0;  // how far ranks of a node are apart at most, and one
  Crossing back_;
  std::array<std::vector<std::int64_t>, 8> times_;
  std::array<std::vector<std::int32_t>, 4> ticks_;
  Ranks all_{};
  std::vector<std::uint32_t> odd_;  // of ranks before each, how many have links unlike most
  std::vector<Near> near_;
  Alike alike_{};
  PartnerTiers tiers_;
  std::vector<std::int64_t> added_;  // to a row's latencies, and `adds_` if that is one number
  std::int64_t adds_ = PartnerTiers::kMixed;
  decltype(&row_any_base) row_alike_, row_any_, row_adds_;
  decltype(&row_tiers_base) row_tiers_;
  Seen seen_;
  bool wrong_ = false;
  std::int64_t turns_ = 0;
};

}  // namespace

bool in_rows(const PartnersInput& in) {
  const bool power = std::has_single_bit(static_cast<std::uint64_t>(in.ranks));
  if (in.channels != 1 || in.in_place || !in.link.empty() || power || in.ranks > kMostRanks) return false;
  if (std::ranges::any_of(in.node, [&](std::int32_t node) { return node < 0 || node >= in.ranks; })) return false;
  std::vector<std::uint8_t> used(static_cast<std::size_t>(in.nics), 0);
  return std::ranges::all_of(in.nic, [&](std::int32_t nic) { return std::exchange(used[static_cast<std::size_t>(nic)], 1) == 0; });
}

PartnersStatus simulate_in_rows(const PartnersInput& in, PartnersOutput& out) { return InRows(in, out).run(); }

}  // namespace ccl_lab::sim
