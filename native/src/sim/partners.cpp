// See partners.hpp.
#include "partners.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "order.hpp"
#include "partner_octets.hpp"
#include "partner_rows.hpp"
#include "partner_tiers.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

bool good(const PartnersInput& in, const PartnersOutput& out) {
  const auto all = [](const auto& column, auto is_good) { return std::all_of(column.begin(), column.end(), is_good); };
  const auto time = [](std::int64_t v) { return v >= 0 && v <= kLatest; };
  if (in.ranks < 2 || in.ranks > 1 << 20 || in.nics < 1 || in.nics > 1 << 24) return false;
  if (in.channels < 1 || in.channels > 64 || !time(in.alpha_ps) || !runs(in.target)) return false;
  if (in.in_place && in.channels > 1) return false;
  const auto n = static_cast<std::size_t>(in.ranks), nics = static_cast<std::size_t>(in.nics), channels = static_cast<std::size_t>(in.channels);
  if (in.node.size() != n || in.late_ps.size() != n || !all(in.late_ps, time) || out.finish_ps.size() != n) return false;
  if (in.nic.size() != n * channels || !all(in.nic, [&](std::int32_t v) { return v >= 0 && v < in.nics; })) return false;
  if (in.bytes.size() != channels || !all(in.bytes, time) || std::ranges::max(in.bytes) == 0) return false;
  for (const auto& column : {in.begin_ps, in.copy_ps})
    if (column.size() != n * channels || !all(column, time)) return false;
  const std::size_t links = 2 * (nics + n);
  if (in.bytes_per_s.size() != links || in.latency_ps.size() != links || !all(in.latency_ps, time)) return false;
  if (!all(in.bytes_per_s, [](std::int64_t v) { return v >= 0; })) return false;
  if (!Changes::good(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0)))) return false;
  if (!PartnerTiers::good(in.tiers, n * channels)) return false;
  return in.link.size() == (in.changes.link.empty() ? 0 : 2 * nics) && all(in.link, [&](std::int32_t v) { return v >= 0 && v < in.links; });
}

// Streams that come to a put, by tick: those from `now` on, as bits.
class Calendar {
 public:
  explicit Calendar(std::size_t streams) : words_((streams + 63) / 64), bits_(kFirst * words_, 0), counts_(kFirst, 0) {}

  void add(std::int64_t tick, std::size_t stream, std::int64_t now) {
    while (static_cast<std::size_t>(tick - now) >= counts_.size()) grow(now);
    const std::size_t slot = static_cast<std::size_t>(tick) & (counts_.size() - 1);
    bits_[slot * words_ + stream / 64] |= std::uint64_t{1} << stream % 64;
    ++counts_[slot];
  }

  // Those of that tick, rising; they are in it no more.
  void take(std::int64_t tick, std::vector<std::uint32_t>& streams) {
    const std::size_t slot = static_cast<std::size_t>(tick) & (counts_.size() - 1);
    for (std::size_t w = 0; w < words_ && counts_[slot] > 0; ++w) {
      for (std::uint64_t bits = std::exchange(bits_[slot * words_ + w], 0); bits != 0; bits &= bits - 1, --counts_[slot])
        streams.push_back(static_cast<std::uint32_t>(64 * w) + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }

 private:
  static constexpr std::size_t kFirst = 64;

  void grow(std::int64_t now) {
    const std::size_t old = counts_.size();
    std::vector<std::uint64_t> bits(2 * old * words_, 0);
    std::vector<std::size_t> counts(2 * old, 0);
    for (std::size_t i = 0; i < old; ++i) {
      const std::size_t tick = static_cast<std::size_t>(now) + i, from = tick & (old - 1), to = tick & (2 * old - 1);
      std::copy_n(&bits_[from * words_], words_, &bits[to * words_]);
      counts[to] = counts_[from];
    }
    bits_.swap(bits);
    counts_.swap(counts);
  }

  std::size_t words_;
  std::vector<std::uint64_t> bits_;  // [ticks][words]
  std::vector<std::size_t> counts_;  // a power of two of ticks
};

struct Link {
  std::int64_t free_ps = 0;
  std::int32_t free_tick = 0;
  std::uint32_t kind = 0;
};

// What puts of both lengths take on links of one kind.
struct LinkKind {
  std::array<std::int64_t, 2> takes_ps{};
  std::int64_t latency_ps = 0;

  auto operator<=>(const LinkKind&) const = default;
};

// Of a stream: its put leaves at tick `leaves`.
struct Exchange {
  std::int64_t clock_ps = 0, arrives_ps = 0, left_ps = 0;
  std::int32_t leaves = 0;
};

struct Put {
  std::uint32_t from, to, a, b;
};

struct Waiting {
  std::int64_t turn;
  std::uint32_t step;
  Put put;
};

// kPlain: a power of two of ranks on one channel, none late, not in place, no rate changes, and switches add nothing.
template <bool kPlain>
class Partners {
 public:
  Partners(const PartnersInput& in, PartnersOutput& out)
      : in_(in), out_(out), n_(static_cast<std::uint32_t>(in.ranks)), nics_(static_cast<std::uint32_t>(in.nics)), power_(std::has_single_bit(n_)),
        all_(in.nic.size()), step_(in.nic.size(), 0), links_(2 * (std::size_t{nics_} + n_)), stamp_of_(links_.size(), 0),
        left_tick_(in.in_place ? in.nic.size() : 0, 0), leaves_ps_(left_tick_.size(), 0),
        turns_(links_.size()), changes_(in.changes, static_cast<std::size_t>(std::max<std::int64_t>(in.links, 0))), soon_(in.nic.size()),
        copying_(left_tick_.size()), tiers_(in.tiers, all_.size(), 0, all_.size(), all_.size(), all_.size(), std::identity{}) {}

  PartnersStatus run() {
    if (!prepare()) return PartnersStatus::too_long;
    for (; remaining_ > 0; ++tick_) {
      soon_.take(tick_, due_[0]);
      if (in_place()) copying_.take(tick_, due_[1]);
      while (!due_[0].empty() || !due_[1].empty()) {
        now_.swap(due_[0]);
        due_[0].clear();
        due_[0].swap(due_[1]);
        batch();
        if (latest_ps_ > kLatest) return PartnersStatus::overflow;
      }
      if (tick_ >= kMostTicks || stamp_ >= kMostStamps) return PartnersStatus::too_long;
    }
    for (std::size_t i = 0; i < all_.size(); ++i) {
      std::int64_t& finish = out_.finish_ps[i % n_];
      finish = std::max({i < n_ ? in_.late_ps[i] : finish, all_[i].clock_ps, all_[i].left_ps});
    }
    return std::ranges::max(out_.finish_ps) > kLatest ? PartnersStatus::overflow : PartnersStatus::ok;
  }

 private:
  static constexpr std::int32_t kMostTicks = 1 << 30;
  static constexpr std::uint32_t kMostStamps = 1u << 31;
  static constexpr std::size_t kAhead = 8;  // puts

  bool prepare() {
    const auto other = std::ranges::find_if(in_.bytes, [&](std::int64_t v) { return v != in_.bytes[0]; });
    const std::array<std::int64_t, 2> sizes{in_.bytes[0], other == in_.bytes.end() ? in_.bytes[0] : *other};
    std::int64_t longest = std::max({std::ranges::max(in_.copy_ps), std::ranges::max(in_.latency_ps), tiers_.most(),
                                     std::ranges::max(in_.begin_ps) / in_.ranks});
    std::map<LinkKind, std::uint32_t> kinds;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      LinkKind kind{{}, in_.latency_ps[i]};
      const std::int64_t rate = in_.bytes_per_s[i];
      for (std::size_t k = 0; k < sizes.size() && rate > 0; ++k)
        kind.takes_ps[k] = (sizes[k] > 0 ? in_.alpha_ps : 0) + std::min(duration_ps(sizes[k], rate), kLatest);
      longest = std::max(longest, std::ranges::max(kind.takes_ps));
      const auto [found, is_new] = kinds.try_emplace(kind, static_cast<std::uint32_t>(kinds_.size()));
      if (is_new) kinds_.push_back(kind);
      links_[i].kind = found->second;
    }
    if (longest >= (kLatest << 1) / (8 * in_.ranks * in_.channels)) return false;
    for (const std::int64_t bytes : in_.bytes) size_of_.push_back(bytes != sizes[0]);
    any_late_ = std::ranges::max(in_.late_ps) > 0;
    for (std::uint32_t i = 0; i < all_.size(); ++i) {
      all_[i].clock_ps = in_.begin_ps[i];
      step_[i] = power_ ? 0 : static_cast<std::uint32_t>(-2);  // before the first one
      if (advance(i)) due_[0].push_back(i);
    }
    remaining_ = due_[0].size();
    return true;
  }

  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stream) const { return kPlain || in_.channels == 1 ? stream : stream % n_; }
  [[nodiscard]] bool in_place() const { return !kPlain && in_.in_place; }

  [[nodiscard]] std::uint32_t partner(std::uint32_t rank, std::uint32_t step) const {
    if (kPlain || power_) return rank ^ step;
    return step >= rank ? step - rank : step + n_ - rank;
  }

  // To the next step in which its rank does not rest; false after the last one.
  bool advance(std::uint32_t i) {
    if (kPlain) return (step_[i] = (step_[i] | 1) + 1) < 2 * n_;
    const std::uint32_t rank = rank_of(i);
    std::uint32_t step = step_[i] / 2;
    do step = (step + 1) & 0x7fffffff;
    while (step < n_ && partner(rank, step) == rank);
    step_[i] = 2 * step;
    return step < n_;
  }

  // Puts that begin at once, whoever makes them.
  void batch() {
    const std::uint32_t stamp = stamp_ += 2, nics = nics_;
    puts_.resize(now_.size());
    Put* next = puts_.data();
    for (const std::uint32_t i : now_) {
      const std::uint32_t rank = rank_of(i), other = partner(rank, step_[i] / 2), j = i - rank + other;
      const bool far = in_.node[rank] != in_.node[other];
      const std::uint32_t a = 2 * (far ? static_cast<std::uint32_t>(in_.nic[i]) : nics + rank);
      const std::uint32_t b = 2 * (far ? static_cast<std::uint32_t>(in_.nic[j]) : nics + other) + 1;
      for (const std::uint32_t link : {a, b}) stamp_of_[link] = stamp_of_[link] >= stamp ? stamp + 1 : stamp;
      *next++ = {i, j, a, b};
    }
    out_.puts += static_cast<std::int64_t>(puts_.size());
    for (std::size_t i = 0; i < puts_.size(); ++i) {
      const Put& put = puts_[i];
      if (i + kAhead < puts_.size()) fetch(puts_[i + kAhead]);
      if (((stamp_of_[put.a] | stamp_of_[put.b]) & 1) != 0) {
        waiting_.push_back({0, step_[put.from], put});
      } else {
        take(put);
      }
    }
    if (!waiting_.empty()) take_turns();
  }

  void fetch(const Put& put) {
    __builtin_prefetch(&all_[put.from], 1);
    __builtin_prefetch(&all_[put.to], 1);
    __builtin_prefetch(&links_[put.a], 1);
    __builtin_prefetch(&links_[put.b], 1);
  }

  void take_turns() {
    out_.turns += static_cast<std::int64_t>(waiting_.size());
    std::ranges::sort(waiting_, {}, [](const Waiting& each) { return std::pair{each.step, each.put.from}; });
    for (Waiting& each : waiting_) each.turn = turns_.next(static_cast<std::int32_t>(each.put.a), static_cast<std::int32_t>(each.put.b));
    turns_.clear();
    std::ranges::stable_sort(waiting_, {}, &Waiting::turn);
    for (const Waiting& each : waiting_) take(each.put);
    waiting_.clear();
  }

  void take(const Put& put) {
    Exchange &own = all_[put.from], &its = all_[put.to];
    Link &a = links_[put.a], &b = links_[put.b];
    const bool far = put.a < 2 * nics_;
    own.leaves = tick_;
    if (far) own.leaves = a.free_tick = b.free_tick = std::max({tick_, a.free_tick, b.free_tick}) + 1;
    std::int64_t start = std::max({own.clock_ps, a.free_ps, b.free_ps});
    if (!kPlain && any_late_) start = std::max(start, in_.late_ps[rank_of(put.to)]);
    const std::size_t channel = kPlain || in_.channels == 1 ? 0 : put.from / n_, size = size_of_[channel];
    const LinkKind &sends = kinds_[a.kind], &receives = kinds_[b.kind];
    a.free_ps = start + sends.takes_ps[size];
    b.free_ps = start + receives.takes_ps[size];
    if (!kPlain && far && !in_.link.empty()) {
      a.free_ps = through(start, a.free_ps, put.a, in_.bytes[channel]);
      b.free_ps = through(start, b.free_ps, put.b, in_.bytes[channel]);
    }
    const std::int64_t leaves = std::max(a.free_ps, b.free_ps);
    own.left_ps = std::max(own.left_ps, leaves);
    own.arrives_ps = leaves + sends.latency_ps + receives.latency_ps;
    if (!kPlain && far && tiers_.any()) own.arrives_ps += tiers_.of(put.from, put.to);
    latest_ps_ = std::max(latest_ps_, own.arrives_ps);
    if (in_place()) {
      leaves_ps_[put.from] = leaves;
      if (far) left_tick_[put.from] = own.leaves;
    }
    if ((step_[put.from] |= 1) != step_[put.to]) return;  // it has not come so far
    go_on(put.to, its, own);
    go_on(put.from, own, its);
  }

  // Saturated where nothing passes any more.
  [[nodiscard]] std::int64_t through(std::int64_t start, std::int64_t else_ps, std::uint32_t link, std::int64_t nbytes) const {
    if (!changes_.on(in_.link[link])) return else_ps;
    const std::int64_t from = std::min(start, 2 * kLatest) + (nbytes > 0 ? in_.alpha_ps : 0);
    return std::min(changes_.through_ps(in_.link[link], from, nbytes, in_.bytes_per_s[link]), 2 * kLatest);
  }

  // What its partner put has come, or will.
  void go_on(std::uint32_t i, Exchange& own, const Exchange& partner) {
    own.clock_ps = std::max(own.clock_ps, partner.arrives_ps);
    const std::int32_t seen = std::max(tick_, partner.leaves);
    if (in_place()) own.clock_ps = std::max(own.clock_ps, leaves_ps_[i]) + in_.copy_ps[i];
    if (!advance(i)) {
      --remaining_;
    } else if (in_place() && left_tick_[i] > seen) {
      soon_.add(left_tick_[i], i, tick_);
    } else if (seen == tick_) {
      due_[in_place()].push_back(i);
    } else {
      (in_place() ? copying_ : soon_).add(seen, i, tick_);
    }
  }

  const PartnersInput& in_;
  PartnersOutput& out_;
  std::uint32_t n_, nics_;
  bool power_, any_late_ = false;
  std::vector<Exchange> all_;         // by stream
  std::vector<std::uint32_t> step_;   // twice the step, and one more while its put is under way
  std::vector<Link> links_;           // of NICs, then of ranks inside nodes: sending, receiving
  std::vector<std::uint32_t> stamp_of_;  // of links: the last batch that used it, twice; one more if it had several puts
  std::vector<std::int32_t> left_tick_;  // in place: when what was put has left
  std::vector<std::int64_t> leaves_ps_;
  std::vector<LinkKind> kinds_;
  std::vector<std::uint8_t> size_of_;               // [channels]
  Turns turns_;
  Changes changes_;
  Calendar soon_, copying_;                          // in the first batch of puts of a tick, and the second one
  std::array<std::vector<std::uint32_t>, 2> due_;    // in the next batch of this tick, and the one after it
  PartnerTiers tiers_;
  std::vector<std::uint32_t> now_;
  std::vector<Put> puts_;
  std::vector<Waiting> waiting_;
  std::int32_t tick_ = 0;
  std::uint32_t stamp_ = 0;
  std::int64_t latest_ps_ = 0;
  std::size_t remaining_ = 0;  // streams that have not come to their end
};

}  // namespace

PartnersStatus simulate_partners(const PartnersInput& in, PartnersOutput& out) noexcept try {
  if (!good(in, out)) return PartnersStatus::bad_input;
  if (in.side_by_side && in_octets(in)) return simulate_in_octets(in, out);
  if (in.side_by_side && in_rows(in))
    if (const PartnersStatus status = simulate_in_rows(in, out); status != PartnersStatus::out_of_order) return status;
  if (in.ranks * in.ranks * in.channels > in.most_puts) return PartnersStatus::too_many;
  const bool late = std::ranges::max(in.late_ps) > 0;
  const bool plain = std::has_single_bit(static_cast<std::uint64_t>(in.ranks)) && in.channels == 1 && !late && !in.in_place && in.link.empty() &&
                     in.tiers.latency_ps.empty();
  return plain ? Partners<true>(in, out).run() : Partners<false>(in, out).run();
} catch (const std::bad_alloc&) {
  return PartnersStatus::out_of_memory;
}

}  // namespace ccl_lab::sim
