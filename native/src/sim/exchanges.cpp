#include "exchanges.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "exact.hpp"
#include "stream.hpp"

namespace ccl_lab::sim {
namespace {

using Status = ExchangesStatus;

struct Link {
  std::int64_t free_ps = 0, free_tick = 0, batch = -1;
  std::uint64_t turns = 0;  // of `batch` that are given away, a bit each
};

// What a rank raised and its partner has not come to yet.
struct Raised {
  std::int64_t seen_ps = 0, tick = 0, batch = 0, row = -1;
};

constexpr std::size_t kRaised = 4;  // that a rank may be ahead of its partners

struct Rank {
  std::int64_t clock_ps = 0, batch = -1, left_ps = 0, left_tick = 0, memory_free_ps = 0;
  std::int32_t at = 0;  // its next row; where it waits, that of the wait
  bool row = false;     // its last op was a put or a signal
  bool waits = false;
  bool flushes = false;   // it waits until its puts are served
  std::int32_t puts = 0;  // that are not served yet
  Raised raised[kRaised];
};

struct Event {
  std::int32_t row, rank;
  std::int64_t clock_ps;
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> op() const { return {row, rank}; }
};

class Exchanges {
 public:
  explicit Exchanges(const ExchangesInput& in)
      : in_(in), n_(static_cast<std::size_t>(in.ranks)), ranks_(n_), links_(in.bytes_per_s.size()), place_(in.step.size()), known_(1024) {
    std::int32_t raises = 0;
    for (std::size_t i = 0; i < in.step.size(); ++i)
      if (kind(i) == Step::put || kind(i) == Step::signal) place_[i] = raises++ % static_cast<std::int32_t>(kRaised);
  }

  Status run(std::span<std::int64_t> finish_ps) {
    for (std::size_t r = 0; r < n_; ++r) {
      ranks_[r].clock_ps = in_.late_ps[r];
      go_on(static_cast<std::int32_t>(r));
    }
    while (!pending_.empty() && status_ == Status::ok) {
      const std::int64_t number = pending_.begin()->first;
      std::vector<Event> batch = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
      serve(number, batch);
    }
    for (std::size_t r = 0; r < n_ && status_ == Status::ok; ++r) {
      if (static_cast<std::size_t>(ranks_[r].at) < in_.step.size()) status_ = Status::deadlock;
      finish_ps[r] = std::max(ranks_[r].clock_ps, ranks_[r].left_ps);
    }
    return status_;
  }

 private:
  [[nodiscard]] Step kind(std::size_t i) const { return static_cast<Step>(in_.step[i]); }
  [[nodiscard]] std::int32_t partner(std::int32_t rank, std::size_t i) const { return rank ^ static_cast<std::int32_t>(in_.apart[i]); }
  [[nodiscard]] std::size_t tx(std::int32_t r, std::size_t i) const { return static_cast<std::size_t>(in_.near[i] ? r : in_.tx[r]); }
  [[nodiscard]] std::size_t rx(std::int32_t r, std::size_t i) const {
    return in_.near[i] ? n_ + static_cast<std::size_t>(r) : static_cast<std::size_t>(in_.rx[r]);
  }
  [[nodiscard]] std::int64_t bytes(std::int32_t r, std::size_t i) const {
    return in_.row[i] < 0 ? in_.nbytes[i] : in_.bytes[static_cast<std::size_t>(in_.row[i]) * n_ + static_cast<std::size_t>(r)];
  }

  std::int64_t busy(std::int64_t nbytes, std::size_t link) {
    const std::int64_t rate = in_.bytes_per_s[link];
    const auto mixed = static_cast<std::uint64_t>(nbytes) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(rate) * 0xC2B2AE3D27D4EB4Full;
    Known& known = known_[(mixed >> 32) % known_.size()];
    if (known.bytes != nbytes || known.rate != rate) known = {nbytes, rate, std::min(duration_ps(nbytes, rate), kLatest)};
    return known.ps;
  }

  // A rank does what it can, up to its next put, which waits for its turn, or to a wait for what was not raised.
  void go_on(std::int32_t r) {
    Rank& me = ranks_[static_cast<std::size_t>(r)];
    for (me.waits = false; static_cast<std::size_t>(me.at) < in_.step.size(); ++me.at) {
      const auto i = static_cast<std::size_t>(me.at);
      if (kind(i) == Step::put) {
        me.batch += !me.row;
        me.row = true;
        ++me.puts;
        pending_[me.batch].push_back({me.at, r, me.clock_ps});
      } else if (kind(i) == Step::signal) {
        me.batch += !me.row;
        me.row = true;
        raise(r, i, {me.clock_ps, me.batch >> kPlaceBits, me.batch, static_cast<std::int64_t>(i)});
      } else if (kind(i) == Step::wait) {
        Rank& other = ranks_[static_cast<std::size_t>(partner(r, i))];
        Raised& found = other.raised[static_cast<std::size_t>(place_[static_cast<std::size_t>(in_.raise[i])])];
        me.waits = found.row != in_.raise[i];
        if (me.waits) return;
        take(r, i, found);
        found.row = -1;
      } else if (kind(i) == Step::flush) {
        me.flushes = me.puts > 0;
        if (me.flushes) return;
        me.clock_ps = std::max(me.clock_ps, me.left_ps);
        me.batch = std::max(me.batch + 1, (me.left_tick << kPlaceBits) - 1);
        me.row = false;
      } else {
        ++me.batch;
        me.row = false;
        me.clock_ps = me.memory_free_ps = std::max(me.clock_ps, me.memory_free_ps) + busy(bytes(r, i), 2 * n_ + static_cast<std::size_t>(r));
      }
      if (me.clock_ps > kLatest || (kind(i) != Step::flush && (me.batch & (kPlaces - 1)) > kPlaces - 8)) status_ = Status::overflow;
      if (status_ != Status::ok) return;
    }
  }

  // After a wait for what was raised.
  void take(std::int32_t r, std::size_t i, const Raised& raised) {
    Rank& me = ranks_[static_cast<std::size_t>(r)];
    const std::size_t a = tx(partner(r, i), i), b = rx(r, i);
    const std::int64_t tick = std::max(std::max<std::int64_t>(me.batch, 0) >> kPlaceBits, raised.tick);
    me.batch = std::max(tick << kPlaceBits, std::max(me.batch, raised.batch) + 1);
    me.clock_ps = std::max(me.clock_ps, raised.seen_ps + in_.latency_ps[a] + in_.latency_ps[b]);
    me.row = false;
  }

  void raise(std::int32_t r, std::size_t i, const Raised& raised) {
    const std::int32_t to = partner(r, i);
    Rank& other = ranks_[static_cast<std::size_t>(to)];
    if (other.waits && in_.raise[static_cast<std::size_t>(other.at)] == raised.row && partner(to, static_cast<std::size_t>(other.at)) == r) {
      take(to, static_cast<std::size_t>(other.at), raised);
      ++other.at;
      go_on(to);
      return;
    }
    Raised& place = ranks_[static_cast<std::size_t>(r)].raised[static_cast<std::size_t>(place_[i])];
    if (place.row >= 0) status_ = Status::unsupported;
    place = raised;
  }

  // All puts of one batch: those with the first turn of their links at once, as no other comes before them there, then the others by turn.
  void serve(std::int64_t number, std::vector<Event>& batch) {
    const auto before = [](const Event& a, const Event& b) { return a.op() < b.op(); };
    if (!std::is_sorted(batch.begin(), batch.end(), before)) std::sort(batch.begin(), batch.end(), before);
    later_.clear();
    for (std::size_t k = 0; k < batch.size() && status_ == Status::ok; ++k) {
      const auto i = static_cast<std::size_t>(batch[k].row);
      Link &a = links_[tx(batch[k].rank, i)], &b = links_[rx(partner(batch[k].rank, i), i)];
      for (Link* link : {&a, &b}) {
        if (link->batch > number) status_ = Status::unsupported;
        if (link->batch < number) *link = {link->free_ps, link->free_tick, number, 0};
      }
      const int turn = std::countr_one(a.turns | b.turns);
      if (turn > 63) status_ = Status::unsupported;
      if (status_ != Status::ok) return;
      a.turns |= std::uint64_t{1} << turn;
      b.turns |= std::uint64_t{1} << turn;
      if (turn == 0) put(number, batch[k]);
      else later_.emplace_back(turn, k);
    }
    std::sort(later_.begin(), later_.end());
    for (std::size_t k = 0; k < later_.size() && status_ == Status::ok; ++k) put(number, batch[later_[k].second]);
  }

  void put(std::int64_t number, const Event& event) {
    const auto i = static_cast<std::size_t>(event.row);
    const std::int32_t to = partner(event.rank, i);
    Rank& me = ranks_[static_cast<std::size_t>(event.rank)];
    const std::size_t a = tx(event.rank, i), b = rx(to, i);
    Link &out = links_[a], &into = links_[b];
    const std::int64_t nbytes = bytes(event.rank, i), held = nbytes > 0 ? in_.alpha_ps : 0;
    const std::int64_t start = std::max({event.clock_ps, in_.late_ps[static_cast<std::size_t>(to)], out.free_ps, into.free_ps});
    out.free_ps = start + held + busy(nbytes, a);
    into.free_ps = start + held + busy(nbytes, b);
    const std::int64_t done = std::max(out.free_ps, into.free_ps);
    std::int64_t tick = number >> kPlaceBits;
    me.left_ps = std::max(me.left_ps, done);
    if (!in_.near[i]) {
      tick = out.free_tick = into.free_tick = std::max({tick, out.free_tick, into.free_tick}) + in_.ticks[i];
      me.left_tick = std::max(me.left_tick, tick);
    }
    if (done > kLatest || tick > kLastTick) status_ = Status::overflow;
    --me.puts;
    if (status_ == Status::ok) raise(event.rank, i, {done, tick, number, event.row});
    if (status_ == Status::ok && me.flushes && me.puts == 0) go_on(event.rank);
  }

  struct Known {
    std::int64_t bytes = -1, rate = -1, ps = 0;
  };

  const ExchangesInput& in_;
  std::size_t n_;
  std::vector<Rank> ranks_;
  std::vector<Link> links_;
  std::vector<std::int32_t> place_;  // of a put or signal: where it is kept
  std::vector<Known> known_;
  std::map<std::int64_t, std::vector<Event>> pending_;
  std::vector<std::pair<int, std::size_t>> later_;
  Status status_ = Status::ok;
};

bool good(const ExchangesInput& in, std::size_t finish) {
  const auto n = static_cast<std::size_t>(in.ranks), rows = in.step.size(), links = in.bytes_per_s.size();
  if (in.ranks < 1 || in.late_ps.size() != n || finish != n || in.tx.size() != n || in.rx.size() != n || in.near.size() != rows) return false;
  for (const auto& column : {in.apart, in.ticks, in.raise, in.nbytes, in.row})
    if (column.size() != rows) return false;
  const auto link = [&](std::int32_t v) { return v >= 0 && static_cast<std::size_t>(v) < links; };
  if (links < 3 * n || in.latency_ps.size() != links || !std::ranges::all_of(in.tx, link) || !std::ranges::all_of(in.rx, link)) return false;
  for (std::size_t i = 0; i < rows; ++i) {
    if (in.step[i] > 4 || in.apart[i] < 0 || in.apart[i] >= in.ranks || (in.apart[i] > 0 && !std::has_single_bit(n))) return false;
    if (in.row[i] >= 0 && (static_cast<std::size_t>(in.row[i]) + 1) * n > in.bytes.size()) return false;
    if (in.step[i] != 1) continue;
    if (in.raise[i] < 0 || static_cast<std::size_t>(in.raise[i]) >= i || in.apart[static_cast<std::size_t>(in.raise[i])] != in.apart[i]) return false;
  }
  return true;
}

}  // namespace

ExchangesStatus simulate_exchanges(const ExchangesInput& in, std::span<std::int64_t> finish_ps) noexcept try {
  if (!good(in, finish_ps.size())) return Status::bad_input;
  return Exchanges(in).run(finish_ps);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory;
}

}  // namespace ccl_lab::sim
