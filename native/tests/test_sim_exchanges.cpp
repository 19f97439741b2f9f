// Tests of the all_to_alls that are timed node by node and step by step, against loops over their messages, one after the other: what rails.cpp
// and paired.cpp gain by strips, tiles, vectors, plain nodes and nodes that repeat changes nothing.
#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "sim/paired.hpp"
#include "sim/partners.hpp"
#include "sim/rails.hpp"
#include "sim/swaps.hpp"

using namespace ccl_lab::sim;

namespace {

using I64s = std::vector<std::int64_t>;
using I32s = std::vector<std::int32_t>;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool one_in(std::int64_t n) { return (*this)(1, n) == 1; }
  I64s column(std::size_t size, std::int64_t least, std::int64_t most) {
    I64s made(size);
    for (auto& each : made) each = (*this)(least, most);
    return made;
  }

 private:
  std::mt19937_64 random_;
};

// Rates that change: of some links, at some times, never to 0 at last.
struct Rates {
  I32s link;
  I64s from_ps, bytes_per_s;

  void draw(Draw& draw, std::int32_t links, std::int64_t last_ps) {
    for (std::int32_t each = 0; each < links; ++each) {
      if (!draw.one_in(6)) continue;
      std::int64_t at = draw(1, last_ps);
      for (std::int64_t i = draw(1, 3); i > 0; --i, at += draw(1, last_ps))
        link.push_back(each), from_ps.push_back(at), bytes_per_s.push_back(i > 1 && draw.one_in(3) ? 0 : draw(10'000'000, 4'000'000'000));
    }
  }

  // When bytes that the link begins to carry are through: stretch by stretch.
  [[nodiscard]] std::int64_t through(std::int32_t of, std::int64_t start, std::int64_t held, std::int64_t nbytes, std::int64_t rate) const {
    if (!std::ranges::count(link, of)) return start + held + duration_ps(nbytes, rate);
    __extension__ typedef unsigned __int128 Wide;
    Wide left = static_cast<Wide>(nbytes) * 1'000'000'000'000u;
    std::int64_t now = start + held;
    for (std::size_t i = 0; i < link.size() && left > 0; ++i) {
      if (link[i] != of) continue;
      if (now < from_ps[i]) {
        const Wide carried = static_cast<Wide>(from_ps[i] - now) * static_cast<Wide>(rate);
        if (carried >= left) break;
        left -= carried;
        now = from_ps[i];
      }
      rate = bytes_per_s[i];
    }
    return left == 0 ? now : now + static_cast<std::int64_t>((left + static_cast<Wide>(rate) - 1) / static_cast<Wide>(rate));
  }
};

// -- rails

// Columns of a draw. Nodes come again after `units`; those of a class are alike inside.
struct RailsDraw {
  std::int64_t nodes, units, group, nics, puts, classes, alpha, channel;
  I32s nic, map_of, class_of, tx_link, rx_link;
  I64s bytes, near_bytes, tx_rate, tx_latency, rx_rate, rx_latency, near_tx, near_tx_latency, near_rx, near_rx_latency, near_late, late;
  Rates changes;
  std::int32_t links = 0;

  explicit RailsDraw(Draw draw) {
    const bool many = draw.one_in(3);
    units = many ? draw(64, 100) : draw(1, 9);
    nodes = std::max<std::int64_t>(2, units * (draw.one_in(3) ? 2 : 1));
    units = nodes % units == 0 ? units : nodes;
    group = draw(1, 4), nics = draw(1, 4), puts = draw(1, 3), classes = draw(1, std::min<std::int64_t>(units, 3));
    alpha = draw(0, 1) * draw(0, 900'000), near_bytes = draw.column(draw.one_in(2) ? 1 : 3, 0, 1'000'000);
    channel = draw(0, std::ssize(near_bytes) - 1);
    const auto maps = many ? 1 + draw.one_in(2) : draw(1, 3);
    for (std::int64_t map = 0; map < maps; ++map)
      for (std::int64_t l = 0; l < group; ++l)
        nic.push_back(static_cast<std::int32_t>(map == 0 && nics >= group && draw.one_in(2) ? l : draw(0, nics - 1)));
    if (nics >= group && !draw.one_in(3))
      for (std::int64_t l = 0; l < group; ++l) nic[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(l);
    for (std::int64_t u = 0; u < units; ++u) {
      map_of.push_back(static_cast<std::int32_t>(many && !draw.one_in(80) ? 0 : draw(0, maps - 1)));
      class_of.push_back(static_cast<std::int32_t>(many && !draw.one_in(40) ? 0 : draw(0, classes - 1)));
    }
    for (std::int64_t l = 0; l < group; ++l) {
      const std::int64_t some = draw(1, puts);
      for (std::int64_t j = 0; j < puts; ++j) bytes.push_back(j < some ? draw(draw.one_in(8) ? 0 : 1, 1'000'000) : -1);
    }
    of_nics(draw, many && !draw.one_in(4));
    const auto ranks = static_cast<std::size_t>(group * classes);
    near_tx = draw.column(ranks, 100'000'000, 9'000'000'000), near_rx = draw.column(ranks, 100'000'000, 9'000'000'000);
    near_tx_latency = draw.column(ranks, 0, 900'000), near_rx_latency = draw.column(ranks, 0, 900'000);
    const bool on_time = many || draw.one_in(2);
    near_late = I64s(ranks, 0);
    if (!on_time)
      for (auto& each : near_late) each = draw(0, 900'000'000);
    for (std::int64_t l = 0; l < group; ++l)
      for (std::int64_t u = 0; u < units; ++u) late.push_back(near_late[static_cast<std::size_t>(l * classes + class_of[static_cast<std::size_t>(u)])]);
    if (many && draw.one_in(3)) late[static_cast<std::size_t>(draw(0, group * units - 1))] = draw(1, 900'000'000);
  }

  void of_nics(Draw& draw, bool alike) {
    const auto size = static_cast<std::size_t>(nics * units);
    const std::int64_t rate = draw(100'000'000, 9'000'000'000), latency = draw(0, 900'000);
    tx_rate = rx_rate = I64s(size, rate), tx_latency = rx_latency = I64s(size, latency);
    for (I64s* const column : {&tx_rate, &rx_rate})
      for (auto& each : *column)
        if (!alike || draw.one_in(400)) each = draw(100'000'000, 9'000'000'000);
    for (I64s* const column : {&tx_latency, &rx_latency})
      for (auto& each : *column)
        if (!alike || draw.one_in(400)) each = draw(0, 900'000);
    if (units < nodes || !draw.one_in(3)) return;
    links = static_cast<std::int32_t>(2 * size);
    changes.draw(draw, alike ? 8 : links, 2'000'000'000);
    for (std::int32_t i = 0; !changes.link.empty() && i < links; ++i) (i < links / 2 ? tx_link : rx_link).push_back(i);
  }

  [[nodiscard]] RailsInput input(Target target) const {
    RailsInput in;
    in.nodes = nodes, in.units = units, in.group = group, in.nics = nics, in.puts = puts, in.classes = classes, in.alpha_ps = alpha;
    in.nic = nic, in.map_of = map_of, in.bytes = bytes, in.channel = channel, in.near_bytes = near_bytes, in.class_of = class_of, in.late_ps = late;
    in.tx_bytes_per_s = tx_rate, in.tx_latency_ps = tx_latency, in.rx_bytes_per_s = rx_rate, in.rx_latency_ps = rx_latency;
    in.near_tx_bytes_per_s = near_tx, in.near_tx_latency_ps = near_tx_latency, in.near_rx_bytes_per_s = near_rx;
    in.near_rx_latency_ps = near_rx_latency, in.near_late_ps = near_late, in.tx_link = tx_link, in.rx_link = rx_link, in.links = links;
    in.changes = {changes.link, changes.from_ps, changes.bytes_per_s}, in.target = target;
    return in;
  }
};

// What rails.hpp says, put by put, for all nodes. A put takes the first turn that neither of its NICs has given away, among those of two nodes.
class RailsLoop {
 public:
  explicit RailsLoop(const RailsDraw& d)
      : d_(d), n_(static_cast<std::size_t>(d.nodes)), group_(static_cast<std::size_t>(d.group)), tx_(n_ * static_cast<std::size_t>(d.nics), 0), rx_(tx_),
        near_tx_(n_ * group_, 0), near_rx_(near_tx_) {
    for (std::size_t k = 0; k < n_ * group_; ++k) {
      arrived.push_back(late(k / group_, k % group_)), left.push_back(arrived.back());
      seen.push_back(d_.near_late[near(k)]), near_left.push_back(seen.back());
    }
    for (std::size_t hop = 1; hop < n_; ++hop) {
      inside();
      for (std::size_t u = 0; u < n_; ++u) across(u, (u + hop) % n_);
    }
    inside();
  }

  I64s arrived, left, seen, near_left;  // [nodes][group]

 private:
  [[nodiscard]] std::size_t unit(std::size_t node) const { return node % static_cast<std::size_t>(d_.units); }
  [[nodiscard]] std::int64_t late(std::size_t node, std::size_t l) const { return d_.late[l * static_cast<std::size_t>(d_.units) + unit(node)]; }
  [[nodiscard]] std::size_t near(std::size_t rank) const {
    return rank % group_ * static_cast<std::size_t>(d_.classes) + static_cast<std::size_t>(d_.class_of[unit(rank / group_)]);
  }
  [[nodiscard]] std::int64_t held(std::int64_t nbytes) const { return nbytes > 0 ? d_.alpha : 0; }

  void inside() {
    for (std::size_t node = 0; node < n_; ++node) {
      for (std::size_t distance = 1; distance < group_; ++distance) {
        for (std::size_t i = 0; i < d_.near_bytes.size() * group_; ++i) {
          const std::size_t channel = i / group_, l = i % group_;
          const std::int64_t nbytes = d_.near_bytes[channel];
          const std::size_t from = node * group_ + l, to = node * group_ + (l + distance) % group_;
          const std::int64_t start = std::max({d_.near_late[near(from)], d_.near_late[near(to)], near_tx_[from], near_rx_[to]});
          near_tx_[from] = start + held(nbytes) + duration_ps(nbytes, d_.near_tx[near(from)]);
          near_rx_[to] = start + held(nbytes) + duration_ps(nbytes, d_.near_rx[near(to)]);
          if (channel != static_cast<std::size_t>(d_.channel)) continue;
          const std::int64_t leaves = std::max(near_tx_[from], near_rx_[to]);
          seen[to] = std::max(seen[to], leaves + d_.near_tx_latency[near(from)] + d_.near_rx_latency[near(to)]);
          near_left[from] = std::max(near_left[from], leaves);
        }
      }
    }
  }

  [[nodiscard]] std::size_t nic(std::size_t node, std::size_t l) const {
    return static_cast<std::size_t>(d_.nic[static_cast<std::size_t>(d_.map_of[unit(node)]) * group_ + l]);
  }

  void across(std::size_t u, std::size_t v) {
    struct Put {
      std::size_t l, turn;
      std::int64_t nbytes;
    };
    std::vector<Put> puts;
    for (std::size_t j = 0; j < static_cast<std::size_t>(d_.puts); ++j) {
      for (std::size_t l = 0; l < group_; ++l) {
        const std::int64_t nbytes = d_.bytes[l * static_cast<std::size_t>(d_.puts) + j];
        if (nbytes < 0) continue;
        const auto taken = [&](std::size_t turn) {
          return std::ranges::any_of(puts, [&](const Put& p) { return p.turn == turn && (nic(u, p.l) == nic(u, l) || nic(v, p.l) == nic(v, l)); });
        };
        std::size_t turn = 0;
        while (taken(turn)) ++turn;
        puts.push_back({l, turn, nbytes});
      }
    }
    std::ranges::stable_sort(puts, {}, &Put::turn);
    const auto nics = static_cast<std::size_t>(d_.nics), units = static_cast<std::size_t>(d_.units);
    for (const Put& p : puts) {
      const std::size_t a = nic(u, p.l), b = nic(v, p.l), of_a = a * units + unit(u), of_b = b * units + unit(v);
      std::int64_t &tx = tx_[u * nics + a], &rx = rx_[v * nics + b];
      const std::int64_t start = std::max({seen[u * group_ + p.l], late(v, p.l), tx, rx});
      tx = d_.changes.through(d_.tx_link.empty() ? -1 : d_.tx_link[of_a], start, held(p.nbytes), p.nbytes, d_.tx_rate[of_a]);
      rx = d_.changes.through(d_.rx_link.empty() ? -1 : d_.rx_link[of_b], start, held(p.nbytes), p.nbytes, d_.rx_rate[of_b]);
      const std::int64_t leaves = std::max(tx, rx);
      std::int64_t &gone = left[u * group_ + p.l], &came = arrived[v * group_ + p.l];
      gone = std::max(gone, leaves);
      came = std::max(came, leaves + d_.tx_latency[of_a] + d_.rx_latency[of_b]);
    }
  }

  const RailsDraw& d_;
  std::size_t n_, group_;
  I64s tx_, rx_, near_tx_, near_rx_;
};

// -- pairwise exchanges

struct PairedDraw {
  std::int64_t ranks, group, alpha;
  I64s nbytes;
  I32s nic{0};
  bool in_place, alike = false;
  I64s late, begin, copy, tx_rate, rx_rate;  // but for `late` by channel
  std::vector<I64s> far, near;               // tx_ps, rx_ps, tx_latency_ps, rx_latency_ps; `far` by channel
  I32s tx_link, rx_link;
  Rates changes;

  explicit PairedDraw(Draw draw) {
    const std::int64_t bits = draw.one_in(6) ? draw(8, 11) : draw(1, 7);
    ranks = std::int64_t{1} << bits, group = std::int64_t{1} << draw(0, std::min<std::int64_t>(bits, draw.one_in(6) ? 9 : 3));
    alpha = draw(0, 1) * draw(0, 900'000), nbytes = draw.column(draw.one_in(2) ? 1 : 3, 0, 1'000'000), in_place = draw.one_in(2);
    const auto n = static_cast<std::size_t>(ranks);
    nic.resize(nbytes.size());
    for (auto& each : nic) each = static_cast<std::int32_t>(draw(0, static_cast<std::int64_t>(nic.size()) - 1));
    alike = draw.one_in(8);
    const auto column = [&](std::int64_t most, std::size_t size) { return alike ? I64s(size, draw(0, most)) : draw.column(size, 0, most); };
    const std::size_t all = n * nic.size();
    late = draw.one_in(2) ? I64s(n, 0) : column(900'000'000, n);
    copy = column(90'000'000, all), begin.resize(all);
    for (std::size_t i = 0; i < all; ++i) begin[i] = late[i % n] + (in_place ? 0 : copy[i]);
    tx_rate = draw.column(all, 100'000'000, 9'000'000'000), rx_rate = draw.column(all, 100'000'000, 9'000'000'000);
    for (std::vector<I64s>* const links : {&far, &near})
      for (const std::int64_t most : {9'000'000, 9'000'000, 900'000, 900'000}) links->push_back(column(most, links == &far ? all : n));
    if (alike || !draw.one_in(3)) return;
    for (std::size_t i = 0; i < all; ++i) {
      far[0][i] = (nbytes[i / n] > 0 ? alpha : 0) + duration_ps(nbytes[i / n], tx_rate[i]);
      far[1][i] = (nbytes[i / n] > 0 ? alpha : 0) + duration_ps(nbytes[i / n], rx_rate[i]);
    }
    const auto links = static_cast<std::int32_t>(2 * all);
    changes.draw(draw, std::min(links, 40), 9'000'000'000);
    for (std::int32_t i = 0; !changes.link.empty() && i < links; ++i) (2 * i < links ? tx_link : rx_link).push_back(i);
  }

  [[nodiscard]] std::int64_t first() const { return nic.size() > 1 ? group : 1; }

  [[nodiscard]] PairedInput input(Target target) const {
    PairedInput in;
    in.ranks = ranks, in.group = group, in.alike = alike, in.in_place = in_place, in.late_ps = late, in.begin_ps = begin, in.copy_ps = copy;
    in.far = {far[0], far[1], far[2], far[3]}, in.near = {near[0], near[1], near[2], near[3]};
    in.alpha_ps = alpha, in.nbytes = nbytes, in.nic = nic, in.first = first(), in.links = 2 * ranks * std::ssize(nic), in.target = target;
    if (!changes.link.empty()) in.tx_link = tx_link, in.rx_link = rx_link, in.tx_bytes_per_s = tx_rate, in.rx_bytes_per_s = rx_rate;
    in.changes = {changes.link, changes.from_ps, changes.bytes_per_s};
    return in;
  }

  // Step by step, channel by channel, rank by rank.
  [[nodiscard]] I64s loop() const {
    const auto n = static_cast<std::size_t>(ranks), inside = static_cast<std::size_t>(group);
    I64s clock = begin, left = late, memory(n), went(n), goes(n);
    std::vector<std::vector<I64s>> free(nic.size() + 1, std::vector<I64s>(2, late));  // of NICs, then inside: tx, rx
    for (std::size_t i = 0; i < clock.size(); ++i) memory[i % n] = std::max(memory[i % n], begin[i]);
    for (auto s = static_cast<std::size_t>(first()); s < n; ++s) {
      for (std::size_t c = 0; c < nic.size(); ++c) {
        const bool is_near = s < inside, change = !is_near && !changes.link.empty();
        const std::size_t at = is_near ? 0 : c * n;
        std::vector<I64s>& ends = free[is_near ? nic.size() : static_cast<std::size_t>(nic[c])];
        const std::vector<I64s>& links = is_near ? near : far;
        const std::int64_t held = nbytes[c] > 0 ? alpha : 0;
        I64s starts(n);
        for (std::size_t r = 0; r < n; ++r) starts[r] = std::max({clock[c * n + r], ends[0][r], ends[1][r ^ s]});
        for (std::size_t r = 0; r < n; ++r) {
          const std::size_t q = r ^ s;
          ends[0][r] = change ? changes.through(tx_link[at + r], starts[r], held, nbytes[c], tx_rate[at + r]) : starts[r] + links[0][at + r];
          ends[1][q] = change ? changes.through(rx_link[at + q], starts[r], held, nbytes[c], rx_rate[at + q]) : starts[r] + links[1][at + q];
          went[r] = std::max(ends[0][r], ends[1][q]);
          goes[r] = went[r] + links[2][at + r] + links[3][at + q];
          left[r] = std::max(left[r], went[r]);
        }
        for (std::size_t r = 0; r < n; ++r) {
          std::int64_t& now = clock[c * n + r];
          now = std::max(now, goes[r ^ s]);
          if (in_place) memory[r] = now = std::max({now, went[r], memory[r]}) + copy[c * n + r];
        }
      }
    }
    for (std::size_t i = 0; i < clock.size(); ++i) left[i % n] = std::max(left[i % n], clock[i]);
    return left;
  }
};

std::vector<Target> targets() {
  std::vector<Target> found;
  for (const Target each : {Target::best, Target::base, Target::avx2, Target::avx512})
    if (runs(each)) found.push_back(each);
  return found;
}

}  // namespace

TEST(rails_end_as_their_messages) {
  int plain = 0, changed = 0, repeated = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const RailsDraw drawn{Draw(seed)};
    const RailsLoop want(drawn);
    const auto units = static_cast<std::size_t>(drawn.units), group = static_cast<std::size_t>(drawn.group), classes = static_cast<std::size_t>(drawn.classes);
    for (const Target target : seed % 8 == 0 ? targets() : std::vector{Target::best}) {
      I64s arrived(group * units), left(arrived), seen(group * classes), near_left(seen);
      RailsOutput out{arrived, left, seen, near_left};
      CHECK(simulate_rails(drawn.input(target), out) == RailsStatus::ok);
      int wrong = 0;
      for (std::size_t k = 0; k < want.left.size(); ++k) {
        const std::size_t l = k % group, u = k / group % units, of = l * classes + static_cast<std::size_t>(drawn.class_of[u]);
        wrong += arrived[l * units + u] != want.arrived[k] || left[l * units + u] != want.left[k];
        wrong += seen[of] != want.seen[k] || near_left[of] != want.near_left[k];
      }
      CHECK_EQ(std::pair(seed, wrong).second, 0);
    }
    plain += drawn.units >= 64, changed += !drawn.changes.link.empty(), repeated += drawn.units < drawn.nodes;
    shared += drawn.group > drawn.nics;
  }
  CHECK(plain > 60 && changed > 40 && repeated > 60 && shared > 60);
}

TEST(exchanges_end_as_their_messages) {
  int tiles = 0, changed = 0, inside = 0, alike = 0, channels = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const PairedDraw drawn{Draw(seed)};
    const I64s want = drawn.loop();
    for (const Target target : drawn.ranks < 1024 ? targets() : std::vector{Target::best}) {
      I64s finish(want.size());
      CHECK(simulate_paired(drawn.input(target), finish) == PairedStatus::ok);
      CHECK(finish == want);
    }
    tiles += drawn.ranks > 128, changed += !drawn.changes.link.empty(), inside += drawn.group > 128, alike += drawn.alike;
    channels += drawn.nic.size() > 1 && drawn.ranks > 128;
  }
  CHECK(tiles > 15 && changed > 20 && inside > 0 && alike > 8 && channels > 5);
}

// Two ranks on a NIC each put three blocks of 100 bytes to one another, a byte a picosecond, and add all three, ten picoseconds each.
struct SwapsDraw {
  std::vector<std::uint8_t> step = {0, 1, 2};
  I64s times = {3, 1, 3}, none = {-1, -1, -1}, apart = {1, 1, 0}, zero = {0, 0, 0}, raises = {0, 1, 0}, bytes = {100, 0, 10};
  I64s rates = I64s(10, 1'000'000'000'000), latency = I64s(10, 0), late = {0, 0};
  std::vector<std::int32_t> nodes = {0, 1}, tx = {6, 7}, rx = {8, 9};

  [[nodiscard]] SwapsInput input() const {
    SwapsInput in;
    in.ranks = 2, in.channels = 1, in.step = step, in.times = times, in.some = none, in.apart = apart, in.raise = zero, in.raises = raises;
    in.nbytes = bytes, in.ticks = bytes, in.blocks = none, in.tier = none, in.node_of = nodes, in.tx = tx, in.rx = rx;
    in.bytes_per_s = rates, in.latency_ps = latency, in.late_ps = late;
    return in;
  }
};

TEST(swaps_end_as_their_blocks) {
  SwapsDraw drawn;
  I64s finish = {0, 0};
  CHECK(simulate_swaps(drawn.input(), finish) == SwapStatus::ok);
  CHECK(finish == I64s({330, 330}));
  drawn.late = {1000, 0};
  finish = {0, 0};
  CHECK(simulate_swaps(drawn.input(), finish) == SwapStatus::ok);
  CHECK(finish == I64s({1330, 1330}));
  SwapsInput in = drawn.input();
  in.apart = in.apart.first(2);
  CHECK(simulate_swaps(in, finish) == SwapStatus::bad_input);
  in = drawn.input(), in.ranks = 3;
  CHECK(simulate_swaps(in, finish) == SwapStatus::bad_input);
  drawn.apart = {2, 2, 0};
  CHECK(simulate_swaps(drawn.input(), finish) == SwapStatus::bad_input);
  drawn.apart = {1, 1, 0};
  drawn.tx = {6, 10};
  CHECK(simulate_swaps(drawn.input(), finish) == SwapStatus::bad_input);
}

// Two nodes of two ranks on one NIC put 100 bytes to one another, a byte a picosecond: one step inside, then four puts on each NIC.
TEST(partners_that_share_a_nic_take_turns) {
  const std::vector<std::int32_t> nodes = {0, 0, 1, 1}, links;
  const I64s bytes = {100}, zero(4, 0), rates(12, 1'000'000'000'000), latency(12, 0);
  I64s finish(4);
  PartnersOutput out{.finish_ps = finish};
  PartnersInput in;
  in.ranks = 4, in.nics = 2, in.channels = 1, in.node = nodes, in.nic = nodes, in.bytes = bytes, in.late_ps = zero, in.begin_ps = zero, in.copy_ps = zero;
  in.bytes_per_s = rates, in.latency_ps = latency, in.link = links;
  CHECK(simulate_partners(in, out) == PartnersStatus::ok);
  CHECK(finish == I64s(4, 500) && out.puts == 12 && out.turns == 4);
  const auto refused = [&](auto change) {
    PartnersInput bad = in;
    change(bad);
    return simulate_partners(bad, out) == PartnersStatus::bad_input;
  };
  CHECK(!refused([](PartnersInput&) {}));
  CHECK(refused([](PartnersInput& bad) { bad.nics = 1; }));
  CHECK(refused([](PartnersInput& bad) { bad.ranks = 3; }));
  CHECK(refused([](PartnersInput& bad) { bad.channels = 2; }));
  CHECK(refused([](PartnersInput& bad) { bad.copy_ps = bad.copy_ps.first(3); }));
  CHECK(refused([&](PartnersInput& bad) { bad.tiers = {nodes, zero}; }));
  CHECK(refused([](PartnersInput& bad) { bad.bytes = bad.late_ps.first(1); }));
  in.most_puts = 15;
  CHECK(simulate_partners(in, out) == PartnersStatus::too_many);
  in.most_puts = 16;
  const I64s slow(12, 1), long_ones = {std::int64_t{1} << 50};
  in.bytes_per_s = slow, in.bytes = long_ones;
  CHECK(simulate_partners(in, out) == PartnersStatus::too_long);
}

// Ranks of nodes of four, a byte a picosecond but for one NIC, and two on one NIC where they are a power of two: several at a time as put by put.
TEST(partners_are_evaluated_side_by_side) {
  for (const std::size_t n : {12u, 61u, 128u, 200u, 256u, 1000u}) {
    std::vector<std::int32_t> node(n), nic(n), links;
    for (std::size_t r = 0; r < n; ++r) node[r] = static_cast<std::int32_t>(r / 4), nic[r] = static_cast<std::int32_t>(r);
    if ((n & (n - 1)) == 0) nic[6] = 7;
    const I64s bytes = {100}, zero(n, 0), latency(4 * n, 7);
    I64s rates(4 * n, 1'000'000'000'000), late(n, 0), finish(n), ends(n);
    rates[9] /= 3, late[n - 1] = 1234;
    PartnersInput in;
    in.ranks = in.nics = static_cast<std::int64_t>(n), in.channels = 1, in.node = node, in.nic = nic, in.bytes = bytes, in.late_ps = late;
    in.begin_ps = late, in.copy_ps = zero, in.bytes_per_s = rates, in.latency_ps = latency, in.link = links, in.side_by_side = false;
    std::vector<std::int32_t> above(2 * n, 0);  // switches over sixteen ranks, and one over all
    for (std::size_t r = 0; r < n; ++r) above[r] = static_cast<std::int32_t>(r / 16);
    const I64s tiers = {3, 100};
    if (n % 3 == 1) in.tiers = {above, tiers};
    PartnersOutput out{.finish_ps = finish};
    CHECK(simulate_partners(in, out) == PartnersStatus::ok);
    for (const Target target : {Target::best, Target::base}) {
      in.side_by_side = true, in.target = target;
      PartnersOutput several{.finish_ps = ends};
      CHECK(simulate_partners(in, several) == PartnersStatus::ok);
      CHECK(ends == finish && several.puts == out.puts && several.turns == out.turns);
    }
  }
}

TEST(columns_of_exchanges_that_do_not_fit_are_refused) {
  const RailsDraw drawn{Draw(1)};
  const auto ranks = static_cast<std::size_t>(drawn.group * drawn.units), near = static_cast<std::size_t>(drawn.group * drawn.classes);
  I64s arrived(ranks), left(ranks), seen(near), near_left(near);
  RailsOutput out{arrived, left, seen, near_left};
  const auto refused = [&](auto change) {
    RailsInput in = drawn.input(Target::best);
    change(in);
    return simulate_rails(in, out) == RailsStatus::bad_input;
  };
  CHECK(!refused([](RailsInput&) {}));
  CHECK(refused([](RailsInput& in) { in.nodes = 1; }));
  CHECK(refused([](RailsInput& in) { in.units = in.nodes + 1; }));
  CHECK(refused([](RailsInput& in) { in.bytes = in.bytes.first(in.bytes.size() - 1); }));
  CHECK(refused([](RailsInput& in) { in.nics = 0; }));
  CHECK(refused([](RailsInput& in) { in.class_of = in.map_of.first(0); }));
  RailsOutput few{arrived, std::span(left).first(ranks - 1), seen, near_left};
  CHECK(simulate_rails(drawn.input(Target::best), few) == RailsStatus::bad_input);
  const PairedDraw paired{Draw(3)};
  I64s finish(static_cast<std::size_t>(paired.ranks));
  PairedInput in = paired.input(Target::best);
  CHECK(simulate_paired(in, finish) == PairedStatus::ok);
  in.ranks = 3;
  CHECK(simulate_paired(in, finish) == PairedStatus::bad_input);
  in = paired.input(Target::best), in.group = 2 * paired.ranks;
  CHECK(simulate_paired(in, finish) == PairedStatus::bad_input);
  CHECK(simulate_paired(paired.input(Target::best), std::span(finish).first(1)) == PairedStatus::bad_input);
}
