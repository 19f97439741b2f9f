// See exact.hpp. Two stages: `Order` finds levels and which signal satisfies which wait (no times), `Clock` walks the ops in
// that order once and adds up time. Keeping order free of time is what makes the result monotone in every rate and delay.
#include "exact.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "ccl_lab/schema.hpp"

namespace ccl_lab::sim {
namespace {

constexpr std::int64_t kForever = std::int64_t{1} << 62;
constexpr std::int32_t kNone = -1;
__extension__ typedef unsigned __int128 Wide;  // bytes times 10^12 need more than 64 bits

// Dense numbers 0, 1, 2, … for keys, in order of first appearance. Open addressing, at most half full.
class DenseIds {
 public:
  DenseIds() : slots_(64, Slot{0, kNone}) {}

  std::int32_t operator()(std::uint64_t key) {
    Slot* slot = find(key);
    if (slot->id != kNone) return slot->id;
    if (2 * static_cast<std::size_t>(count_ + 1) > slots_.size()) {
      grow();
      slot = find(key);
    }
    *slot = {key, count_};
    return count_++;
  }

  [[nodiscard]] std::int32_t count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t key;
    std::int32_t id;
  };

  Slot* find(std::uint64_t key) {
    std::size_t i = (key * 0x9E3779B97F4A7C15ull >> 24) & (slots_.size() - 1);
    while (slots_[i].id != kNone && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return &slots_[i];
  }

  void grow() {
    std::vector<Slot> old(4 * slots_.size(), Slot{0, kNone});
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.id != kNone) *find(slot.key) = slot;
  }

  std::vector<Slot> slots_;
  std::int32_t count_ = 0;
};

Kind kind_of(const ExactInput& in, std::size_t op) { return static_cast<Kind>(in.kind[op]); }

bool raises(const ExactInput& in, std::size_t op) {
  return in.sig_channel[op] >= 0 && (kind_of(in, op) == Kind::put || kind_of(in, op) == Kind::signal);
}

std::uint64_t key_of(std::int32_t high, std::int32_t low) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 | static_cast<std::uint32_t>(low);
}

// Static order of the ops: round L of the breadth-first walk holds the ops of level L.
class Order {
 public:
  std::vector<std::int32_t> channel_of, counter_of;
  std::vector<std::int32_t> raiser;  // the op whose signal satisfies a wait
  std::vector<std::int32_t> order;

  explicit Order(const ExactInput& in)
      : channel_of(in.rank.size()), counter_of(in.rank.size(), kNone), raiser(in.rank.size(), kNone), in_(in),
        n_(in.rank.size()), next_(n_, kNone) {
    number_channels();
    number_counters();
  }

  // Levels into `level`; false where ops remain that can never run.
  bool walk(std::span<std::int32_t> level) {
    std::fill(level.begin(), level.end(), kNone);
    std::vector<std::int32_t> round, following;
    for (const std::int32_t op : heads_) settle(op, following);
    for (std::int32_t depth = 0; !following.empty(); ++depth) {
      round.swap(following);
      following.clear();
      std::sort(round.begin(), round.end());
      for (const std::int32_t op : round) {
        level[op] = depth;
        order.push_back(op);
        if (raises(in_, op)) raised_ops_[first_[counter_of[op]] + raised_[counter_of[op]]++] = op;
      }
      // Waits that were parked before this round first: `settle` parks new ones on the same lists.
      for (const std::int32_t op : round)
        if (raises(in_, op)) release(counter_of[op], following);
      for (const std::int32_t op : round)
        if (next_[op] != kNone) settle(next_[op], following);
    }
    return order.size() == n_;
  }

  [[nodiscard]] std::int64_t raised(std::size_t op) const { return raised_[counter_of[op]]; }
  [[nodiscard]] std::size_t counters() const { return raised_.size(); }
  [[nodiscard]] std::int32_t channels() const { return static_cast<std::int32_t>(heads_.size()); }

 private:
  // Chains the ops of each (rank, channel) in op order.
  void number_channels() {
    DenseIds ids;
    std::vector<std::int32_t> last;
    for (std::size_t i = 0; i < n_; ++i) {
      const auto op = static_cast<std::int32_t>(i);
      const std::int32_t id = ids(key_of(in_.rank[i], in_.channel[i]));
      channel_of[i] = id;
      if (static_cast<std::size_t>(id) == last.size()) {
        heads_.push_back(op);
        last.push_back(op);
      } else {
        next_[last[id]] = op;
        last[id] = op;
      }
    }
  }

  // A counter is (destination, source, sig_channel): two dense steps keep the key in 64 bits.
  void number_counters() {
    DenseIds pairs, counters;
    for (std::size_t op = 0; op < n_; ++op) {
      const bool waits = kind_of(in_, op) == Kind::wait;
      if (!waits && !raises(in_, op)) continue;
      const std::int32_t dst = waits ? in_.rank[op] : in_.peer[op], src = waits ? in_.peer[op] : in_.rank[op];
      counter_of[op] = counters(key_of(pairs(key_of(dst, src)), in_.sig_channel[op]));
    }
    first_.assign(counters.count() + 1, 0);
    for (std::size_t op = 0; op < n_; ++op)
      if (raises(in_, op)) ++first_[counter_of[op] + 1];
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    raised_ops_.assign(first_.back(), kNone);
    raised_.assign(counters.count(), 0);
    parked_.assign(counters.count(), {});
    order.reserve(n_);
  }

  bool satisfied(std::int32_t op) {
    const std::int32_t counter = counter_of[op];
    if (in_.value[op] > raised_[counter]) return false;
    if (in_.value[op] > 0) raiser[op] = raised_ops_[first_[counter] + in_.value[op] - 1];
    return true;
  }

  void settle(std::int32_t op, std::vector<std::int32_t>& following) {
    if (kind_of(in_, op) != Kind::wait || satisfied(op)) following.push_back(op);
    else parked_[counter_of[op]].push_back(op);
  }

  void release(std::int32_t counter, std::vector<std::int32_t>& following) {
    std::erase_if(parked_[counter], [&](std::int32_t op) {
      if (!satisfied(op)) return false;
      following.push_back(op);
      return true;
    });
  }

  const ExactInput& in_;
  std::size_t n_;
  std::vector<std::int32_t> next_, heads_;
  std::vector<std::int32_t> first_, raised_ops_, raised_;  // per counter: its raisers in static order
  std::vector<std::vector<std::int32_t>> parked_;
};

// Adds up time along `Order`.
class Clock {
 public:
  Clock(const ExactInput& in, const ExactOutput& out, const Order& order)
      : in_(in), out_(out), order_(order), clock_(order.channels()), left_(order.channels()),
        free_(in.link_latency_ps.size(), 0), last_arrival_(order.counters(), 0) {
    for (std::size_t op = 0; op < in.rank.size(); ++op) clock_[order.channel_of[op]] = in.late_ps[in.rank[op]];
  }

  // The first op that happens too late to be represented, or -1.
  std::int64_t run() {
    std::copy(in_.late_ps.begin(), in_.late_ps.end(), out_.finish_ps.begin());
    for (const std::int32_t op : order_.order) {
      std::int64_t& clock = clock_[order_.channel_of[op]];
      out_.begin_ps[op] = out_.start_ps[op] = clock;
      const std::int64_t leave = step(op, clock);
      out_.end_ps[op] = clock;
      std::int64_t& finish = out_.finish_ps[in_.rank[op]];
      finish = std::max({finish, clock, leave});
      if (finish >= kForever || out_.arrive_ps[op] >= kForever) return op;
    }
    return -1;
  }

 private:
  // Does one op; returns when its bytes have left.
  std::int64_t step(std::int32_t op, std::int64_t& clock) {
    out_.leave_ps[op] = out_.arrive_ps[op] = clock;
    switch (kind_of(in_, op)) {
      case Kind::put:
        if (in_.peer[op] == in_.rank[op]) clock = move(op, clock);
        else move(op, clock);
        note_leave(op);
        signal(op, out_.arrive_ps[op]);
        break;
      case Kind::get: clock = move(op, clock + in_.request_ps[op]); break;
      case Kind::signal: signal(op, clock + latency(op)); break;
      case Kind::wait:
        if (order_.raiser[op] != kNone) clock = std::max(clock, out_.arrive_ps[order_.raiser[op]]);
        break;
      case Kind::flush: clock = std::max(clock, flushed(op)); break;
      case Kind::copy:
      case Kind::reduce: clock = move(op, clock); break;
      case Kind::compute: clock += in_.compute_ps[op]; break;
    }
    if (kind_of(in_, op) == Kind::compute || kind_of(in_, op) == Kind::wait || kind_of(in_, op) == Kind::flush)
      out_.leave_ps[op] = out_.arrive_ps[op] = clock;
    return out_.leave_ps[op];
  }

  [[nodiscard]] std::int64_t latency(std::int32_t op) const {
    return in_.link_latency_ps[in_.link_a[op]] +
           (in_.link_a[op] == in_.link_b[op] ? 0 : in_.link_latency_ps[in_.link_b[op]]);
  }

  // Occupies the links of the path; returns the arrival.
  std::int64_t move(std::int32_t op, std::int64_t from) {
    const std::int32_t a = in_.link_a[op], b = in_.link_b[op];
    const std::int64_t start = std::max({from, in_.ready_ps[op], free_[a], free_[b]});
    const std::int64_t time_a = duration_ps(in_.work_bytes[op], in_.link_bytes_per_s[a]);
    const std::int64_t time_b = a == b ? time_a : duration_ps(in_.work_bytes[op], in_.link_bytes_per_s[b]);
    // Each at most 2^62, so sums of two fit; saturated here so that later ops cannot overflow either.
    free_[a] = std::min(start + time_a, kForever);
    free_[b] = std::min(start + time_b, kForever);
    out_.start_ps[op] = start;
    out_.leave_ps[op] = std::min(start + std::max(time_a, time_b), kForever);
    return out_.arrive_ps[op] = std::min(out_.leave_ps[op] + latency(op), kForever);
  }

  // A counter rises in static order: never before an earlier raise has been seen.
  void signal(std::int32_t op, std::int64_t arrival) {
    if (in_.sig_channel[op] < 0) return;
    std::int64_t& last = last_arrival_[order_.counter_of[op]];
    last = std::max(last, arrival);
    out_.arrive_ps[op] = last;
  }

  std::int64_t& left_to(std::int32_t op) {
    const std::size_t id = pairs_(key_of(order_.channel_of[op], in_.peer[op]));
    if (id == left_to_.size()) left_to_.push_back(0);
    return left_to_[id];
  }

  void note_leave(std::int32_t op) {
    std::int64_t& all = left_[order_.channel_of[op]];
    all = std::max(all, out_.leave_ps[op]);
    std::int64_t& one = left_to(op);
    one = std::max(one, out_.leave_ps[op]);
  }

  std::int64_t flushed(std::int32_t op) { return in_.peer[op] < 0 ? left_[order_.channel_of[op]] : left_to(op); }

  const ExactInput& in_;
  const ExactOutput& out_;
  const Order& order_;
  std::vector<std::int64_t> clock_, left_;  // per channel: now, and when its last put had left
  std::vector<std::int64_t> free_;          // per link
  std::vector<std::int64_t> last_arrival_;  // per counter
  std::vector<std::int64_t> left_to_;       // per (channel, peer)
  DenseIds pairs_;
};

// The first op with a column out of range, or -1. Everything after relies on it.
std::int64_t find_bad_op(const ExactInput& in) {
  const auto ranks = static_cast<std::int32_t>(in.late_ps.size());
  const auto links = static_cast<std::int32_t>(in.link_bytes_per_s.size());
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    const Kind kind = kind_of(in, op);
    const bool paired = kind == Kind::put || kind == Kind::get || kind == Kind::signal || kind == Kind::wait;
    const bool counted = kind == Kind::signal || kind == Kind::wait;
    const auto link_is_good = [&](std::int32_t l) { return l >= 0 && l < links && in.link_bytes_per_s[l] > 0; };
    const auto time_is_good = [](std::int64_t ps) { return ps >= 0 && ps < kForever / 2; };
    if (in.kind[op] >= kKindCount || in.rank[op] < 0 || in.rank[op] >= ranks || in.peer[op] < -1 ||
        in.peer[op] >= ranks || (paired && in.peer[op] < 0) || (counted && in.sig_channel[op] < 0) ||
        in.sig_channel[op] < -1 || in.work_bytes[op] < 0 || !link_is_good(in.link_a[op]) || !link_is_good(in.link_b[op]) ||
        !time_is_good(in.compute_ps[op]) || !time_is_good(in.ready_ps[op]) || !time_is_good(in.request_ps[op]) ||
        !time_is_good(in.late_ps[in.rank[op]]) || !time_is_good(in.link_latency_ps[in.link_a[op]]) ||
        !time_is_good(in.link_latency_ps[in.link_b[op]]))
      return static_cast<std::int64_t>(op);
  }
  return -1;
}

// The wait to blame: the first op, by id, that its channel came to and that nothing will wake.
ExactResult find_deadlock(const ExactInput& in, const Order& order, std::span<const std::int32_t> level) {
  std::vector<bool> seen(order.channels(), false);
  for (std::size_t op = 0; op < in.rank.size(); ++op) {
    if (level[op] != kNone || seen[order.channel_of[op]]) continue;
    seen[order.channel_of[op]] = true;
    if (kind_of(in, op) == Kind::wait) return {ExactStatus::deadlock, static_cast<std::int64_t>(op), order.raised(op)};
  }
  return {ExactStatus::deadlock, -1, 0};
}

}  // namespace

std::int64_t duration_ps(std::int64_t nbytes, std::int64_t bytes_per_s) noexcept {
  const Wide rate = static_cast<Wide>(bytes_per_s);
  const Wide ps = (static_cast<Wide>(nbytes) * 1'000'000'000'000u + rate - 1) / rate;
  return ps > static_cast<Wide>(kForever) ? kForever : static_cast<std::int64_t>(ps);
}

ExactResult simulate_exact(const ExactInput& in, const ExactOutput& out) noexcept try {
  if (const std::int64_t op = find_bad_op(in); op >= 0) return {ExactStatus::bad_op, op, 0};
  Order order(in);
  if (!order.walk(out.level)) return find_deadlock(in, order, out.level);
  Clock clock(in, out, order);
  if (const std::int64_t op = clock.run(); op >= 0) return {ExactStatus::overflow, op, 0};
  return {};
} catch (const std::bad_alloc&) {
  return {ExactStatus::out_of_memory, -1, 0};
}

}  // namespace ccl_lab::sim
