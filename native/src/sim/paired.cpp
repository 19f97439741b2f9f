// See paired.hpp.
#include "paired.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <vector>

#include "changes.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::size_t kRows = 16, kColumns = 8;      // of a tile: the rank in row l and column h is 16 h + l
constexpr std::size_t kTile = kRows * kColumns;
constexpr std::size_t kTiles = 8;                    // of a block

bool good(const PairedInput& in, std::span<const std::int64_t> finish_ps) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v <= kLatest; };
  if (in.ranks < 2 || in.group < 1 || in.group > in.ranks || !time(in.alpha_ps) || !time(in.nbytes) || !runs(in.target)) return false;
  const auto n = static_cast<std::size_t>(in.ranks);
  if (!std::has_single_bit(n) || !std::has_single_bit(static_cast<std::size_t>(in.group)) || finish_ps.size() != n) return false;
  for (const auto& column : {in.late_ps, in.begin_ps, in.copy_ps, in.far.tx_ps, in.far.rx_ps, in.far.tx_latency_ps, in.far.rx_latency_ps, in.near.tx_ps,
                             in.near.rx_ps, in.near.tx_latency_ps, in.near.rx_latency_ps})
    if (column.size() != n || !all(column, time)) return false;
  if (!Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0)))) return false;
  const std::size_t changing = in.changes.link.empty() ? 0 : n;
  for (const auto& ids : {in.tx_link, in.rx_link})
    if (ids.size() != changing || !all(ids, [&](std::int32_t v) { return v >= 0 && v < in.links; })) return false;
  return in.tx_bytes_per_s.size() == changing && in.rx_bytes_per_s.size() == changing;
}

// What is known of a rank, and what does not change: its clock, when its links are free, when its puts had left; what they take.
enum Column : std::size_t { clock, tx, rx, left, time_tx, time_rx, latency_tx, latency_rx, copies, kKinds };
constexpr std::size_t kMoving = time_tx;  // those before it change

struct Tile {
  alignas(64) std::array<std::array<std::array<std::int64_t, kColumns>, kRows>, kKinds> cells;
};

// Sixteen steps between two tiles: rank (l, h) of one and rank (l xor x, h) of the other, as it was brought in.
template <bool kInPlace>
[[gnu::always_inline]] inline void meet(Tile& one, Tile& other) {
  auto &p = one.cells, &q = other.cells;
  for (std::size_t x = 0; x < kRows; ++x) {
    for (std::size_t l = 0; l < kRows; ++l) {
      const std::size_t m = l ^ x;
#pragma GCC ivdep
      for (std::size_t h = 0; h < kColumns; ++h) {
        const std::int64_t go = std::max(p[clock][l][h], std::max(p[tx][l][h], q[rx][m][h]));
        const std::int64_t come = std::max(q[clock][m][h], std::max(q[tx][m][h], p[rx][l][h]));
        const std::int64_t go_tx = go + p[time_tx][l][h], go_rx = go + q[time_rx][m][h];
        const std::int64_t come_tx = come + q[time_tx][m][h], come_rx = come + p[time_rx][l][h];
        const std::int64_t gone = std::max(go_tx, go_rx), came = std::max(come_tx, come_rx);
        const std::int64_t here = std::max(p[clock][l][h], came + q[latency_tx][m][h] + p[latency_rx][l][h]);
        const std::int64_t there = std::max(q[clock][m][h], gone + p[latency_tx][l][h] + q[latency_rx][m][h]);
        p[tx][l][h] = go_tx;
        q[rx][m][h] = go_rx;
        q[tx][m][h] = come_tx;
        p[rx][l][h] = come_rx;
        p[left][l][h] = std::max(p[left][l][h], gone);
        q[left][m][h] = std::max(q[left][m][h], came);
        p[clock][l][h] = kInPlace ? std::max(here, gone) + p[copies][l][h] : here;
        q[clock][m][h] = kInPlace ? std::max(there, came) + q[copies][m][h] : there;
      }
    }
  }
}

CCL_FOR_TARGETS(meet, (Tile& one, Tile& other), meet<false>(one, other))
CCL_FOR_TARGETS(meet_in_place, (Tile& one, Tile& other), meet<true>(one, other))

class Paired {
 public:
  explicit Paired(const PairedInput& in)
      : in_(in), n_(static_cast<std::size_t>(in.ranks)), group_(static_cast<std::size_t>(in.group)),
        changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))),
        near_tx_(in.late_ps.begin(), in.late_ps.end()), near_rx_(near_tx_), tiles_((n_ + kTile - 1) / kTile), odd_(tiles_.size(), false),
        meet_(in.in_place ? meet_in_place_for(in.target) : meet_for(in.target)) {}

  PairedStatus run(std::span<std::int64_t> finish_ps) {
    if (!prepare()) return PairedStatus::too_long;
    if (in_.alike) {
      std::ranges::fill(finish_ps, alone());
      return fits(finish_ps);
    }
    // Steps whose numbers differ in less than a block are between two blocks.
    const std::size_t block = std::min(kTiles, tiles_.size());
    for (std::size_t high = 0; high * block < tiles_.size(); ++high)
      for (std::size_t first = 0; first < tiles_.size() / block; ++first)
        if (const std::size_t second = first ^ high; first <= second) blocks(first * block, second * block, block);
    for (std::size_t r = 0; r < n_; ++r) finish_ps[r] = std::max(of(clock, r), of(left, r));
    return fits(finish_ps);
  }

 private:
  // When one rank ends that has itself for a partner in each step.
  std::int64_t alone() {
    for (std::size_t s = 1; s < n_; ++s) {
      const Sent sent = put(0, 0, s < group_, of(clock, 0));
      of(clock, 0) = std::max(of(clock, 0), sent.arrives);
      if (in_.in_place) of(clock, 0) += in_.copy_ps[0];
    }
    return std::max(of(clock, 0), of(left, 0));
  }

  static PairedStatus fits(std::span<const std::int64_t> finish_ps) {
    return std::ranges::all_of(finish_ps, [](std::int64_t v) { return v <= kLatest; }) ? PairedStatus::ok : PairedStatus::overflow;
  }

  std::int64_t& of(Column kind, std::size_t rank) {
    return tiles_[rank / kTile].cells[kind][rank % kRows][rank / kRows % kColumns];
  }

  bool prepare() {
    std::int64_t longest = 0;
    for (const PairedLinks& links : {in_.far, in_.near})
      for (const auto& column : {links.tx_ps, links.rx_ps, links.tx_latency_ps, links.rx_latency_ps}) longest = std::max(longest, std::ranges::max(column));
    longest = std::max({longest, std::ranges::max(in_.copy_ps), std::ranges::max(in_.begin_ps) / in_.ranks});
    for (std::size_t r = 0; r < n_; ++r) {
      of(clock, r) = in_.begin_ps[r];
      of(tx, r) = of(rx, r) = of(left, r) = in_.late_ps[r];  // nothing is put to a rank before it enters
      of(time_tx, r) = in_.far.tx_ps[r];
      of(time_rx, r) = in_.far.rx_ps[r];
      of(latency_tx, r) = in_.far.tx_latency_ps[r];
      of(latency_rx, r) = in_.far.rx_latency_ps[r];
      of(copies, r) = in_.copy_ps[r];
      if (!in_.tx_link.empty() && (changes_.on(in_.tx_link[r]) || changes_.on(in_.rx_link[r]))) odd_[r / kTile] = true;
    }
    return longest < (kLatest << 1) / (8 * in_.ranks);
  }

  // All steps in which the tiles of one block meet those of another, or those of one block each other.
  void blocks(std::size_t first, std::size_t second, std::size_t size) {
    for (std::size_t apart = 0; apart < size; ++apart) {
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t one = first + i, other = second + (i ^ apart);
        if (one > other) continue;
        if (one == other) {
          for (std::size_t s = 1; s < std::min(kTile, n_); ++s) step(one, other, s);
        } else {
          tiles(one, other);
        }
      }
    }
  }

  // All steps in which two tiles meet.
  void tiles(std::size_t one, std::size_t other) {
    const std::size_t far = (one ^ other) * kTile;
    if (odd_[one] || odd_[other] || far < group_) {
      for (std::size_t s = 0; s < kTile; ++s) step(one, other, far + s);
      return;
    }
    Tile &here = tiles_[one], &there = tiles_[other];
    for (std::size_t permuted = 0; permuted < kColumns; ++permuted) {
      for (std::size_t kind = 0; kind < kKinds; ++kind)
        for (std::size_t l = 0; l < kRows; ++l)
          for (std::size_t h = 0; h < kColumns; ++h) visitor_.cells[kind][l][h] = there.cells[kind][l][h ^ permuted];
      meet_(here, visitor_);
      for (std::size_t kind = 0; kind < kMoving; ++kind)
        for (std::size_t l = 0; l < kRows; ++l)
          for (std::size_t h = 0; h < kColumns; ++h) there.cells[kind][l][h ^ permuted] = visitor_.cells[kind][l][h];
    }
  }

  // Step s between two tiles, or in one, rank by rank.
  void step(std::size_t one, std::size_t other, std::size_t s) {
    for (std::size_t r = one * kTile; r < std::min((one + 1) * kTile, n_); ++r)
      if (const std::size_t q = r ^ s; one != other || r < q) exchange(r, q);
  }

  void exchange(std::size_t r, std::size_t q) {
    const std::int64_t clock_r = of(clock, r), clock_q = of(clock, q);
    const bool inside = r / group_ == q / group_;
    const Sent go = put(r, q, inside, clock_r), come = put(q, r, inside, clock_q);
    of(clock, r) = std::max(clock_r, come.arrives);
    of(clock, q) = std::max(clock_q, go.arrives);
    if (!in_.in_place) return;
    of(clock, r) = std::max(of(clock, r), go.leaves) + in_.copy_ps[r];
    of(clock, q) = std::max(of(clock, q), come.leaves) + in_.copy_ps[q];
  }

  struct Sent {
    std::int64_t leaves = 0, arrives = 0;
  };
  Sent put(std::size_t from, std::size_t to, bool inside, std::int64_t now) {
    std::int64_t &a = inside ? near_tx_[from] : of(tx, from), &b = inside ? near_rx_[to] : of(rx, to);
    const PairedLinks& links = inside ? in_.near : in_.far;
    const std::int64_t start = std::max({now, a, b});
    a = start + links.tx_ps[from];
    b = start + links.rx_ps[to];
    if (!inside && !in_.tx_link.empty()) {
      a = through(start, a, in_.tx_link[from], in_.tx_bytes_per_s[from]);
      b = through(start, b, in_.rx_link[to], in_.rx_bytes_per_s[to]);
    }
    const std::int64_t leaves = std::max(a, b);
    of(left, from) = std::max(of(left, from), leaves);
    return {leaves, leaves + links.tx_latency_ps[from] + links.rx_latency_ps[to]};
  }

  // Saturated where nothing passes any more.
  [[nodiscard]] std::int64_t through(std::int64_t start, std::int64_t else_ps, std::int32_t link, std::int64_t rate) const {
    if (!changes_.on(link)) return else_ps;
    return std::min(changes_.through_ps(link, std::min(start, 2 * kLatest) + (in_.nbytes > 0 ? in_.alpha_ps : 0), in_.nbytes, rate), 2 * kLatest);
  }

  const PairedInput& in_;
  std::size_t n_, group_;
  Changes changes_;
  std::vector<std::int64_t> near_tx_, near_rx_;
  std::vector<Tile> tiles_;
  std::vector<bool> odd_;  // by tile: a rate of it changes
  Tile visitor_;
  decltype(&meet_base) meet_;
};

}  // namespace

PairedStatus simulate_paired(const PairedInput& in, std::span<std::int64_t> finish_ps) noexcept try {
  return good(in, finish_ps) ? Paired(in).run(finish_ps) : PairedStatus::bad_input;
} catch (const std::bad_alloc&) {
  return PairedStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
