// See paired.hpp.
#include "paired.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <vector>

#include "changes.hpp"
#include "partner_tiers.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kRows = 16, kColumns = 8;      // of a tile: the rank in row l and column h is 16 h + l
constexpr std::size_t kTile = kRows * kColumns;
constexpr std::size_t kTiles = 8;                    // of a block

bool good(const PairedInput& in, std::span<const std::int64_t> finish_ps) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v <= kLatest; };
  if (in.ranks < 2 || in.group < 1 || in.group > in.ranks || !time(in.alpha_ps) || !runs(in.target)) return false;
  const auto n = static_cast<std::size_t>(in.ranks), channels = in.nic.size();
  if (!std::has_single_bit(n) || !std::has_single_bit(static_cast<std::size_t>(in.group)) || finish_ps.size() != n) return false;
  if (in.first != 1 && in.first != in.group) return false;
  if (channels < 1 || (channels > 1 && in.first < in.group) || in.nbytes.size() != channels || !all(in.nbytes, time)) return false;
  if (!all(in.nic, [&](std::int32_t v) { return v >= 0 && static_cast<std::size_t>(v) < channels; })) return false;
  if (in.late_ps.size() != n || !all(in.late_ps, time)) return false;
  for (const auto& column : {in.begin_ps, in.copy_ps, in.far.tx_ps, in.far.rx_ps, in.far.tx_latency_ps, in.far.rx_latency_ps})
    if (column.size() != n * channels || !all(column, time)) return false;
  for (const auto& column : {in.near.tx_ps, in.near.rx_ps, in.near.tx_latency_ps, in.near.rx_latency_ps})
    if (column.size() != n || !all(column, time)) return false;
  if (!Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0)))) return false;
  if (!PartnerTiers::good(in.tiers, n * channels)) return false;
  const std::size_t changing = in.changes.link.empty() ? 0 : n * channels;
  for (const auto& ids : {in.tx_link, in.rx_link})
    if (ids.size() != changing || !all(ids, [&](std::int32_t v) { return v >= 0 && v < in.links; })) return false;
  return in.tx_bytes_per_s.size() == changing && in.rx_bytes_per_s.size() == changing;
}

struct alignas(64) Row {
  std::array<std::int64_t, kColumns> cells;
};

// Numbers of a channel, by the column of a tile that has them: when it goes on, when its links are free; what puts and copies take.
struct Channel {
  std::size_t clock, tx, rx, time_tx, time_rx, latency_tx, latency_rx, copies;
};
constexpr std::size_t kMemory = 0, kLeft = 1;  // columns of a rank: when its memory is free, and when its puts had left

// Where everything is for `channels` channels on `nics` NICs: what changes comes first.
constexpr Channel channel_at(std::size_t c, std::size_t nic, std::size_t channels, std::size_t nics) {
  const std::size_t side = 2 + channels + 2 * nic, takes = 2 + channels + 2 * nics + 5 * c;
  return {2 + c, side, side + 1, takes, takes + 1, takes + 2, takes + 3, takes + 4};
}
constexpr Channel kOnly = channel_at(0, 0, 1, 1);

enum class Copies : std::uint8_t { none, alone, in_turns };  // in place: in a memory that other channels copy in, or not

// Of sixteen steps between two tiles those from `first` to before `end`: in step x rank (l, h) of one and rank (l xor x, h) of the other, as it
// was brought in.
template <Copies kCopies, bool kOne>
[[gnu::always_inline]] inline void meet(std::span<const Channel> channels, Row* p, Row* q, std::size_t first, std::size_t end) {
  for (std::size_t x = first; x < end; ++x) {
    for (std::size_t i = 0; i < (kOne ? 1 : channels.size()); ++i) {
      const Channel c = kOne ? kOnly : channels[i];  // a copy, which no number of a tile can overlap
      for (std::size_t l = 0; l < kRows; ++l) {
        const std::size_t m = l ^ x;
        const auto mine = [&](std::size_t column) -> Row& { return p[column * kRows + l]; };
        const auto other = [&](std::size_t column) -> Row& { return q[column * kRows + m]; };
        auto &clock = mine(c.clock).cells, &tx = mine(c.tx).cells, &rx = mine(c.rx).cells, &left = mine(kLeft).cells, &memory = mine(kMemory).cells;
        auto &its_clock = other(c.clock).cells, &its_tx = other(c.tx).cells, &its_rx = other(c.rx).cells, &its_left = other(kLeft).cells,
             &its_memory = other(kMemory).cells;
        const auto &time_tx = mine(c.time_tx).cells, &time_rx = mine(c.time_rx).cells, &its_time_tx = other(c.time_tx).cells,
                   &its_time_rx = other(c.time_rx).cells;
        const auto &latency_tx = mine(c.latency_tx).cells, &latency_rx = mine(c.latency_rx).cells, &its_latency_tx = other(c.latency_tx).cells,
                   &its_latency_rx = other(c.latency_rx).cells;
        const auto &copies = mine(c.copies).cells, &its_copies = other(c.copies).cells;
#pragma GCC ivdep
        for (std::size_t h = 0; h < kColumns; ++h) {
          const std::int64_t go = std::max(clock[h], std::max(tx[h], its_rx[h])), come = std::max(its_clock[h], std::max(its_tx[h], rx[h]));
          const std::int64_t go_tx = go + time_tx[h], go_rx = go + its_time_rx[h], come_tx = come + its_time_tx[h], come_rx = come + time_rx[h];
          const std::int64_t gone = std::max(go_tx, go_rx), came = std::max(come_tx, come_rx);
          const std::int64_t here = std::max(clock[h], came + its_latency_tx[h] + latency_rx[h]);
          const std::int64_t there = std::max(its_clock[h], gone + latency_tx[h] + its_latency_rx[h]);
          tx[h] = go_tx;
          its_rx[h] = go_rx;
          its_tx[h] = come_tx;
          rx[h] = come_rx;
          left[h] = std::max(left[h], gone);
          its_left[h] = std::max(its_left[h], came);
          const std::int64_t free = kCopies == Copies::in_turns ? memory[h] : 0, its_free = kCopies == Copies::in_turns ? its_memory[h] : 0;
          clock[h] = kCopies == Copies::none ? here : std::max(std::max(here, gone), free) + copies[h];
          its_clock[h] = kCopies == Copies::none ? there : std::max(std::max(there, came), its_free) + its_copies[h];
          if (kCopies == Copies::in_turns) {
            memory[h] = clock[h];
            its_memory[h] = its_clock[h];
          }
        }
      }
    }
  }
}

CCL_FOR_TARGETS(meet_alone, (std::span<const Channel> channels, Row* one, Row* other, std::size_t first, std::size_t end),
                (meet<Copies::none, true>(channels, one, other, first, end)))
CCL_FOR_TARGETS(meet_in_place, (std::span<const Channel> channels, Row* one, Row* other, std::size_t first, std::size_t end),
                (meet<Copies::alone, true>(channels, one, other, first, end)))
CCL_FOR_TARGETS(meet_on_all, (std::span<const Channel> channels, Row* one, Row* other, std::size_t first, std::size_t end),
                (meet<Copies::none, false>(channels, one, other, first, end)))
CCL_FOR_TARGETS(meet_in_turns, (std::span<const Channel> channels, Row* one, Row* other, std::size_t first, std::size_t end),
                (meet<Copies::in_turns, false>(channels, one, other, first, end)))

// The place of a rank in the order of cells.
constexpr std::size_t number(std::size_t rank) { return rank / kTile * kTile + rank % kRows * kColumns + rank / kRows % kColumns; }

// In step x of sixteen, in each of which tile `one` meets columns of tile `other` as `by` says: what is added, and was, to latencies of sending
// and receiving ranks of that one.
struct Adding {
  const PartnerTiers& tiers;
  std::size_t one, other;
  const Crossing& by;
  const Row *tx, *rx;  // latencies
  Row *with_tx, *with_rx;
};
[[gnu::always_inline]] inline void add_tiers(const Adding& to, std::size_t x) {
  alignas(64) std::array<std::int64_t, kColumns> added;
  for (std::size_t l = 0; l < kRows; ++l) {
    const std::size_t m = l ^ x;
    to.tiers.of_eight(to.one * kTile + l * kColumns, to.other * kTile + m * kColumns, to.by, added.data());
    for (std::size_t h = 0; h < kColumns; ++h) {
      to.with_tx[m].cells[h] = to.tx[m].cells[to.by.by[h]] + added[h];
      to.with_rx[m].cells[h] = to.rx[m].cells[to.by.by[h]] + added[h];
    }
  }
}
CCL_FOR_TARGETS(add_tiers_of, (const Adding& to, std::size_t x), (add_tiers(to, x)))

decltype(&meet_alone_base) meeting(const PairedInput& in) {
  if (in.nic.size() == 1) return in.in_place ? meet_in_place_for(in.target) : meet_alone_for(in.target);
  return in.in_place ? meet_in_turns_for(in.target) : meet_on_all_for(in.target);
}

class Paired {
 public:
  explicit Paired(const PairedInput& in)
      : in_(in), n_(static_cast<std::size_t>(in.ranks)), group_(static_cast<std::size_t>(in.group)), tiles_((n_ + kTile - 1) / kTile),
        changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))), near_tx_(in.late_ps.begin(), in.late_ps.end()),
        near_rx_(near_tx_), odd_(tiles_, false), meet_(meeting(in)), add_tiers_(add_tiers_of_for(in.target)) {
    const std::size_t channels = in.nic.size(), nics = static_cast<std::size_t>(std::ranges::max(in.nic)) + 1;
    moving_ = 2 + channels + 2 * nics;
    for (std::size_t c = 0; c < channels; ++c) channels_.push_back(channel_at(c, static_cast<std::size_t>(in.nic[c]), channels, nics));
    columns_ = moving_ + 5 * channels;
    rows_.resize(tiles_ * columns_ * kRows);
    visitor_.resize(columns_ * kRows);
    for (std::size_t c = 0; c < channels; ++c) tiers_.emplace_back(in.tiers, n_ * channels, c * n_, tiles_ * kTile, n_, kTile, number);
    for (std::size_t c = 0; c < kColumns; ++c) crossings_[c] = crossing([&](std::size_t h) { return h ^ c; });
  }

  PairedStatus run(std::span<std::int64_t> finish_ps) {
    if (!prepare()) return PairedStatus::too_long;
    if (in_.alike) {
      std::ranges::fill(finish_ps, alone());
      return fits(finish_ps);
    }
    // Steps whose numbers differ in less than a block are between two blocks.
    const std::size_t block = std::min(kTiles, tiles_);
    for (std::size_t high = 0; high * block < tiles_; ++high)
      for (std::size_t first = 0; first < tiles_ / block; ++first)
        if (const std::size_t second = first ^ high; first <= second) blocks(first * block, second * block, block);
    for (std::size_t r = 0; r < n_; ++r) finish_ps[r] = ended(r);
    return fits(finish_ps);
  }

 private:
  // When one rank ends that has itself for a partner in each step.
  std::int64_t alone() {
    for (auto s = static_cast<std::size_t>(in_.first); s < n_; ++s)
      for (std::size_t c = 0; c < channels_.size(); ++c) {
        const Sent sent = put(c, 0, 0, s < group_, of(channels_[c].clock, 0));
        get(c, 0, sent.arrives + (s < group_ ? 0 : tiers_[c].of(0, number(s))), sent.leaves);
      }
    return ended(0);
  }

  std::int64_t ended(std::size_t r) {
    std::int64_t last = of(kLeft, r);
    for (const Channel& c : channels_) last = std::max(last, of(c.clock, r));
    return last;
  }

  static PairedStatus fits(std::span<const std::int64_t> finish_ps) {
    return std::ranges::all_of(finish_ps, [](std::int64_t v) { return v <= kLatest; }) ? PairedStatus::ok : PairedStatus::overflow;
  }

  Row* tile(std::size_t i) { return &rows_[i * columns_ * kRows]; }
  std::int64_t& of(std::size_t column, std::size_t rank) { return tile(rank / kTile)[column * kRows + rank % kRows].cells[rank / kRows % kColumns]; }

  bool prepare() {
    std::int64_t longest = 0;
    for (const PairedLinks& links : {in_.far, in_.near})
      for (const auto& column : {links.tx_ps, links.rx_ps, links.tx_latency_ps, links.rx_latency_ps}) longest = std::max(longest, std::ranges::max(column));
    longest = std::max({longest, tiers_[0].most(), std::ranges::max(in_.copy_ps), std::ranges::max(in_.begin_ps) / in_.ranks});
    for (std::size_t r = 0; r < n_; ++r) of(kLeft, r) = in_.late_ps[r];
    for (std::size_t i = 0; i < n_ * channels_.size(); ++i) {
      const Channel& c = channels_[i / n_];
      const std::size_t r = i % n_;
      of(c.clock, r) = in_.begin_ps[i];
      of(kMemory, r) = std::max(of(kMemory, r), in_.begin_ps[i]);  // in place, the channels before it were done with their copies by then
      of(c.tx, r) = of(c.rx, r) = in_.late_ps[r];  // nothing is put to a rank before it enters
      of(c.time_tx, r) = in_.far.tx_ps[i];
      of(c.time_rx, r) = in_.far.rx_ps[i];
      of(c.latency_tx, r) = in_.far.tx_latency_ps[i];
      of(c.latency_rx, r) = in_.far.rx_latency_ps[i];
      of(c.copies, r) = in_.copy_ps[i];
      if (!in_.tx_link.empty() && (changes_.on(in_.tx_link[i]) || changes_.on(in_.rx_link[i]))) odd_[r / kTile] = true;
    }
    return longest < (kLatest << 1) / (8 * in_.ranks * static_cast<std::int64_t>(channels_.size()));
  }

  // All steps in which the tiles of one block meet those of another, or those of one block each other.
  void blocks(std::size_t first, std::size_t second, std::size_t size) {
    for (std::size_t apart = 0; apart < size; ++apart) {
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t one = first + i, other = second + (i ^ apart);
        if (one > other) continue;
        if (one == other) {
          for (auto s = static_cast<std::size_t>(in_.first); s < std::min(kTile, n_); ++s) step(one, other, s);
        } else {
          tiles(one, other);
        }
      }
    }
  }

  // All steps in which two tiles meet.
  void tiles(std::size_t one, std::size_t other) {
    const std::size_t far = (one ^ other) * kTile;
    if (far < static_cast<std::size_t>(in_.first)) return;
    if (odd_[one] || odd_[other] || far < group_) {
      for (std::size_t s = 0; s < kTile; ++s) step(one, other, far + s);
      return;
    }
    Row* const there = tile(other);
    for (std::size_t permuted = 0; permuted < kColumns; ++permuted) {
      for (std::size_t row = 0; row < columns_ * kRows; ++row)
        for (std::size_t h = 0; h < kColumns; ++h) visitor_[row].cells[h] = there[row].cells[h ^ permuted];
      meet_visitor(one, other, permuted);
      for (std::size_t row = 0; row < moving_ * kRows; ++row)
        for (std::size_t h = 0; h < kColumns; ++h) there[row].cells[h ^ permuted] = visitor_[row].cells[h];
    }
  }

  // Sixteen steps with the visitor, who is brought in with what switches add to its latencies.
  void meet_visitor(std::size_t one, std::size_t other, std::size_t permuted) {
    bool mixed = false;
    for (std::size_t c = 0; c < channels_.size() && tiers_[c].any(); ++c) {
      const std::int64_t adds = tiers_[c].between(one, one, other, other);
      mixed = mixed || adds == PartnerTiers::kMixed;
      for (std::size_t row = 0; adds > 0 && row < kRows; ++row)
        for (const std::size_t column : {channels_[c].latency_tx, channels_[c].latency_rx})
          for (std::int64_t& cell : visitor_[column * kRows + row].cells) cell += adds;
    }
    if (!mixed) return meet_(channels_, tile(one), visitor_.data(), 0, kRows);
    const Row* const there = tile(other);
    for (std::size_t x = 0; x < kRows; ++x) {
      for (std::size_t c = 0; c < channels_.size(); ++c) {
        if (tiers_[c].between(one, one, other, other) != PartnerTiers::kMixed) continue;
        const std::size_t tx = channels_[c].latency_tx * kRows, rx = channels_[c].latency_rx * kRows;
        add_tiers_({tiers_[c], one, other, crossings_[permuted], there + tx, there + rx, &visitor_[tx], &visitor_[rx]}, x);
      }
      meet_(channels_, tile(one), visitor_.data(), x, x + 1);
    }
  }

  // Step s between two tiles, or in one, rank by rank.
  void step(std::size_t one, std::size_t other, std::size_t s) {
    for (std::size_t r = one * kTile; r < std::min((one + 1) * kTile, n_); ++r)
      if (const std::size_t q = r ^ s; one != other || r < q) exchange(r, q);
  }

  void exchange(std::size_t r, std::size_t q) {
    const bool inside = r / group_ == q / group_;
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      const std::size_t clock = channels_[c].clock;
      const Sent go = put(c, r, q, inside, of(clock, r)), come = put(c, q, r, inside, of(clock, q));
      const std::int64_t adds = inside ? 0 : tiers_[c].of(number(r), number(q));
      get(c, r, come.arrives + adds, go.leaves);
      get(c, q, go.arrives + adds, come.leaves);
    }
  }

  // What was put to a rank has come, and in place, once its own put has left, is copied.
  void get(std::size_t c, std::size_t r, std::int64_t arrives, std::int64_t leaves) {
    std::int64_t &now = of(channels_[c].clock, r), &memory = of(kMemory, r);
    now = std::max(now, arrives);
    if (in_.in_place) memory = now = std::max({now, leaves, memory}) + of(channels_[c].copies, r);
  }

  struct Sent {
    std::int64_t leaves = 0, arrives = 0;
  };
  Sent put(std::size_t c, std::size_t from, std::size_t to, bool inside, std::int64_t now) {
    const Channel& at = channels_[c];
    std::int64_t &a = inside ? near_tx_[from] : of(at.tx, from), &b = inside ? near_rx_[to] : of(at.rx, to);
    const std::int64_t start = std::max({now, a, b});
    a = start + (inside ? in_.near.tx_ps[from] : of(at.time_tx, from));
    b = start + (inside ? in_.near.rx_ps[to] : of(at.time_rx, to));
    if (!inside && !in_.tx_link.empty()) {
      const std::size_t i = c * n_ + from, j = c * n_ + to;
      a = through(start, a, in_.tx_link[i], in_.nbytes[c], in_.tx_bytes_per_s[i]);
      b = through(start, b, in_.rx_link[j], in_.nbytes[c], in_.rx_bytes_per_s[j]);
    }
    const std::int64_t leaves = std::max(a, b);
    of(kLeft, from) = std::max(of(kLeft, from), leaves);
    if (inside) return {leaves, leaves + in_.near.tx_latency_ps[from] + in_.near.rx_latency_ps[to]};
    return {leaves, leaves + of(at.latency_tx, from) + of(at.latency_rx, to)};
  }

  // Saturated where nothing passes any more.
  [[nodiscard]] std::int64_t through(std::int64_t start, std::int64_t else_ps, std::int32_t link, std::int64_t nbytes, std::int64_t rate) const {
    if (!changes_.on(link)) return else_ps;
    return std::min(changes_.through_ps(link, std::min(start, 2 * kLatest) + (nbytes > 0 ? in_.alpha_ps : 0), nbytes, rate), 2 * kLatest);
  }

  const PairedInput& in_;
  std::size_t n_, group_, tiles_;
  std::size_t moving_ = 0, columns_ = 0;  // of a tile: those that change come first
  Changes changes_;
  std::vector<std::int64_t> near_tx_, near_rx_;
  std::vector<Channel> channels_;
  std::vector<Row> rows_, visitor_;  // tile by tile [columns][kRows]
  std::vector<bool> odd_;            // by tile: a rate of it changes
  decltype(&meet_alone_base) meet_;
  std::vector<PartnerTiers> tiers_;               // by channel, of ranks in the order of cells
  std::array<Crossing, kColumns> crossings_{};    // by how columns are permuted
  decltype(&add_tiers_of_base) add_tiers_;
};

}  // namespace

PairedStatus simulate_paired(const PairedInput& in, std::span<std::int64_t> finish_ps) noexcept try {
  return good(in, finish_ps) ? Paired(in).run(finish_ps) : PairedStatus::bad_input;
} catch (const std::bad_alloc&) {
  return PairedStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
